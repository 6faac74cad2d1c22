//! Time of an empty parallel region: what each of the hundreds of small regions of a decode step costs.
//!
//! `cargo run --release -p hotseam-ops --example bench_pool [THREADS]`

use std::hint::black_box;
use std::time::{Duration, Instant};

use hotseam_ops::{Parallel, Pool};

/// Regions in one measurement: the best and the middle of many measurements are shown.
const REGIONS: usize = 200;

fn main() {
    let threads = std::env::args().nth(1).map_or(2, |n| n.parse().expect("the number of threads"));
    let pool = Pool::new(threads);
    println!("{} threads, {REGIONS} regions in a row", pool.threads());
    println!("{:>24} {:>9} {:>9}", "between two regions", "best us", "middle us");
    for (name, gap) in [("nothing", 0), ("2 us on the caller", 2), ("20 us on the caller", 20)] {
        let gap = Duration::from_micros(gap);
        let mut times: Vec<f64> = (0..200).map(|_| region(&pool, gap)).collect();
        times.sort_by(f64::total_cmp);
        println!("{name:>24} {:>9.2} {:>9.2}", times[0], times[times.len() / 2]);
    }
}

/// Microseconds of one region, the work between them not counted.
fn region(pool: &Pool, gap: Duration) -> f64 {
    let mut inside = Duration::ZERO;
    for _ in 0..REGIONS {
        let start = Instant::now();
        while start.elapsed() < gap {
            std::hint::spin_loop();
        }
        let start = Instant::now();
        pool.run(4 * pool.threads(), 1, &|range| {
            black_box(range);
        });
        inside += start.elapsed();
    }
    inside.as_secs_f64() * 1e6 / REGIONS as f64
}

//! Speed of `linear` on this machine, against the fused multiply-add rate that a register-only loop reaches.
//!
//! `cargo run --release -p hotseam-ops --example bench_linear`

use std::hint::black_box;
use std::time::{Duration, Instant};

use hotseam_ops::{Mat, Parallel, Pool, Weight, bf16, linear};

const ROWS: [usize; 5] = [1, 8, 64, 512, 2048];
const SHAPES: [(usize, usize); 4] = [(256, 256), (512, 256), (1024, 256), (256, 512)];
/// How long each figure is measured.
const MEASURE: Duration = Duration::from_millis(100);
/// Floating point operations of one look at the peak: some tens of microseconds.
const FLOPS: usize = 12 * 16 * 20_000;

fn main() {
    println!("threads     n     k   rows type   GFLOP/s     peak  share         us");
    for threads in [1, 2] {
        let pool = Pool::new(threads);
        for (n, k) in SHAPES {
            let wide: Vec<f32> = (0..n * k).map(|i| ((i * 7919) % 251) as f32 / 125.0 - 1.0).collect();
            let narrow: Vec<u16> = wide.iter().map(|&x| bf16::from_f32(x)).collect();
            for rows in ROWS {
                for (name, data) in [("bf16", Weight::Bf16(&narrow)), ("f32", Weight::F32(&wide))] {
                    let (seconds, peak) = measure(&pool, rows, Mat { data, n, k });
                    let rate = 2e-9 * (rows * n * k) as f64 / seconds;
                    let share = 100.0 * rate / peak;
                    println!(
                        "{threads:>7} {n:>5} {k:>5} {rows:>6} {name:>4}  {rate:>8.1} {peak:>8.1} {share:>5.0}% {:>10.2}",
                        seconds * 1e6
                    );
                }
            }
        }
    }
}

/// Seconds of one product and GFLOP/s of the peak on the same threads. They are measured in turn, so that a busy
/// machine slows both; the best of each counts.
fn measure(par: &dyn Parallel, rows: usize, w: Mat<'_>) -> (f64, f64) {
    let x: Vec<f32> = (0..rows * w.k).map(|i| ((i * 104_729) % 509) as f32 / 254.0 - 1.0).collect();
    let mut y = vec![0.0; rows * w.n];
    // Enough products between two looks at the clock.
    let inner = (2_000_000 / (rows * w.n * w.k)).max(1);
    let (mut product, mut peak) = (f64::INFINITY, f64::INFINITY);
    let begin = Instant::now();
    while begin.elapsed() < MEASURE {
        let start = Instant::now();
        for _ in 0..inner {
            linear(par, black_box(&x), rows, w, &mut y);
            black_box(&y);
        }
        product = product.min(start.elapsed().as_secs_f64() / inner as f64);
        let start = Instant::now();
        par.run(par.threads(), 1, &|_| multiply_adds());
        peak = peak.min(start.elapsed().as_secs_f64());
    }
    (product, 1e-9 * (par.threads() * FLOPS) as f64 / peak)
}

/// Twelve independent chains of multiply-adds in registers: the most that a core can do.
fn multiply_adds() {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx2,fma")]
        fn chains() {
            let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
            let mut sums = [_mm256_set1_ps(black_box(1.0)); 12];
            for _ in 0..FLOPS / (12 * 16) {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        // SAFETY: the processor has AVX2 and FMA.
        return unsafe { chains() };
    }
    let (a, b) = (black_box(0.999f32), black_box(1e-3f32));
    let mut sums = [black_box(1.0f32); 12];
    for _ in 0..FLOPS / (12 * 2) {
        for sum in &mut sums {
            *sum = sum.mul_add(a, b);
        }
    }
    black_box(sums);
}

//! What the machine can do, measured by this process: the limits beside which the engine's speed is read.

use hotseam_ops::{Mat, Parallel, Pool, Weight, linear};
use std::hint::black_box;
use std::time::Instant;

/// Looks at each limit; the best counts.
const LOOKS: usize = 5;

/// Bytes a second that all threads read together from 1 GiB, in order.
pub(crate) fn stream() -> f64 {
    const WORDS: usize = (1 << 30) / 8;
    const PIECE: usize = 1 << 17;
    let pool = Pool::new(0);
    let memory: Vec<u64> = (0..WORDS as u64).collect(); // written, or all pages were one page of zeros
    let seconds = best(|| {
        pool.run(WORDS / PIECE, 64, &|pieces| {
            let words = &memory[pieces.start * PIECE..pieces.end * PIECE];
            black_box(words.iter().fold(0, |sum: u64, &word| sum.wrapping_add(word)));
        });
    });
    (WORDS * 8) as f64 / seconds
}

/// Floating point operations a second of `linear` with f32 weights, `n` rows by an `n x n` matrix, on all threads.
pub(crate) fn gemm(n: usize) -> f64 {
    let pool = Pool::new(0);
    let numbers: Vec<f32> = (0..n * n).map(|i| ((i * 7919) % 251) as f32 / 125.0 - 1.0).collect();
    let mut y = vec![0.0; n * n];
    let w = Mat { data: Weight::F32(&numbers), n, k: n };
    let seconds = best(|| {
        linear(&pool, black_box(&numbers), n, w, &mut y);
        black_box(&y);
    });
    2.0 * (n * n * n) as f64 / seconds
}

/// Seconds of the fastest of some calls.
fn best(mut body: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        body();
        start.elapsed().as_secs_f64()
    };
    (0..LOOKS).map(time).fold(f64::INFINITY, f64::min)
}

/// Resident bytes of this process.
pub(crate) fn resident() -> Result<f64, String> {
    let status =
        std::fs::read_to_string("/proc/self/status").map_err(|e| format!("/proc/self/status: {e}"))?;
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|line| line.trim().trim_end_matches(" kB").trim().parse::<f64>().ok());
    kilobytes.map(|kb| kb * 1024.0).ok_or_else(|| "/proc/self/status has no VmRSS".to_owned())
}

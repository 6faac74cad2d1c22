//! Speed of `linear` on this machine for every weight format, against two limits that are measured beside each
//! figure on the same threads: how fast memory can be read, and the fused multiply-add rate of a loop that works in
//! registers only.
//!
//! `cargo run --release -p hotseam-ops --example bench_linear [THREADS [FORMAT.. | amx]]`, formats `f32`, `bf16`, `fp8`,
//! `mxfp4`, `nvfp4`; with `amx` products use the processor's matrix tiles. First decode, with weights in the L1 cache, in the L3 cache and in memory, then prefill.

use std::hint::black_box;
use std::time::{Duration, Instant};

use hotseam_ops::{Amx, Mat, Parallel, Pool, Weight, WithAmx, bf16, linear};

/// `(n, k)` and the numbers of rows of `x`.
type Case = ((usize, usize), &'static [usize]);
const DECODE: [Case; 3] = [((8, 2048), &[1, 2]), ((512, 4096), &[1]), ((32768, 4096), &[1, 2, 3, 4, 6, 8])];
const PREFILL: [Case; 4] = [
    ((512, 256), &[8, 64, 512]),
    ((512, 2048), &[8, 64, 512]),
    ((2048, 4096), &[8, 16, 32, 64, 128, 512]),
    ((4096, 512), &[64, 512]),
];
/// Seconds on a clock that one thread alone can trust on a busy machine: its own processor time. Several threads are
/// timed by the wall.
fn now(threads: usize) -> f64 {
    #[cfg(target_os = "linux")]
    if threads == 1 {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `time` is ours.
        if unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) } == 0 {
            return time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9;
        }
    }
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// How long each figure is measured.
const MEASURE: Duration = Duration::from_millis(300);
/// Floating point operations of one look at the peak, for vectors of eight: some tens of microseconds.
const FLOPS: usize = 12 * 16 * 20_000;
/// Words that are read for one look at the memory: 32 MiB for each thread.
const WORDS: usize = 4 << 20;

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().map_or(1, |n| n.parse().expect("the number of threads"));
    let (tiles, formats): (Vec<String>, Vec<String>) = args.partition(|arg| arg == "amx");
    let pool = Pool::new(threads);
    let tiles = tiles.first().map(|_| Amx::detect().unwrap_or_else(|why| panic!("{why}")));
    let threads = &WithAmx::new(&pool, tiles);
    let memory: Vec<u64> = (0..(WORDS * pool.threads()) as u64).collect();
    println!("{} threads", pool.threads());
    println!("format     n     k rows         us      GB/s stream share   GFLOP/s   peak share");
    for ((n, k), rows) in DECODE.into_iter().chain(PREFILL) {
        let store = Store::new(n * k);
        for format in ["f32", "bf16", "fp8", "mxfp4", "nvfp4"] {
            if formats.is_empty() || formats.iter().any(|wanted| wanted == format) {
                for &rows in rows {
                    let (w, bytes) = store.weight(format, n, k);
                    report(format, bytes, rows, w, &measure(threads, &memory, rows, w));
                }
            }
        }
    }
}

/// Numbers of all formats.
struct Store {
    wide: Vec<f32>,
    narrow: Vec<u16>,
    codes: Vec<u8>,
    scales: Vec<u8>,
}

impl Store {
    fn new(len: usize) -> Self {
        let wide: Vec<f32> = (0..len).map(|i| ((i * 7919) % 251) as f32 / 125.0 - 1.0).collect();
        let narrow = wide.iter().map(|&x| bf16::from_f32(x)).collect();
        // No code of a NaN.
        let codes = (0..len).map(|i| ((i * 7919) % 251) as u8 & 0xf7).collect();
        let scales = (0..len / 16).map(|i| 120 + (i % 5) as u8).collect();
        Self { wide, narrow, codes, scales }
    }

    /// A matrix and its bytes.
    fn weight(&self, format: &str, n: usize, k: usize) -> (Mat<'_>, usize) {
        let (codes, half, scales) = (&self.codes[..n * k], &self.codes[..n * k / 2], &self.scales);
        let data = match format {
            "f32" => Weight::F32(&self.wide),
            "bf16" => Weight::Bf16(&self.narrow),
            "fp8" => Weight::Fp8 { codes, scales: &scales[..n.div_ceil(128) * k.div_ceil(128)], skip: 0 },
            "mxfp4" => Weight::Mxfp4 { codes: half, scales: &scales[..n * k / 32] },
            _ => Weight::Nvfp4 { codes: half, scales: &scales[..n * k / 16], global: 0.01 },
        };
        let bytes = match data {
            Weight::F32(data) => size_of_val(data),
            Weight::Bf16(data) => size_of_val(data),
            Weight::Fp8 { codes, scales, .. }
            | Weight::Mxfp4 { codes, scales }
            | Weight::Nvfp4 { codes, scales, .. } => codes.len() + scales.len(),
        };
        (Mat { data, n, k }, bytes)
    }
}

/// The best of each, measured in turn, so that a busy machine slows all three.
struct Figures {
    /// Seconds of one product.
    product: f64,
    /// Bytes a second that the threads can read.
    stream: f64,
    /// Floating point operations a second that the threads can do.
    peak: f64,
}

fn measure(par: &dyn Parallel, memory: &[u64], rows: usize, w: Mat<'_>) -> Figures {
    let x: Vec<f32> = (0..rows * w.k).map(|i| ((i * 104_729) % 509) as f32 / 254.0 - 1.0).collect();
    let mut y = vec![0.0; rows * w.n];
    // Enough products between two looks at the clock.
    let inner = (2_000_000 / (rows * w.n * w.k)).max(1);
    let (mut product, mut stream, mut peak) = (f64::INFINITY, f64::INFINITY, f64::INFINITY);
    let threads = par.threads();
    let timed = |best: &mut f64, body: &mut dyn FnMut()| {
        let start = now(threads);
        body();
        *best = best.min(now(threads) - start);
    };
    let begin = Instant::now();
    let mut turns = 0;
    while begin.elapsed() < MEASURE || turns < 3 {
        timed(&mut product, &mut || {
            for _ in 0..inner {
                linear(par, black_box(&x), rows, w, &mut y);
                black_box(&y);
            }
        });
        timed(&mut peak, &mut || par.run(threads, 1, &|_| multiply_adds()));
        if turns < 5 {
            timed(&mut stream, &mut || {
                par.run(threads, 1, &|part| {
                    let words = &memory[part.start * WORDS..part.end * WORDS];
                    // Eight places at once: one alone does not keep enough cache lines in flight.
                    let (eights, _) = words.as_chunks::<8>();
                    let (a, b) = eights.split_at(eights.len() / 2);
                    let ((a, b), (c, d)) = (a.split_at(a.len() / 2), b.split_at(b.len() / 2));
                    let mut sums = [0u64; 8];
                    for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                        for i in 0..8 {
                            sums[i] = sums[i].wrapping_add(a[i] ^ b[i]).wrapping_add(c[i] ^ d[i]);
                        }
                    }
                    black_box(sums);
                });
            });
        }
        turns += 1;
    }
    Figures {
        product: product / inner as f64,
        stream: (threads * WORDS * 8) as f64 / stream,
        peak: (threads * FLOPS * width()) as f64 / peak,
    }
}

fn report(format: &str, bytes: usize, rows: usize, w: Mat<'_>, figures: &Figures) {
    let (rate, flops) = (bytes as f64 / figures.product, 2.0 * (rows * w.n * w.k) as f64 / figures.product);
    println!(
        "{format:>6} {:>5} {:>5} {rows:>4} {:>10.1} {:>9.2} {:>6.2} {:>4.0}% {:>9.1} {:>6.1} {:>4.0}%",
        w.n,
        w.k,
        figures.product * 1e6,
        rate * 1e-9,
        figures.stream * 1e-9,
        100.0 * rate / figures.stream,
        flops * 1e-9,
        figures.peak * 1e-9,
        100.0 * flops / figures.peak,
    );
}

/// Widest vectors of this processor, in eights.
fn width() -> usize {
    #[cfg(target_arch = "x86_64")]
    if std::is_x86_feature_detected!("avx512f") {
        return 2;
    }
    1
}

/// Twelve independent chains of multiply-adds in registers: the most that a core can do.
fn multiply_adds() {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::*;
        #[target_feature(enable = "avx2,fma")]
        fn eights() {
            let (a, b) = (_mm256_set1_ps(black_box(0.999)), _mm256_set1_ps(black_box(1e-3)));
            let mut sums = [_mm256_set1_ps(black_box(1.0)); 12];
            for _ in 0..FLOPS / (12 * 16) {
                for sum in &mut sums {
                    *sum = _mm256_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        #[target_feature(enable = "avx512f")]
        fn sixteens() {
            let (a, b) = (_mm512_set1_ps(black_box(0.999)), _mm512_set1_ps(black_box(1e-3)));
            let mut sums = [_mm512_set1_ps(black_box(1.0)); 12];
            for _ in 0..FLOPS / (12 * 16) {
                for sum in &mut sums {
                    *sum = _mm512_fmadd_ps(*sum, a, b);
                }
            }
            black_box(sums);
        }
        if width() == 2 {
            // SAFETY: the processor has AVX-512 F.
            return unsafe { sixteens() };
        }
        if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
            // SAFETY: the processor has AVX2 and FMA.
            return unsafe { eights() };
        }
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

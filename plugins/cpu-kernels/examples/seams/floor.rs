//! What this machine can do.

use crate::clock::Clock;
use hotseam_sdk::ops::lanes::Lanes;
use hotseam_sdk::ops::{Kernel, Parallel, dispatch};
use std::hint::black_box;

/// Rates of all threads together.
pub(crate) struct Floor {
    /// Floating point operations a second, of fused multiply-adds.
    pub(crate) flops: f64,
    /// Bytes read from memory a second.
    pub(crate) bytes: f64,
}

/// Multiply-adds of a chain.
const LENGTH: usize = 1 << 22;
/// Chains that are independent of each other.
const CHAINS: usize = 12;

struct Chains;

impl Kernel for Chains {
    type Output = f32;

    #[inline(always)]
    fn run<L: Lanes>(self, lanes: L) -> f32 {
        let (a, b) = (lanes.splat(black_box(0.999_999)), lanes.splat(black_box(1e-6)));
        let mut sums = [lanes.splat(1.0); CHAINS];
        for _ in 0..LENGTH {
            for sum in &mut sums {
                *sum = lanes.fma(*sum, a, b);
            }
        }
        sums.into_iter().map(|sum| lanes.sum(sum)).sum()
    }
}

impl Floor {
    pub(crate) fn measure(par: &dyn Parallel) -> Self {
        let threads = par.threads();
        let clock = Clock::new(threads);
        let seconds = |f: &dyn Fn()| (0..5).map(|_| clock.time(f)).fold(f64::INFINITY, f64::min);
        let multiply = || {
            par.run(threads, 1, &|pieces| {
                for _ in pieces {
                    black_box(dispatch(Chains));
                }
            });
        };
        let memory = vec![1.0f32; 64 << 20];
        let read = || {
            par.run(threads, 1, &|pieces| {
                for piece in pieces {
                    let part = memory.len() / threads;
                    black_box(hotseam_sdk::ops::sum(&memory[piece * part..][..part]));
                }
            });
        };
        Self {
            flops: (threads * LENGTH * CHAINS * 16) as f64 / seconds(&multiply),
            bytes: (memory.len() * 4) as f64 / seconds(&read),
        }
    }
}

//! Choice of the instruction set, made once, and the bridge from safe code into code compiled for it.

use crate::lanes::{Lanes, Portable};

/// A computation written once over [`Lanes`] and compiled for each instruction set.
///
/// `run` must be `#[inline(always)]`, and so must every generic function it calls: only code inlined into the
/// entry function of an instruction set is compiled with that set.
pub trait Kernel {
    /// What the computation returns.
    type Output;
    /// Computes with the given lanes.
    fn run<L: Lanes>(self, lanes: L) -> Self::Output;
}

/// Runs a kernel on the best instruction set of this machine.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    if let Some(lanes) = avx2() {
        // SAFETY: the token exists only if the processor has AVX2 and FMA.
        return unsafe { enter_avx2(kernel, lanes) };
    }
    portable(kernel)
}

/// Runs a kernel on plain Rust arithmetic. Slow where `f32::mul_add` is a library call.
pub(crate) fn portable<K: Kernel>(kernel: K) -> K::Output {
    kernel.run(Portable)
}

/// The AVX2 token, if this processor has AVX2 and FMA. Detected at first use.
#[cfg(target_arch = "x86_64")]
#[inline]
pub(crate) fn avx2() -> Option<crate::lanes::Avx2> {
    static FOUND: std::sync::OnceLock<Option<crate::lanes::Avx2>> = std::sync::OnceLock::new();
    *FOUND.get_or_init(crate::lanes::Avx2::detect)
}

/// Entry into code compiled for AVX2.
///
/// # Safety
/// The processor has AVX2 and FMA.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
unsafe fn enter_avx2<K: Kernel>(kernel: K, lanes: crate::lanes::Avx2) -> K::Output {
    kernel.run(lanes)
}

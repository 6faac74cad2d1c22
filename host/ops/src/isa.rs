//! Choice of the instruction set, made once, and the bridge from safe code into code compiled for it.

#[cfg(target_arch = "x86_64")]
use crate::lanes::{Avx2, Avx512};
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

/// An instruction set that this processor has.
#[derive(Clone, Copy)]
pub(crate) enum Isa {
    /// Plain Rust arithmetic. Slow where `f32::mul_add` is a library call.
    Portable(Portable),
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
}

/// Every instruction set of this processor, the best one first.
fn detect() -> impl Iterator<Item = Isa> {
    let portable = std::iter::once(Isa::Portable(Portable));
    #[cfg(target_arch = "x86_64")]
    let portable = {
        let wide = Avx512::detect().map(Isa::Avx512);
        wide.into_iter().chain(Avx2::detect().map(Isa::Avx2)).chain(portable)
    };
    portable
}

impl Isa {
    /// The best instruction set of this processor. Detected at first use.
    #[inline]
    pub(crate) fn best() -> Self {
        static FOUND: std::sync::OnceLock<Isa> = std::sync::OnceLock::new();
        *FOUND.get_or_init(|| detect().next().unwrap_or(Isa::Portable(Portable)))
    }

    /// Every instruction set of this processor, with its name: what tests compare bit for bit.
    #[cfg(test)]
    pub(crate) fn all() -> Vec<(&'static str, Self)> {
        let name = |isa| match isa {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "AVX2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "AVX-512",
        };
        detect().map(|isa| (name(isa), isa)).collect()
    }

    /// Runs a kernel with this instruction set.
    #[inline]
    pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
        match self {
            Self::Portable(lanes) => kernel.run(lanes),
            // SAFETY: the token exists only if the processor has the instructions.
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(lanes) => unsafe { enter_avx2(kernel, lanes) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(lanes) => unsafe { enter_avx512(kernel, lanes) },
        }
    }
}

/// Runs a kernel on the best instruction set of this machine.
#[inline]
pub fn dispatch<K: Kernel>(kernel: K) -> K::Output {
    Isa::best().run(kernel)
}

/// Entry into code compiled for AVX2.
///
/// # Safety
/// The processor has AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn enter_avx2<K: Kernel>(kernel: K, lanes: Avx2) -> K::Output {
    kernel.run(lanes)
}

/// Entry into code compiled for AVX-512.
///
/// # Safety
/// The processor has AVX-512 F, BW, DQ and VL, AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")]
unsafe fn enter_avx512<K: Kernel>(kernel: K, lanes: Avx512) -> K::Output {
    kernel.run(lanes)
}

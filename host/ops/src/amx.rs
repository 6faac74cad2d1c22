//! Matrix tiles of a processor (Intel AMX): eight registers of 16 rows of 64 bytes, and products of bf16 tiles with f32
//! sums. They change the order of sums, so nobody uses them unasked: see [`Parallel::amx`].
//!
//! The layout of a configuration and the order of sums are those of the "Intel 64 and IA-32 Architectures Software
//! Developer's Manual", volume 2, `LDTILECFG` and `TDPBF16PS`.

use std::fmt;
use std::ops::Range;

use crate::Parallel;

/// Proof that the processor has tiles for bf16 and that this process may use them.
#[derive(Clone, Copy, Debug)]
pub struct Amx(());

/// Why there are no tiles.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoAmx {
    /// The processor does not have them.
    Processor,
    /// The system does not let this process use them.
    System,
}

impl fmt::Display for NoAmx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Processor => {
                "this processor has no matrix tiles (`amx_tile`, `amx_bf16` and AVX-512 in the flags of /proc/cpuinfo)"
            }
            Self::System => {
                "the system does not let this process use matrix tiles; Linux does from 5.16 on (arch_prctl, \
                 XTILEDATA), a virtual machine may hide them"
            }
        })
    }
}

impl std::error::Error for NoAmx {}

impl Amx {
    /// Asks the processor and the system, once.
    ///
    /// # Errors
    /// If one of the two says no.
    pub fn detect() -> Result<Self, NoAmx> {
        static FOUND: std::sync::OnceLock<Result<Amx, NoAmx>> = std::sync::OnceLock::new();
        *FOUND.get_or_init(|| {
            if !processor() {
                return Err(NoAmx::Processor);
            }
            if permitted() { Ok(Self(())) } else { Err(NoAmx::System) }
        })
    }
}

/// Whether the processor has AMX-TILE, AMX-BF16 and what the kernels around them need.
#[cfg(target_arch = "x86_64")]
fn processor() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const BF16: u32 = 1 << 22;
    const TILE: u32 = 1 << 24;
    if crate::lanes::Avx512::detect().is_none() || __cpuid(0).eax < 7 {
        return false;
    }
    __cpuid_count(7, 0).edx & (BF16 | TILE) == BF16 | TILE
}

#[cfg(not(target_arch = "x86_64"))]
fn processor() -> bool {
    false
}

/// Asks Linux for the state of tiles, which it gives to a process once and for all of its threads.
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn permitted() -> bool {
    const ARCH_REQ_XCOMP_PERM: libc::c_long = 0x1023;
    const XFEATURE_XTILEDATA: libc::c_long = 18;
    // SAFETY: the call has no memory of ours.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
}

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
fn permitted() -> bool {
    false
}

/// Threads whose products use tiles, if there are some.
#[derive(Clone, Copy)]
pub struct WithAmx<'a> {
    threads: &'a dyn Parallel,
    amx: Option<Amx>,
}

impl<'a> WithAmx<'a> {
    /// Lets products on these threads use these tiles, or none.
    pub fn new(threads: &'a dyn Parallel, amx: Option<Amx>) -> Self {
        Self { threads, amx }
    }
}

impl Parallel for WithAmx<'_> {
    fn threads(&self) -> usize {
        self.threads.threads()
    }

    fn run(&self, n: usize, grain: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        self.threads.run(n, grain, body);
    }

    fn amx(&self) -> Option<Amx> {
        self.amx
    }
}

impl fmt::Debug for WithAmx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WithAmx").field("threads", &self.threads.threads()).field("amx", &self.amx).finish()
    }
}

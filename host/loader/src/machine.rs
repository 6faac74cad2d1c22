//! What a plugin needs of the machine.

use crate::error::LoadError;
use crate::manifest::Requires;
use crate::{cuda, libraries};
use std::path::Path;

/// Fails if the machine lacks something of `requires`.
pub(crate) fn check(name: &str, path: &Path, requires: &Requires) -> Result<(), LoadError> {
    check_cpu(name, path, &requires.cpu)?;
    libraries::check(name, &requires.libs)?;
    requires.cuda.as_ref().map_or(Ok(()), |needed| cuda::check(name, needed))
}

macro_rules! cpu_features {
    ($($name:tt),+) => {
        /// CPU features that a manifest may ask for.
        const CPU_FEATURES: &[&str] = &[$($name),+];

        fn has_cpu_feature(name: &str) -> Option<bool> {
            match name {
                $($name => Some(detect!($name)),)+
                _ => None,
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! detect {
    ($name:tt) => {
        std::arch::is_x86_feature_detected!($name)
    };
}
#[cfg(target_arch = "x86_64")]
cpu_features!(
    "sse4.1",
    "sse4.2",
    "avx",
    "avx2",
    "fma",
    "f16c",
    "bmi1",
    "bmi2",
    "popcnt",
    "avx512f",
    "avx512bw",
    "avx512dq",
    "avx512vl",
    "avx512vnni",
    "avx512bf16",
    "avx512fp16",
    "avxvnni"
);

#[cfg(target_arch = "aarch64")]
macro_rules! detect {
    ($name:tt) => {
        std::arch::is_aarch64_feature_detected!($name)
    };
}
#[cfg(target_arch = "aarch64")]
cpu_features!("neon", "fp16", "bf16", "dotprod", "i8mm", "sve", "sve2");

fn check_cpu(name: &str, path: &Path, needed: &[String]) -> Result<(), LoadError> {
    for feature in needed {
        match has_cpu_feature(feature) {
            Some(true) => {}
            Some(false) => {
                let has: Vec<_> =
                    CPU_FEATURES.iter().filter(|f| has_cpu_feature(f) == Some(true)).copied().collect();
                return Err(LoadError::Requirement {
                    name: name.to_owned(),
                    needed: format!("the CPU feature {feature}"),
                    present: has.join(", "),
                    next: "Choose another variant, or run on another machine.".to_owned(),
                });
            }
            None => {
                let hint = crate::suggest::did_you_mean(feature, CPU_FEATURES.iter().copied());
                return Err(LoadError::Manifest {
                    name: name.to_owned(),
                    path: path.to_owned(),
                    what: format!("requires.cpu: unknown feature `{feature}` for this kind of CPU. {hint}"),
                });
            }
        }
    }
    Ok(())
}

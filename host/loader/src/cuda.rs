//! What a plugin needs of CUDA. The driver is asked for its version and its devices; no context is made.

use crate::error::LoadError;
use crate::libraries;
use crate::manifest::Cuda;
use hotseam_cuda::CudaError;
use std::fmt;

/// The driver's library.
const DRIVER: &str = "libcuda.so.1";

/// What there is.
#[derive(Debug, PartialEq, Eq)]
struct Present {
    /// Version of CUDA that the driver knows.
    driver: (u32, u32),
    /// Compute capability of each device.
    sm: Vec<u32>,
}

/// Major and minor of `12.8`.
pub(crate) fn version(text: &str) -> Option<(u32, u32)> {
    let (major, minor) = text.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// Fails if the machine has no driver, one that is too old, or no device that the plugin has code for.
pub(crate) fn check(name: &str, needed: &Cuda) -> Result<(), LoadError> {
    lift_address_space();
    let answer = ask();
    if let Err(CudaError::NoDriver { searched }) = &answer {
        // Says where the system looks, or that there is a stub.
        libraries::check_for(name, DRIVER, &format!(" of {needed}")).map_err(|error| match error {
            LoadError::Library { name, needed, found, next } => {
                let found = format!("{found} for {}", searched.join(", "));
                LoadError::Library { name, needed, found, next }
            }
            other => other,
        })?;
    }
    judge(name, needed, answer)
}

/// Raises the limit of this process's address space as far as it goes: a driver reserves many times what it uses, and fails
/// under the limit that a probe has otherwise.
fn lift_address_space() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the struct is valid for both calls.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_AS, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            // If it stays, the driver says what that means.
            libc::setrlimit(libc::RLIMIT_AS, &raw const limit);
        }
    }
}

impl fmt::Display for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.driver_min {
            Some(version) => write!(f, "a driver for CUDA {version} or later")?,
            None => f.write_str("a CUDA driver")?,
        }
        for (i, sm) in self.sm.iter().enumerate() {
            write!(f, "{}sm_{sm}", if i == 0 { " and a device of " } else { ", " })?;
        }
        Ok(())
    }
}

fn judge(name: &str, needed: &Cuda, answer: Result<Present, CudaError>) -> Result<(), LoadError> {
    let error = |present: String, next: &str| {
        let (name, next) = (name.to_owned(), format!("{next}Variants that do not need it go on."));
        Err(LoadError::Requirement { name, needed: needed.to_string(), present, next })
    };
    let present = match answer {
        Ok(present) => present,
        Err(CudaError::NoDevice { count: 0, .. }) => {
            return error(
                "a driver without a device".to_owned(),
                "Look at nvidia-smi and at CUDA_VISIBLE_DEVICES. ",
            );
        }
        Err(broken @ CudaError::Call { .. }) => {
            return error(format!("a driver whose {broken}"), "Look at the driver with nvidia-smi. ");
        }
        Err(CudaError::NotADriver { path, what }) => {
            let next = "A stub of a toolkit found before the driver does this: take its directory out of LD_LIBRARY_PATH. ";
            return error(format!("{path}, which is no working CUDA driver: {what}"), next);
        }
        // Its text ends with what to do.
        Err(other) => return error(other.to_string().trim_end_matches('.').to_owned(), ""),
    };
    let devices = match present.sm.as_slice() {
        [] => "no device".to_owned(),
        sm => sm.iter().map(|sm| format!("sm_{sm}")).collect::<Vec<_>>().join(", "),
    };
    let found = format!("CUDA {}.{} and {devices}", present.driver.0, present.driver.1);
    let oldest = needed.driver_min.as_deref().and_then(version);
    if oldest.is_some_and(|oldest| present.driver < oldest) {
        return error(found, "Install a newer driver. ");
    }
    if present.sm.is_empty() || !needed.sm.is_empty() && !present.sm.iter().any(|sm| needed.sm.contains(sm)) {
        return error(found, "Choose a variant that is built for this device. ");
    }
    Ok(())
}

/// Asks the driver. One that is too old for Hotseam's kernels may do for another plugin.
fn ask() -> Result<Present, CudaError> {
    let driver = match hotseam_cuda::available() {
        Ok(version) | Err(CudaError::OldDriver { found: version, .. }) => (version.major, version.minor),
        Err(error) => return Err(error),
    };
    Ok(Present { driver, sm: hotseam_cuda::capabilities()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn needs(driver_min: Option<&str>, sm: &[u32]) -> Cuda {
        Cuda { driver_min: driver_min.map(str::to_owned), sm: sm.to_vec() }
    }

    #[test]
    fn versions_and_devices_are_compared_as_numbers() {
        let present = |sm: &[u32]| Ok(Present { driver: (12, 9), sm: sm.to_vec() });
        let fine = |needed: &Cuda| judge("attention/x", needed, present(&[90, 90])).expect("fits");
        fine(&needs(None, &[]));
        fine(&needs(Some("12.9"), &[100, 90]));
        fine(&needs(Some("9.10"), &[]));
        let refused = |needed: Cuda, present| {
            let error = judge("attention/x", &needed, present).expect_err("refused");
            assert_eq!(error.code(), 105);
            error.to_string()
        };
        assert_eq!(
            refused(needs(Some("12.10"), &[90, 100]), present(&[90])),
            "E-PLUG-105 attention/x: needs a driver for CUDA 12.10 or later and a device of sm_90, sm_100, found CUDA \
             12.9 and sm_90. Install a newer driver. Variants that do not need it go on."
        );
        let text = refused(needs(None, &[100, 120]), present(&[90, 89]));
        assert!(
            text.contains("a device of sm_100, sm_120, found CUDA 12.9 and sm_90, sm_89. Choose"),
            "{text}"
        );
        assert!(refused(needs(None, &[]), present(&[])).contains("found CUDA 12.9 and no device. "));
        let call =
            CudaError::Call { call: "cuInit", code: 999, name: "UNKNOWN".into(), text: "what?".into() };
        for (error, words) in [
            (
                call,
                "found a driver whose cuInit failed with code 999 (UNKNOWN: what?). Look at the driver with",
            ),
            (
                CudaError::NoDevice { ordinal: 0, count: 0 },
                "found a driver without a device. Look at nvidia-smi",
            ),
            (
                CudaError::NotADriver { path: "/x/libcuda.so".into(), what: "it lacks cuInit".into() },
                "found /x/libcuda.so, which is no working CUDA driver: it lacks cuInit. A stub of a toolkit",
            ),
        ] {
            let text = refused(needs(None, &[]), Err(error));
            assert!(
                text.contains(words) && text.ends_with(". Variants that do not need it go on."),
                "{text}"
            );
        }
        assert_eq!((version("12.8"), version("12"), version("12.x")), (Some((12, 8)), None, None));
    }

    #[test]
    fn what_the_driver_of_this_machine_says_is_plausible() {
        match (ask(), libraries::check_for("attention/x", DRIVER, "")) {
            (Ok(present), _) => assert!(
                present.driver >= (9, 0) && present.sm.iter().all(|sm| (30..400).contains(sm)),
                "{present:?}"
            ),
            (Err(CudaError::NoDriver { .. }), Err(error)) => assert_eq!(error.code(), 106, "{error}"),
            (Err(error), _) => assert!(error.to_string().contains("driver"), "{error}"),
        }
    }
}

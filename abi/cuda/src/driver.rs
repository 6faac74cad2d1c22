//! Finding the driver. Whoever calls it without looking first gets a panic of `cudarc`; here it is looked for once.

use crate::error::{CudaError, Result, check};
use cudarc::driver::sys;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

/// A version of CUDA.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Oldest driver that loads cubins of the compiler that the kernels are built with.
const NEEDED: Version = Version { major: 13, minor: 0 };

/// File names under which the driver is looked for, in order.
pub fn searched() -> Vec<String> {
    ["cuda", "nvcuda"].iter().flat_map(|name| cudarc::get_lib_name_candidates(name)).fold(
        Vec::new(),
        |mut names, name| {
            if !names.contains(&name) {
                names.push(name);
            }
            names
        },
    )
}

/// Whether there is a driver that works; its version.
///
/// # Errors
/// Says what is missing. The answer is that of the first question.
pub fn available() -> Result<Version> {
    static ANSWER: OnceLock<Result<Version>> = OnceLock::new();
    ANSWER.get_or_init(find).clone()
}

fn find() -> Result<Version> {
    // SAFETY: opens libraries by the driver's names; their constructors are the driver's.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaError::NoDriver { searched: searched() });
    }
    // A library without the functions makes `cudarc` panic, each time it is called.
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let asked = catch_unwind(AssertUnwindSafe(|| {
        let mut version = 0;
        // SAFETY: plain calls; the pointer is to a writable integer.
        let (got, started) = unsafe { (sys::cuDriverGetVersion(&raw mut version), sys::cuInit(0)) };
        check("cuDriverGetVersion", got).map(|()| (version as u32, check("cuInit", started)))
    }));
    std::panic::set_hook(hook);
    let path = path();
    let broken = |what: String| CudaError::NotADriver { path: path.clone(), what };
    let (version, started) = match asked {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return Err(broken(error.to_string())),
        Err(payload) => {
            let text = payload.downcast_ref::<String>().cloned();
            let text = text.or_else(|| payload.downcast_ref::<&str>().map(|text| (*text).to_owned()));
            return Err(broken(text.unwrap_or_else(|| "it lacks functions of a driver".to_owned())));
        }
    };
    let found = Version { major: version / 1000, minor: version % 1000 / 10 };
    match started {
        Ok(()) if found < NEEDED => Err(CudaError::OldDriver { path, found, needed: NEEDED }),
        Ok(()) => Ok(found),
        Err(CudaError::Call { code: 100, .. }) => Err(CudaError::NoDevice { ordinal: 0, count: 0 }),
        Err(error) => Err(broken(error.to_string())),
    }
}

/// The file of the driver as the system mapped it.
fn path() -> String {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    let of_driver = |line: &str| {
        let file = line.split_whitespace().nth(5)?;
        let name = file.rsplit('/').next()?;
        (name.starts_with("libcuda.so") || name.starts_with("libcuda-")).then(|| file.to_owned())
    };
    maps.lines().find_map(of_driver).unwrap_or_else(|| "the library found".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_tried_once_and_the_answer_is_typed() {
        let names = searched();
        assert!(names.contains(&"libcuda.so.1".to_owned()), "{names:?}");
        let mut unique = names.clone();
        unique.sort();
        unique.dedup();
        assert_eq!(unique.len(), names.len());
        match available() {
            Ok(version) => assert!(version >= NEEDED),
            Err(CudaError::NoDriver { searched }) => assert_eq!(searched, names),
            Err(error) => assert!(error.to_string().contains("driver"), "{error}"),
        }
    }

    #[test]
    fn errors_name_a_next_step() {
        let error = CudaError::NoDriver { searched: vec!["libcuda.so".into(), "libcuda.so.1".into()] };
        assert_eq!(
            error.to_string(),
            "no CUDA driver: none of libcuda.so, libcuda.so.1 is installed or in LD_LIBRARY_PATH. Install the NVIDIA \
             driver, or choose variants that run on the CPU."
        );
        let image = CudaError::NoImage { have: vec![90, 120], found: 80 };
        assert_eq!(
            image.to_string(),
            "there are kernels for sm_90, sm_120, the device is sm_80. Choose a variant that is built for it."
        );
    }
}

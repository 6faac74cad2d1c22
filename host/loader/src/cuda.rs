//! What a plugin needs of CUDA. The driver is asked for its version and its devices; no context is made.

use crate::error::LoadError;
use crate::libraries;
use crate::manifest::Cuda;
use libloading::Library;
use std::ffi::c_int;
use std::fmt;

/// The driver's library.
const DRIVER: &str = "libcuda.so.1";
/// Numbers of the attributes of a device that are its compute capability.
const MAJOR: c_int = 75;
const MINOR: c_int = 76;

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
    libraries::check_for(name, DRIVER, &format!(" of {needed}"))?;
    lift_address_space();
    judge(name, needed, ask())
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

fn judge(name: &str, needed: &Cuda, present: Result<Present, String>) -> Result<(), LoadError> {
    let error = |present: String, next: &str| {
        let (name, next) = (name.to_owned(), format!("{next} Variants that do not need it go on."));
        Err(LoadError::Requirement { name, needed: needed.to_string(), present, next })
    };
    let present = match present {
        Ok(present) => present,
        Err(what) => return error(what, "Look at the driver with nvidia-smi."),
    };
    let devices = match present.sm.as_slice() {
        [] => "no device".to_owned(),
        sm => sm.iter().map(|sm| format!("sm_{sm}")).collect::<Vec<_>>().join(", "),
    };
    let found = format!("CUDA {}.{} and {devices}", present.driver.0, present.driver.1);
    let oldest = needed.driver_min.as_deref().and_then(version);
    if oldest.is_some_and(|oldest| present.driver < oldest) {
        return error(found, "Install a newer driver.");
    }
    if present.sm.is_empty() || !needed.sm.is_empty() && !present.sm.iter().any(|sm| needed.sm.contains(sm)) {
        return error(found, "Choose a variant that is built for this device.");
    }
    Ok(())
}

type GetVersion = unsafe extern "C" fn(version: *mut c_int) -> c_int;
type Init = unsafe extern "C" fn(flags: u32) -> c_int;
type GetCount = unsafe extern "C" fn(count: *mut c_int) -> c_int;
type GetDevice = unsafe extern "C" fn(device: *mut c_int, ordinal: c_int) -> c_int;
type GetAttribute = unsafe extern "C" fn(value: *mut c_int, attribute: c_int, device: c_int) -> c_int;

/// Asks the driver. It stays open, as it does for whoever uses it.
fn ask() -> Result<Present, String> {
    let ok = |call: &str, code: c_int| match code {
        0 => Ok(()),
        code => Err(format!("a driver whose {call} fails with code {code}")),
    };
    // SAFETY: its constructors are those of the system's driver.
    let driver =
        unsafe { Library::new(DRIVER) }.map_err(|e| format!("a {DRIVER} that cannot be opened: {e}"))?;
    let driver: &'static Library = Box::leak(Box::new(driver));
    let missing = |e: libloading::Error| format!("a {DRIVER} that is no driver: {e}");
    let (mut version, mut count) = (0, 0);
    // SAFETY: types and arguments are those of the driver's documentation; every pointer is to a writable integer.
    unsafe {
        let get = driver.get::<GetVersion>(b"cuDriverGetVersion\0").map_err(missing)?;
        ok("cuDriverGetVersion", get(&raw mut version))?;
        let init = driver.get::<Init>(b"cuInit\0").map_err(missing)?;
        ok("cuInit", init(0))?;
        let get = driver.get::<GetCount>(b"cuDeviceGetCount\0").map_err(missing)?;
        ok("cuDeviceGetCount", get(&raw mut count))?;
    }
    let capability = |ordinal: c_int| {
        let (mut device, mut major, mut minor) = (0, 0, 0);
        // SAFETY: as above; the ordinal is below the count.
        unsafe {
            let get = driver.get::<GetDevice>(b"cuDeviceGet\0").map_err(missing)?;
            ok("cuDeviceGet", get(&raw mut device, ordinal))?;
            let get = driver.get::<GetAttribute>(b"cuDeviceGetAttribute\0").map_err(missing)?;
            ok("cuDeviceGetAttribute", get(&raw mut major, MAJOR, device))?;
            ok("cuDeviceGetAttribute", get(&raw mut minor, MINOR, device))?;
        }
        Ok((major * 10 + minor) as u32)
    };
    let sm = (0..count).map(capability).collect::<Result<_, String>>()?;
    Ok(Present { driver: ((version / 1000) as u32, (version % 1000 / 10) as u32), sm })
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
        let broken = Err("a driver whose cuInit fails with code 100".to_owned());
        assert!(
            refused(needs(None, &[]), broken).contains("found a driver whose cuInit fails with code 100.")
        );
        assert_eq!((version("12.8"), version("12"), version("12.x")), (Some((12, 8)), None, None));
    }

    #[test]
    fn what_the_driver_of_this_machine_says_is_plausible() {
        match libraries::check_for("attention/x", DRIVER, "") {
            Ok(()) => match ask() {
                Ok(present) => assert!(
                    present.driver >= (9, 0) && present.sm.iter().all(|sm| (30..400).contains(sm)),
                    "{present:?}"
                ),
                Err(what) => assert!(what.starts_with("a driver whose cu"), "{what}"),
            },
            Err(error) => assert_eq!(error.code(), 106, "{error}"),
        }
    }
}

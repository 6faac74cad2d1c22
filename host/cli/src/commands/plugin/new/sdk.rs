//! Where the SDK of a new crate comes from.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

/// The SDK's manifest in a checkout of Hotseam.
const MANIFEST: &str = "abi/sdk/Cargo.toml";

/// What a new crate links.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Sdk {
    /// A checkout of Hotseam.
    Checkout(PathBuf),
    /// A published version.
    Version(&'static str),
}

impl Sdk {
    /// The checkout that was named; else the one that this program or the working directory lies in; else the version
    /// of this program.
    ///
    /// # Errors
    /// If the directory that was named has no SDK.
    pub(super) fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(dir) = named {
            let dir = dir.canonicalize().with_context(|| format!("--sdk {}", dir.display()))?;
            return match dir.join(MANIFEST).is_file() {
                true => Ok(Self::Checkout(dir)),
                false => Err(anyhow!(
                    "--sdk {}: it has no {MANIFEST}; expected a checkout of Hotseam",
                    dir.display()
                )),
            };
        }
        let around = [std::env::current_exe(), std::env::current_dir()];
        Ok(around
            .into_iter()
            .flatten()
            .find_map(|start| Self::above(&start))
            .unwrap_or(Self::Version(env!("CARGO_PKG_VERSION"))))
    }

    /// The checkout that `start` lies in.
    fn above(start: &Path) -> Option<Self> {
        let start = start.canonicalize().ok()?;
        start.ancestors().find(|dir| dir.join(MANIFEST).is_file()).map(|dir| Self::Checkout(dir.to_owned()))
    }

    /// The value of the dependency in a manifest.
    pub(super) fn dependency(&self) -> String {
        match self {
            // TOML and JSON write a string alike, paths being without control characters.
            Self::Checkout(dir) => {
                let path = serde_json::Value::from(dir.join("abi/sdk").display().to_string());
                format!("{{ path = {path} }}")
            }
            Self::Version(version) => format!("\"{version}\""),
        }
    }

    /// The lock file of the checkout; cargo takes what the new crate needs from it.
    pub(super) fn lock(&self) -> Option<String> {
        match self {
            Self::Checkout(dir) => std::fs::read_to_string(dir.join("Cargo.lock")).ok(),
            Self::Version(_) => None,
        }
    }
}

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Checkout(dir) => write!(f, "the SDK of {}", dir.display()),
            Self::Version(version) => write!(f, "hotseam-sdk {version}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_is_found_from_below_and_a_version_stands_in() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        assert_eq!(Sdk::above(&root.join("host/cli/src")), Some(Sdk::Checkout(root.clone())));
        assert_eq!(Sdk::above(Path::new("/")), None);
        assert!(Sdk::Checkout(root).lock().unwrap().contains("hotseam-sdk"));
        assert_eq!(Sdk::Version("1.2.3").dependency(), "\"1.2.3\"");
        assert_eq!(Sdk::Checkout("/a \"b\"".into()).dependency(), r#"{ path = "/a \"b\"/abi/sdk" }"#);
    }

    #[test]
    fn a_directory_without_an_sdk_is_refused_by_name() {
        let message = Sdk::find(Some(Path::new(env!("CARGO_MANIFEST_DIR")))).unwrap_err().to_string();
        assert!(message.contains("abi/sdk/Cargo.toml"), "{message}");
        assert!(Sdk::find(Some(Path::new("/no/such/directory"))).is_err());
    }
}

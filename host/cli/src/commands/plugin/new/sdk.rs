//! Where the SDK of a new crate comes from.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};

/// The SDK's manifest in a checkout of Hotseam.
const MANIFEST: &str = "abi/sdk/Cargo.toml";

/// What a new crate links: the SDK of a checkout of Hotseam.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Sdk(PathBuf);

impl Sdk {
    /// The checkout that was named, or else the one that this program or the working directory lies in.
    ///
    /// # Errors
    /// If there is none, or the directory that was named has no SDK.
    pub(super) fn find(named: Option<&Path>) -> anyhow::Result<Self> {
        if let Some(dir) = named {
            let dir = dir.canonicalize().with_context(|| format!("--sdk {}", dir.display()))?;
            return match dir.join(MANIFEST).is_file() {
                true => Ok(Self(dir)),
                false => Err(anyhow!(
                    "--sdk {}: it has no {MANIFEST}; expected a checkout of Hotseam",
                    dir.display()
                )),
            };
        }
        let around = [std::env::current_exe(), std::env::current_dir()];
        around.into_iter().flatten().find_map(|start| Self::above(&start)).ok_or_else(|| {
            anyhow!(
                "neither this program nor the working directory lies in a checkout of Hotseam; name one with --sdk DIR"
            )
        })
    }

    /// The checkout that `start` lies in.
    fn above(start: &Path) -> Option<Self> {
        let start = start.canonicalize().ok()?;
        start.ancestors().find(|dir| dir.join(MANIFEST).is_file()).map(|dir| Self(dir.to_owned()))
    }

    /// The value of the dependency in a manifest.
    pub(super) fn dependency(&self) -> String {
        // TOML and JSON write a string alike, paths being without control characters.
        let path = serde_json::Value::from(self.0.join("abi/sdk").display().to_string());
        format!("{{ path = {path} }}")
    }

    /// The lock file of the checkout; cargo takes what the new crate needs from it.
    pub(super) fn lock(&self) -> Option<String> {
        std::fs::read_to_string(self.0.join("Cargo.lock")).ok()
    }
}

impl fmt::Display for Sdk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the SDK of {}", self.0.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_checkout_is_found_from_below() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
        assert_eq!(Sdk::above(&root.join("host/cli/src")), Some(Sdk(root.clone())));
        assert_eq!(Sdk::above(Path::new("/")), None);
        assert!(Sdk(root).lock().unwrap().contains("hotseam-sdk"));
        assert_eq!(Sdk("/a \"b\"".into()).dependency(), r#"{ path = "/a \"b\"/abi/sdk" }"#);
    }

    #[test]
    fn a_directory_without_an_sdk_is_refused_by_name() {
        let message = Sdk::find(Some(Path::new(env!("CARGO_MANIFEST_DIR")))).unwrap_err().to_string();
        assert!(message.contains("abi/sdk/Cargo.toml"), "{message}");
        assert!(Sdk::find(Some(Path::new("/no/such/directory"))).is_err());
    }
}

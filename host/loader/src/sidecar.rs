//! The manifest beside a plugin file: `<file>.manifest.yaml`.
//!
//! It says what the file is before any of its code runs: its hash, and a mirror of what the binary says of itself. The
//! mirror is compared again once the binary has been opened.

use crate::error::LoadError;
use crate::manifest::{Device, Manifest, OptionSpec, Requires};
use crate::resolve;
use crate::suggest::did_you_mean;
use hotseam_abi::{PluginV1, seam};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Version of the form of the file.
const SCHEMA: u32 = 1;
/// What the name of a plugin file gets at its end.
pub(crate) const ENDING: &str = ".manifest.yaml";
/// What the name of a sidecar gets at its end.
pub(crate) const SIGNATURE_ENDING: &str = ".sig";

/// Where the sidecar of a plugin file is.
pub fn sidecar_path(library: &Path) -> PathBuf {
    with(library, ENDING)
}

/// Where the signature of a plugin file's sidecar is.
pub fn signature_path(library: &Path) -> PathBuf {
    with(&sidecar_path(library), SIGNATURE_ENDING)
}

fn with(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Parsed sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Sidecar {
    /// Name of the plugin file, without its directory.
    pub file_name: String,
    /// Bytes of the plugin file.
    pub size: u64,
    /// Hash of the plugin file, lower-case hexadecimal.
    pub sha256: String,
    /// Mirror of what the binary says.
    pub mirror: Mirror,
}

/// What a binary says of itself: the numbers of its entry and its manifest.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Mirror {
    /// Name of the seam.
    pub kind: String,
    /// Number of the contract.
    pub contract: u32,
    /// Version of the host services it needs.
    pub host_services: u32,
    /// Its manifest.
    #[serde(flatten)]
    pub manifest: Manifest,
}

/// The file as it is written, in the order of its lines.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u32,
    name: String,
    version: String,
    kind: String,
    contract: u32,
    host_services: u32,
    #[serde(rename = "library")]
    file_name: String,
    size: u64,
    sha256: String,
    description: String,
    base: Option<String>,
    #[serde(default)]
    device: Device,
    #[serde(default)]
    options: BTreeMap<String, OptionSpec>,
    #[serde(default)]
    requires: Requires,
    #[serde(default)]
    panic: Option<String>,
}

impl Mirror {
    /// Of an opened plugin.
    pub(crate) fn of(entry: &PluginV1, manifest: &Manifest) -> Self {
        let kind =
            seam::NAMES.get(entry.seam as usize).map_or_else(|| entry.seam.to_string(), |n| (*n).to_owned());
        Self {
            kind,
            contract: entry.contract,
            host_services: entry.host_services,
            manifest: manifest.clone(),
        }
    }

    /// Fails if `binary` says something else than this mirror.
    pub(crate) fn check(&self, name: &str, path: &Path, binary: &Self) -> Result<(), LoadError> {
        let value = |mirror: &Self| serde_json::to_value(mirror).unwrap_or_default();
        match difference("", &value(self), &value(binary)) {
            None => Ok(()),
            Some((key, expected, found)) => Err(LoadError::Mirror {
                name: name.to_owned(),
                path: path.to_owned(),
                what: format!("`{key}`: expected {expected}, found {found}"),
            }),
        }
    }

    /// Fails if a plugin was asked for by a name that its manifest does not have.
    pub(crate) fn check_name(&self, asked: &str, path: &Path) -> Result<(), LoadError> {
        let file = resolve::file_name(&self.manifest.name);
        if file == resolve::file_name(asked) {
            return Ok(());
        }
        Err(LoadError::Name {
            name: asked.to_owned(),
            path: path.to_owned(),
            found: self.manifest.name.clone(),
            file: file.unwrap_or_default(),
        })
    }
}

impl Sidecar {
    /// The sidecar of a file that says this of itself.
    pub fn new(file_name: String, size: u64, sha256: String, mirror: Mirror) -> Self {
        Self { file_name, size, sha256, mirror }
    }

    /// Text of the file.
    pub fn text(&self) -> String {
        let (mirror, manifest) = (&self.mirror, self.mirror.manifest.clone());
        let file = File {
            schema: SCHEMA,
            name: manifest.name,
            version: manifest.version,
            kind: mirror.kind.clone(),
            contract: mirror.contract,
            host_services: mirror.host_services,
            file_name: self.file_name.clone(),
            size: self.size,
            sha256: self.sha256.clone(),
            description: manifest.description,
            base: manifest.base,
            device: manifest.device,
            options: manifest.options,
            requires: manifest.requires,
            panic: manifest.panic,
        };
        // Strings, numbers and maps with string keys can always be written.
        serde_yaml::to_string(&file).unwrap_or_default()
    }

    /// Parses the text of the file at `path`.
    pub(crate) fn parse(name: &str, path: &Path, text: &str) -> Result<Self, LoadError> {
        let error = |place: Option<(usize, usize)>, what: String, hint: Option<String>| LoadError::Sidecar {
            name: name.to_owned(),
            place: match place {
                Some((line, column)) => format!("{}:{line}:{column}", path.display()),
                None => path.display().to_string(),
            },
            what,
            hint: hint
                .unwrap_or_else(|| "Correct the file, or write it with `hotseam plugin sign`.".to_owned()),
        };
        let file: File =
            serde_path_to_error::deserialize(serde_yaml::Deserializer::from_str(text)).map_err(|e| {
                let place = e.inner().location().map(|at| (at.line(), at.column()));
                let (message, hint) = explain(e.inner());
                let path = e.path().to_string();
                let what = if path == "." { message } else { format!("{path}: {message}") };
                error(place, what, hint)
            })?;
        if file.schema != SCHEMA {
            return Err(error(
                line_of(text, "schema"),
                format!("schema: expected {SCHEMA}, found {}", file.schema),
                None,
            ));
        }
        if !seam::NAMES.contains(&file.kind.as_str()) {
            let what = format!("kind: unknown seam `{}`", file.kind);
            let hint = did_you_mean(&file.kind, seam::NAMES.iter().copied());
            return Err(error(line_of(text, "kind"), what, Some(hint)));
        }
        if file.sha256.len() != 64
            || !file.sha256.bytes().all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        {
            let what = format!("sha256: expected 64 lower-case hexadecimal digits, found `{}`", file.sha256);
            return Err(error(line_of(text, "sha256"), what, None));
        }
        let manifest = Value::Object(Map::from_iter([
            ("name".to_owned(), file.name.into()),
            ("version".to_owned(), file.version.into()),
            ("description".to_owned(), file.description.into()),
            ("base".to_owned(), file.base.into()),
            ("device".to_owned(), file.device.name().into()),
            ("options".to_owned(), serde_json::to_value(&file.options).unwrap_or_default()),
            ("requires".to_owned(), serde_json::to_value(&file.requires).unwrap_or_default()),
            ("panic".to_owned(), file.panic.into()),
        ]));
        let manifest = Manifest::read(&manifest).map_err(|what| {
            let key = what.split(['.', ':', ' ']).next().unwrap_or_default();
            error(line_of(text, key), what.clone(), None)
        })?;
        let mirror =
            Mirror { kind: file.kind, contract: file.contract, host_services: file.host_services, manifest };
        Ok(Self { file_name: file.file_name, size: file.size, sha256: file.sha256, mirror })
    }
}

/// Message of a YAML error without its position, and a hint if it names the fields there are.
fn explain(error: &serde_yaml::Error) -> (String, Option<String>) {
    let mut message = error.to_string();
    if let Some(at) = error.location() {
        message = message.replacen(&format!(" at line {} column {}", at.line(), at.column()), "", 1);
    }
    // Every segment but the outermost is repeated by the path that is printed in front.
    if let Some(at) = message.find("unknown field `").or_else(|| message.find("missing field `")) {
        message.drain(..at);
    }
    let Some((what, known)) = message.split_once(", expected ") else { return (message, None) };
    let asked = what.split('`').nth(1).unwrap_or_default();
    let names: Vec<&str> = known.split('`').skip(1).step_by(2).collect();
    if names.is_empty() {
        return (message, None);
    }
    (what.to_owned(), Some(did_you_mean(asked, names)))
}

/// Where a key of the outermost mapping stands.
fn line_of(text: &str, key: &str) -> Option<(usize, usize)> {
    let at =
        text.lines().position(|line| line.strip_prefix(key).is_some_and(|rest| rest.starts_with(':')))?;
    Some((at + 1, 1))
}

/// First key in which two values differ, with both.
fn difference(path: &str, left: &Value, right: &Value) -> Option<(String, String, String)> {
    if let (Value::Object(a), Value::Object(b)) = (left, right) {
        let key = |key: &str| if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") };
        let missing = Value::Null;
        let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
        return keys
            .filter_map(|k| difference(&key(k), a.get(k).unwrap_or(&missing), b.get(k).unwrap_or(&missing)))
            .next();
    }
    (left != right).then(|| (path.to_owned(), left.to_string(), right.to_string()))
}

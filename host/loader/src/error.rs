//! Why a plugin was not loaded. Each kind has a fixed number, so that tools and runbooks can rely on it.

use crate::device;
use hotseam_cuda::CudaError;
use std::path::PathBuf;
use thiserror::Error;

/// A refused plugin. The text reads `E-PLUG-<number> <variant>: <what>, <expected>, <found>. <next step>`.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum LoadError {
    /// No file of that name.
    #[error("E-PLUG-100 {name}: no such plugin: {file} is not in {dirs}. {hint}")]
    NotFound {
        /// Variant asked for.
        name: String,
        /// File looked for.
        file: String,
        /// Directories searched.
        dirs: String,
        /// Nearest name, or the list of plugins there are.
        hint: String,
    },
    /// The file breaks a rule about place, type, owner or mode.
    #[error("E-PLUG-101 {name}: {path} is refused: {rule}, found {found}. {next}", path = path.display())]
    Path {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// The rule.
        rule: String,
        /// What was found instead.
        found: String,
        /// What to do.
        next: String,
    },
    /// The bytes are not the ones that were promised: by the sidecar, or by the check before the staging.
    #[error(
        "E-PLUG-102 {name}: {path}: {what} differs: expected {expected}, found {found}. Look for what wrote to it; a file \
         that is meant gets a new sidecar with `hotseam plugin sign`.", path = path.display()
    )]
    Hash {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Hash, size or file name.
        what: &'static str,
        /// What was promised.
        expected: String,
        /// What is there.
        found: String,
    },
    /// The policy asks for a signature that is not there, or one that is there does not hold.
    #[error("E-PLUG-103 {name}: {path}: {what}. {next}", path = path.display())]
    Signature {
        /// Variant asked for.
        name: String,
        /// The signature's file.
        path: PathBuf,
        /// What is wrong, with the id of the key that signed, the policy in force and the trusted keys.
        what: String,
        /// What to do.
        next: String,
    },
    /// The sidecar is missing, or is not one.
    #[error("E-PLUG-104 {name}: {place}: {what}. {hint}")]
    Sidecar {
        /// Variant asked for.
        name: String,
        /// File, and line and column where they are known.
        place: String,
        /// Field path, and what is wrong there.
        what: String,
        /// Nearest name, or what to do.
        hint: String,
    },
    /// The embedded manifest is not valid.
    #[error("E-PLUG-104 {name}: manifest of {path}: {what}. Correct the manifest and rebuild the plugin.", path = path.display())]
    Manifest {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Field path or line and column, and what is wrong there.
        what: String,
    },
    /// The plugin needs something that this machine or this build does not have.
    #[error("E-PLUG-105 {name}: needs {needed}, found {present}. {next}")]
    Requirement {
        /// Variant asked for.
        name: String,
        /// What it needs.
        needed: String,
        /// What is there.
        present: String,
        /// What to do.
        next: String,
    },
    /// A library that the plugin needs is not there, or is a stub for linking.
    #[error("E-PLUG-106 {name}: needs the library {needed}, {found}. {next}")]
    Library {
        /// Variant asked for.
        name: String,
        /// Name of the library.
        needed: String,
        /// Where it was looked for, or what was found instead.
        found: String,
        /// What to do.
        next: String,
    },
    /// An option is unknown or has a bad value.
    #[error("E-PLUG-107 {name}: option `{option}`: {what}. {hint}")]
    Option {
        /// Variant asked for.
        name: String,
        /// The option.
        option: String,
        /// What is wrong: expected and found.
        what: String,
        /// Nearest name, or the values there are.
        hint: String,
    },
    /// A file operation of the host failed.
    #[error("E-PLUG-110 {name}: cannot {what} {path}: {error}. Check the disk and the permissions.", path = path.display())]
    Io {
        /// Variant asked for, or what the operation was for.
        name: String,
        /// Operation.
        what: &'static str,
        /// The file or directory.
        path: PathBuf,
        /// Text of the system's error.
        error: String,
    },
    /// The file is not a loadable shared object for this machine.
    #[error("E-PLUG-201 {name}: {path} cannot be opened: {what}. {next}", path = path.display())]
    Open {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// The dynamic linker's text, or what is wrong with the file.
        what: String,
        /// What to do.
        next: String,
    },
    /// The file has no entry of a plugin.
    #[error(
        "E-PLUG-202 {name}: {path} is not a plugin: {what}. Export it with the SDK's macro, or define \
         `{symbol}` in C.", path = path.display(), symbol = hotseam_abi::C_ENTRY_SYMBOL
    )]
    NoEntry {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Symbols looked for, or what the entry returned.
        what: String,
    },
    /// Built with another abi_stable.
    #[error("E-PLUG-203 {name}: {path}: {what}. Rebuild the plugin with the host's SDK.", path = path.display())]
    Header {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Both versions.
        what: String,
    },
    /// A type of the contract has another layout in the plugin.
    #[error(
        "E-PLUG-204 {name}: {path}: layout differs: {what}. Rebuild the plugin with the host's SDK; whole report: \
         {report}.", path = path.display()
    )]
    Layout {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// First difference: type, expected, found.
        what: String,
        /// File with the whole report.
        report: String,
    },
    /// The entry is shorter than the host's, or lacks a function that every plugin has.
    #[error("E-PLUG-205 {name}: {path}: {what}. Rebuild the plugin with the host's SDK or header.", path = path.display())]
    Entry {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is missing: expected and found.
        what: String,
    },
    /// Serves another seam than asked for, or none.
    #[error("E-PLUG-206 {name}: wrong seam: expected {expected}, found {found}. {next}")]
    Seam {
        /// Variant asked for.
        name: String,
        /// Seam asked for, or the seams there are.
        expected: String,
        /// Seam of the plugin.
        found: String,
        /// What to do.
        next: String,
    },
    /// Built for another number of the contract.
    #[error(
        "E-PLUG-207 {name}: contract differs: expected {expected}, found {found} in {path}. Rebuild the plugin with \
         the host's SDK or header.", path = path.display()
    )]
    Contract {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// The host's number.
        expected: u32,
        /// The plugin's number.
        found: u32,
    },
    /// The embedded manifest names another variant than the file name does.
    #[error(
        "E-PLUG-208 {name}: {path} says that it is `{found}`, expected `{name}`. Name the file {file}, or use it by \
         its path.", path = path.display()
    )]
    Name {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Name in the manifest.
        found: String,
        /// File name that fits the manifest.
        file: String,
    },
    /// The binary says something else than its sidecar.
    #[error(
        "E-PLUG-208 {name}: {path} differs from its sidecar in {what}. Write the sidecar anew with `hotseam plugin \
         sign`, if the binary is the one you meant.", path = path.display()
    )]
    Mirror {
        /// Variant asked for.
        name: String,
        /// The plugin file.
        path: PathBuf,
        /// First key that differs, its value in the sidecar and that in the binary.
        what: String,
    },
    /// Needs a newer version of the host services.
    #[error("E-PLUG-209 {name}: needs host services {found}, expected at most {expected}. Use a newer host.")]
    HostServices {
        /// Variant asked for.
        name: String,
        /// The host's version.
        expected: u32,
        /// The version needed.
        found: u32,
    },
    /// The plugin took its probe child down, or did not come to an end.
    #[error("E-PLUG-301 {name}: {path}: the probe child {what}. {next}", path = path.display())]
    Crashed {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Signal, exit code or time-out, the last stage that the child began, and the end of its stderr.
        what: String,
        /// That the hash is in quarantine, and how to try again.
        next: String,
    },
    /// The hash is in quarantine.
    #[error("E-PLUG-301 {name}: {path}: {what}; {next}", path = path.display())]
    Quarantined {
        /// Variant asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// Its hash, and why it was put there.
        what: String,
        /// How to try again.
        next: String,
    },
    /// The probe child refused the plugin in an orderly way; the text is that of the child's error.
    #[error("{message}")]
    Refused {
        /// Number of the child's error.
        code: u16,
        /// Its text.
        message: String,
    },
    /// The plugin says that it cannot run here.
    #[error("E-PLUG-302 {name}: cannot run on this machine: {reason} (code {code}). Choose another variant.")]
    Probe {
        /// Variant asked for.
        name: String,
        /// The plugin's code.
        code: i32,
        /// The plugin's text.
        reason: String,
    },
    /// The CUDA device that the plugin runs on cannot be used.
    #[error("E-PLUG-{} {name}: {error}{}", device::code(error), device::next(error))]
    Device {
        /// Variant asked for.
        name: String,
        /// Why not.
        error: CudaError,
    },
    /// The plugin did not make a usable instance.
    #[error(
        "E-PLUG-303 {name}: {stage} failed: {reason}. Check the options {options}; what the plugin logged stands on the \
         host's stderr."
    )]
    Create {
        /// Variant asked for.
        name: String,
        /// `create` or `info`.
        stage: &'static str,
        /// The plugin's text and code, or what is wrong with its answer.
        reason: String,
        /// Options of the instance, as JSON.
        options: String,
    },
}

impl LoadError {
    /// That the device of variant `name` cannot be used.
    pub fn device(name: &str, error: CudaError) -> Self {
        Self::Device { name: name.to_owned(), error }
    }

    /// Number of the error, the one in its text.
    pub fn code(&self) -> u16 {
        match self {
            Self::NotFound { .. } => 100,
            Self::Path { .. } => 101,
            Self::Hash { .. } => 102,
            Self::Signature { .. } => 103,
            Self::Manifest { .. } | Self::Sidecar { .. } => 104,
            Self::Requirement { .. } => 105,
            Self::Library { .. } => 106,
            Self::Option { .. } => 107,
            Self::Io { .. } => 110,
            Self::Open { .. } => 201,
            Self::NoEntry { .. } => 202,
            Self::Header { .. } => 203,
            Self::Layout { .. } => 204,
            Self::Entry { .. } => 205,
            Self::Seam { .. } => 206,
            Self::Contract { .. } => 207,
            Self::Name { .. } | Self::Mirror { .. } => 208,
            Self::HostServices { .. } => 209,
            Self::Crashed { .. } | Self::Quarantined { .. } => 301,
            Self::Refused { code, .. } => *code,
            Self::Probe { .. } => 302,
            Self::Device { error, .. } => device::code(error),
            Self::Create { .. } => 303,
        }
    }
}

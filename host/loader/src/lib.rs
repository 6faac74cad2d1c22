//! Opens plugin files; the only crate that does.
//!
//! [`Loader::open`] resolves a variant name or path to a file, checks the file before any of its code runs (place,
//! owner, mode, sidecar with size and hash, signature by policy, what it needs, quarantine, shape of the ELF file), stages
//! a copy named by its content hash into a private directory, tries that copy in a child process ([`probe`]), opens it
//! and checks what it hands over (layout or C entry, contract number, host services, seam, manifest, sidecar, machine).
//! [`Plugin::create`] makes an [`Instance`] from options that the manifest knows; for a plugin that runs on a CUDA device it
//! opens the device first.
//!
//! Code is never unloaded; instances end when their last owner drops them.
//!
//! # Rules for plugin files
//! * The file is a regular file, not a symbolic link, directly or indirectly below a configured directory.
//! * Its owner is root or the user of this process.
//! * It is not writable by others. With [`Policy::strict`] it is not writable by the group either; without, a group
//!   writable file is accepted, because build trees are often group writable. The same goes for its directory.
//! * A sidecar ([`Sidecar`]) beside it must fit it, and must be there if the policy says so ([`Trust`]).

mod cuda;
mod device;
mod elf;
mod error;
mod instance;
mod libraries;
mod loader;
mod machine;
mod manifest;
mod open;
mod options;
mod plugin;
mod policy;
pub mod probe;
mod report;
mod resolve;
mod root;
mod services;
mod sidecar;
pub mod signature;
mod stage;
mod staging;
mod state;
mod suggest;
mod verify;

pub use device::init_device;
pub use error::LoadError;
pub use instance::{Instance, Shape};
pub use loader::{Description, Loader, LoaderConfig};
pub use manifest::{Cuda, Device, Manifest, OptionKind, OptionSpec, Requires};
pub use plugin::{Entry, Plugin};
pub use policy::{Policy, Trust};
pub use probe::Probe;
pub use resolve::{file_name, variant_name};
pub use services::{host_services, init_threads, pool, take_error, without_pool};
pub use sidecar::{Mirror, Sidecar, sidecar_path, signature_path};
pub use state::Quarantined;
pub use suggest::{did_you_mean, nearest};
pub use verify::Sidecars;

/// JSON object of options, as plugins receive it.
pub type Options = serde_json::Map<String, serde_json::Value>;

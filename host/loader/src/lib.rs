//! Opens plugin files; the only crate that does.
//!
//! [`Loader::open`] resolves a variant name or path to a file, checks the file before any of its code runs (place,
//! owner, mode, shape of the ELF file), stages a copy named by its content hash into a private directory, opens that
//! copy and checks what it hands over (layout or C entry, contract number, host services, seam, manifest, machine).
//! [`Plugin::create`] makes an [`Instance`] from options that the manifest knows.
//!
//! Code is never unloaded; instances end when their last owner drops them.
//!
//! # Rules for plugin files
//! * The file is a regular file, not a symbolic link, directly or indirectly below a configured directory.
//! * Its owner is root or the user of this process.
//! * It is not writable by others. With [`Policy::strict`] it is not writable by the group either; without, a group
//!   writable file is accepted, because build trees are often group writable.

mod elf;
mod error;
mod instance;
mod loader;
mod manifest;
mod open;
mod options;
mod plugin;
mod report;
mod resolve;
mod services;
mod stage;
mod suggest;

pub use error::LoadError;
pub use instance::Instance;
pub use loader::{Loader, Policy};
pub use manifest::{Manifest, OptionKind, OptionSpec, Requires};
pub use plugin::{Entry, Plugin};
pub use resolve::{file_name, variant_name};
pub use services::{host_services, init_threads, pool, take_error};
pub use suggest::{did_you_mean, nearest};

/// JSON object of options, as plugins receive it.
pub type Options = serde_json::Map<String, serde_json::Value>;

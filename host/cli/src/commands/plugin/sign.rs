//! `hotseam plugin sign`.

use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use hotseam_loader::signature::{SecretKey, public_path};
use hotseam_loader::{Sidecar, Sidecars, sidecar_path, signature_path};
use serde::Serialize;

use super::files;
use crate::args::{Format, PluginSignArgs};
use crate::failure::Failure;
use crate::terminal;

/// What was written for one plugin.
#[derive(Serialize)]
struct Written {
    name: String,
    sha256: String,
    sidecar: String,
    /// Absent without a key.
    signature: Option<String>,
    key: Option<String>,
}

/// Writes sidecars, and signatures if there is a key.
pub(super) fn run(args: &PluginSignArgs) -> Result<u8, Failure> {
    let loader = files::loader(&args.files)?;
    // All plugins are looked at before anything is written.
    let found = args
        .plugins
        .iter()
        .map(|name| loader.describe(name, Sidecars::Ignore).map_err(Failure::usage))
        .collect::<Result<Vec<_>, _>>()?;
    let key = match (&args.key, &args.new_key) {
        (Some(path), _) => Some(SecretKey::read(path).map_err(Failure::usage)?),
        (None, Some(path)) => {
            let key = SecretKey::create(path).map_err(Failure::usage)?;
            terminal::talk(&format!("public key {}, id {}", public_path(path).display(), key.public().id()));
            Some(key)
        }
        (None, None) => None,
    };
    let mut written = Vec::new();
    for plugin in found {
        let library = plugin.path.file_name().and_then(|n| n.to_str()).ok_or_else(|| {
            Failure::usage(anyhow!(
                "{}: the file's name is not UTF-8, which a sidecar is",
                plugin.path.display()
            ))
        })?;
        let name = plugin.mirror.manifest.name.clone();
        let text = Sidecar::new(library.to_owned(), plugin.size, plugin.sha256.clone(), plugin.mirror).text();
        let (sidecar, signature) = (sidecar_path(&plugin.path), signature_path(&plugin.path));
        // A signature never stands beside a sidecar that it was not made for.
        match std::fs::remove_file(&signature) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(error).with_context(|| format!("cannot remove {}", signature.display()))?;
            }
            _ => {}
        }
        replace(&sidecar, &text)?;
        if let Some(key) = &key {
            replace(&signature, &key.sign(text.as_bytes()))?;
        }
        written.push(Written {
            name,
            sha256: plugin.sha256,
            sidecar: sidecar.display().to_string(),
            signature: key.as_ref().map(|_| signature.display().to_string()),
            key: key.as_ref().map(|key| key.public().id()),
        });
    }
    match args.format {
        Format::Json => terminal::json(&written)?,
        Format::Text => {
            let files = written.iter().flat_map(|w| [Some(&w.sidecar), w.signature.as_ref()]).flatten();
            terminal::data(&files.map(|file| format!("{file}\n")).collect::<String>())?;
        }
    }
    Ok(0)
}

/// Writes a file whole, or not at all.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    let partial = path.with_extension("partial");
    let write = || {
        let mut file = std::fs::File::create(&partial)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&partial, path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

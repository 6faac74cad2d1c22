//! New generations are held against the truth before a swap; the verdicts are remembered.

use super::policy::CheckDepth;
use crate::digest::Digest;
use crate::error::SlotsError;
use crate::generation::Generation;
use crate::geometry::Geometry;
use hotseam_conformance::{DeviceMemory, Level, Report, Subject};
use hotseam_loader::{Instance, LoadError};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

/// Runs the conformance cases of every op that the variant itself serves; ops of its base are the base's matter.
///
/// They run on an instance of their own: those of `generation` may be in use, and a transport that is registered anew
/// would go on to write into the regions of the cases.
///
/// # Errors
/// [`LoadError::Create`] if the plugin makes no second instance, [`LoadError::Device`] if its device has no room for the
/// cases.
pub fn check_conformance(generation: &Generation, level: Level) -> Result<Report, LoadError> {
    let known = &generation.instance;
    let instance = known.plugin().create(known.options(), known.shape())?;
    let entry = instance.plugin().entry();
    let variant = generation.spec.to_string();
    let memory = device_memory(&instance)?;
    Ok(hotseam_conformance::check(
        &Subject {
            variant: &variant,
            seam: entry.seam,
            this: instance.this(),
            attention: entry.attention,
            indexer: entry.indexer,
            moe: entry.moe,
            mhc: entry.mhc,
            kv_transport: entry.kv_transport,
            info: *instance.info(),
            device: memory.as_ref(),
            host: hotseam_loader::host_services(),
            take_error: hotseam_loader::take_error,
        },
        level,
    ))
}

/// Memory for cases on the device of an instance; `None` if it runs on the CPU.
///
/// # Errors
/// [`LoadError::Device`] if the device has not so much, or fails.
pub fn device_memory(instance: &Instance) -> Result<Option<DeviceMemory>, LoadError> {
    let memory = instance.device().map(|device| DeviceMemory::new(device.clone())).transpose();
    memory.map_err(|error| LoadError::device(instance.plugin().name(), error))
}

/// What the conformance cases said of a generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Cases that ran.
    pub cases: usize,
    /// The first case that failed, in words; `None` if all passed.
    pub failure: Option<String>,
}

/// Remembered verdicts, by hash of code and options, shapes of the model, and depth. With a directory they outlast the
/// process.
#[derive(Debug, Default)]
pub struct Verdicts {
    dir: Option<PathBuf>,
    known: Mutex<HashMap<String, Verdict>>,
}

impl Verdicts {
    /// Verdicts that are kept in files below `dir`, or only in memory.
    pub fn new(dir: Option<PathBuf>) -> Self {
        Self { dir, known: Mutex::default() }
    }

    /// The verdict on a generation and whether it was remembered. If it was not, its cases run here, on this thread alone.
    ///
    /// A failed verdict is remembered too. A plugin that makes no instance for the check has none.
    ///
    /// # Errors
    /// [`SlotsError::Load`] if the plugin makes no second instance.
    pub fn of(
        &self,
        generation: &Generation,
        geometry: &Geometry,
        depth: CheckDepth,
    ) -> Result<(Verdict, bool), SlotsError> {
        let level = match depth {
            CheckDepth::Off => return Ok((Verdict { cases: 0, failure: None }, true)),
            CheckDepth::Quick => Level::Quick,
            CheckDepth::Full => Level::Full,
        };
        let key = key(generation, geometry, level);
        if let Some(known) = self.recall(&key) {
            return Ok((known, true));
        }
        let report = hotseam_loader::without_pool(|| check_conformance(generation, level))?;
        let failure = report.failures().next().map(ToString::to_string);
        let verdict = Verdict { cases: report.cases.len(), failure };
        self.remember(key, &verdict);
        Ok((verdict, false))
    }

    fn recall(&self, key: &str) -> Option<Verdict> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(verdict) = known.get(key) {
            return Some(verdict.clone());
        }
        let bytes = std::fs::read(self.dir.as_ref()?.join(format!("{key}.json"))).ok()?;
        // A file that cannot be read is a verdict that is not there.
        let verdict: Verdict = serde_json::from_slice(&bytes).ok()?;
        known.insert(key.to_owned(), verdict.clone());
        Some(verdict)
    }

    fn remember(&self, key: String, verdict: &Verdict) {
        if let Some(dir) = &self.dir {
            let write = || -> std::io::Result<()> {
                std::fs::create_dir_all(dir)?;
                let file = dir.join(format!("{key}.json"));
                let part = dir.join(format!("{key}.part-{}", std::process::id()));
                std::fs::write(&part, serde_json::to_vec_pretty(verdict)?)?;
                std::fs::rename(part, file)
            };
            if let Err(error) = write() {
                tracing::warn!(%error, dir = %dir.display(), "a conformance verdict was not kept on disk");
            }
        }
        self.known.lock().unwrap_or_else(PoisonError::into_inner).insert(key, verdict.clone());
    }
}

/// What a verdict depends on: code and options, dimensions of the model's entries, depth, and this host.
fn key(generation: &Generation, geometry: &Geometry, level: Level) -> String {
    let shapes = format!("{} {} {}", geometry.head_dim, geometry.index_head_dim, geometry.rope_dim);
    let depth = format!("{level:?} {}", env!("CARGO_PKG_VERSION"));
    Digest::of([generation.hash.as_str(), &shapes, &depth]).to_string()
}

//! Checkpoints that tests change before they read them.

// Each test program uses its part of this file.
#![allow(dead_code)]

use std::fs;
use std::path::{Path, PathBuf};

use hotseam_checkpoint::random::{NamedTensor, Preset, write};
use hotseam_checkpoint::{Checkpoint, CheckpointError, read};
use safetensors::SafeTensors;
use serde_json::Value;
use tempfile::TempDir;

/// Files of a checkpoint: change its parts, then write and read it.
pub(crate) struct Files {
    pub(crate) dir: TempDir,
    pub(crate) config: Value,
    pub(crate) tensors: Vec<NamedTensor>,
}

impl Files {
    /// The smallest random model, bf16.
    pub(crate) fn tiny() -> Self {
        Self::of(Preset::Tiny)
    }

    /// A random model, bf16.
    pub(crate) fn of(preset: Preset) -> Self {
        Self { dir: TempDir::new().unwrap(), config: preset.config_json(), tensors: preset.tensors() }
    }

    /// The golden with every storage format: FP8, MXFP4 in layer 0, NVFP4 in layer 1.
    pub(crate) fn formats() -> Self {
        let dir = formats_dir();
        let bytes = fs::read(dir.join("model.safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let tensors = file.iter().map(|(name, view)| NamedTensor {
            name: name.to_owned(),
            dtype: view.dtype(),
            shape: view.shape().to_vec(),
            data: view.data().to_vec(),
        });
        let mut tensors: Vec<_> = tensors.collect();
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let config = fs::read_to_string(dir.join("config.json")).unwrap();
        Self { dir: TempDir::new().unwrap(), config: serde_json::from_str(&config).unwrap(), tensors }
    }

    pub(crate) fn tensor(&mut self, name: &str) -> &mut NamedTensor {
        self.tensors.iter_mut().find(|t| t.name == name).unwrap()
    }

    pub(crate) fn remove(&mut self, name: &str) -> NamedTensor {
        let at = self.tensors.iter().position(|t| t.name == name).unwrap();
        self.tensors.remove(at)
    }

    pub(crate) fn write(&self) {
        write(self.dir.path(), &self.config, &self.tensors, 2).unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn shard(&self, number: usize) -> PathBuf {
        self.file(&format!("model-{number:05}-of-00002.safetensors"))
    }

    /// Reads what is on disk now.
    pub(crate) fn read(&self) -> Result<Checkpoint, CheckpointError> {
        read(self.dir.path(), |_, _| ())
    }

    /// Writes, then reads; the reading must fail.
    pub(crate) fn fails(&self) -> CheckpointError {
        self.write();
        self.read().unwrap_err()
    }

    /// Changes the text of a file.
    pub(crate) fn edit(&self, name: &str, change: impl Fn(String) -> String) {
        let text = fs::read_to_string(self.file(name)).unwrap();
        fs::write(self.file(name), change(text)).unwrap();
    }
}

/// Directory of the golden with every storage format.
pub(crate) fn formats_dir() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/goldens/formats")
}

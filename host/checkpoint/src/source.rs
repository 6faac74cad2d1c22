//! Hands out tensors by name, checked, and knows at the end which were not asked for.

use std::collections::HashSet;

use hotseam_model::{DType, Tensor, TensorError};
use safetensors::Dtype;

use crate::error::CheckpointError;
use crate::quantisation::Quantisation;
use crate::scan::{self, Admit, Job};
use crate::shards::{Entry, Shards};

/// What to do about an element type that a tensor cannot have.
const PLAIN: &str =
    "only projections are quantised, this tensor is read as bf16 or f32: fetch the shard again";

/// Tensors of multi-token prediction; this build decodes one token at a time.
const MTP: &str = "mtp.";

pub(crate) struct Source<'a> {
    pub(crate) shards: Shards,
    pub(crate) quantisation: Quantisation,
    /// Tensors of codes to look through at the end.
    pub(crate) jobs: Vec<Job>,
    /// Scales of activations that were met.
    pub(crate) input_scales: usize,
    used: HashSet<String>,
    done: usize,
    total: usize,
    progress: &'a dyn Fn(usize, usize),
}

impl<'a> Source<'a> {
    pub(crate) fn new(
        shards: Shards,
        quantisation: Quantisation,
        progress: &'a dyn Fn(usize, usize),
    ) -> Self {
        let total = shards.tensors.keys().filter(|name| !name.starts_with(MTP)).count();
        let (jobs, used) = (Vec::new(), HashSet::new());
        Self { shards, quantisation, jobs, input_scales: 0, used, done: 0, total, progress }
    }

    /// A matrix of bf16 or f32 values, as on disk, shared with the map.
    pub(crate) fn values(&mut self, name: &str, shape: [usize; 2]) -> Result<Tensor, CheckpointError> {
        let entry = self.find(name, &shape)?;
        let dtype = float(name, entry)?;
        let tensor = self.region(name, entry, dtype)?;
        self.done(name);
        Ok(tensor)
    }

    /// A small tensor, as f32; every value must be finite.
    pub(crate) fn small(&mut self, name: &str, shape: &[usize]) -> Result<Tensor, CheckpointError> {
        let entry = self.find(name, shape)?;
        let dtype = float(name, entry)?;
        let stored = self.region(name, entry, dtype)?;
        let tensor = match dtype {
            DType::F32 => stored,
            _ => {
                Tensor::from_f32(shape.to_vec(), &stored.to_f32_vec()).map_err(|e| misfit(name, entry, &e))?
            }
        };
        if let Some(index) = tensor.f32().iter().position(|v| !v.is_finite()) {
            let found = tensor.f32()[index].to_string();
            return Err(value(name, index, "a finite number".to_owned(), found));
        }
        self.done(name);
        Ok(tensor)
    }

    /// A table of indices `0..limit`, as i32.
    pub(crate) fn table(
        &mut self,
        name: &str,
        shape: [usize; 2],
        limit: usize,
    ) -> Result<Tensor, CheckpointError> {
        let entry = self.find(name, &shape)?;
        let width = match entry.dtype {
            Dtype::I64 => 8,
            Dtype::I32 => 4,
            _ => {
                return Err(dtype(name, "I64 or I32", entry, "the table has the wrong type, fetch it again"));
            }
        };
        let shard = (*self.shards.bytes[entry.shard]).as_ref();
        let mut values = Vec::with_capacity(entry.len / width);
        for (index, bytes) in shard[entry.offset..entry.offset + entry.len].chunks_exact(width).enumerate() {
            let mut wide = [0; 8];
            wide[..width].copy_from_slice(bytes);
            let id = if width == 8 {
                i64::from_le_bytes(wide)
            } else {
                i64::from(i32::from_le_bytes([wide[0], wide[1], wide[2], wide[3]]))
            };
            match i32::try_from(id) {
                Ok(small) if small >= 0 && (small as usize) < limit => values.push(small),
                _ => return Err(value(name, index, format!("0 to {}", limit - 1), id.to_string())),
            }
        }
        let tensor = Tensor::from_i32(entry.shape.clone(), &values).map_err(|e| misfit(name, entry, &e))?;
        self.done(name);
        Ok(tensor)
    }

    /// Refuses what was not asked for and codes that are no numbers; returns notes on what is skipped on purpose.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, CheckpointError> {
        let unused: Vec<&String> =
            self.shards.tensors.keys().filter(|name| !self.used.contains(*name)).collect();
        let mtp = unused.iter().filter(|name| name.starts_with(MTP)).count();
        if let Some(name) = unused.iter().find(|name| !name.starts_with(MTP)) {
            return Err(CheckpointError::ExtraTensor { name: (*name).clone(), count: unused.len() - mtp });
        }
        let jobs = std::mem::take(&mut self.jobs);
        scan::run(&jobs, || self.tick())?;
        let mut notes = Vec::new();
        if mtp > 0 {
            notes.push(format!("{mtp} tensors of multi-token prediction (`mtp.*`) are not used"));
        }
        if self.input_scales > 0 {
            let count = self.input_scales;
            notes.push(format!(
                "{count} scales of activations (`input_scale`) are not used: activations stay bf16 or f32"
            ));
        }
        Ok(notes)
    }

    /// The tensor of a name.
    pub(crate) fn entry(&self, name: &str) -> Result<&Entry, CheckpointError> {
        self.shards.tensors.get(name).ok_or_else(|| {
            let hint = self
                .shards
                .tensors
                .keys()
                .filter(|other| !self.used.contains(*other))
                .map(|other| (strsim::jaro_winkler(other, name), other))
                .filter(|(score, _)| *score > 0.95)
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, other)| other.clone());
            CheckpointError::MissingTensor { name: name.to_owned(), hint }
        })
    }

    /// The tensor of a name, which must have `shape`.
    pub(crate) fn find(&self, name: &str, shape: &[usize]) -> Result<&Entry, CheckpointError> {
        let entry = self.entry(name)?;
        if entry.shape != shape {
            return Err(CheckpointError::Shape {
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: entry.shape.clone(),
            });
        }
        Ok(entry)
    }

    /// The bytes of a tensor in its own shape.
    pub(crate) fn region(&self, name: &str, entry: &Entry, dtype: DType) -> Result<Tensor, CheckpointError> {
        self.region_as(name, entry, dtype, entry.shape.clone())
    }

    /// The bytes of a tensor in another shape of the same size.
    pub(crate) fn region_as(
        &self,
        name: &str,
        entry: &Entry,
        dtype: DType,
        shape: Vec<usize>,
    ) -> Result<Tensor, CheckpointError> {
        let owner = self.shards.bytes[entry.shard].clone();
        Tensor::from_region(dtype, shape, owner, entry.offset).map_err(|e| misfit(name, entry, &e))
    }

    /// Counts a tensor that was read whole.
    pub(crate) fn done(&mut self, name: &str) {
        self.used.insert(name.to_owned());
        self.tick();
    }

    /// Keeps a tensor of codes to look through at the end, when it counts as done.
    pub(crate) fn later(&mut self, name: &str, tensor: &Tensor, admit: Admit) {
        self.used.insert(name.to_owned());
        self.jobs.push(Job { name: name.to_owned(), tensor: tensor.clone(), admit });
    }

    fn tick(&mut self) {
        self.done += 1;
        (self.progress)(self.done, self.total.max(self.done));
    }
}

fn float(name: &str, entry: &Entry) -> Result<DType, CheckpointError> {
    match entry.dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::BF16 => Ok(DType::Bf16),
        _ => Err(dtype(name, "BF16 or F32", entry, PLAIN)),
    }
}

pub(crate) fn dtype(
    name: &str,
    expected: &'static str,
    entry: &Entry,
    advice: &'static str,
) -> CheckpointError {
    CheckpointError::DType { name: name.to_owned(), expected, found: entry.dtype.to_string(), advice }
}

pub(crate) fn value(name: &str, index: usize, expected: String, found: String) -> CheckpointError {
    CheckpointError::Value { name: name.to_owned(), index, expected, found }
}

/// A tensor whose bytes do not fit its shape; the header check refuses such shards before.
fn misfit(name: &str, entry: &Entry, error: &TensorError) -> CheckpointError {
    CheckpointError::Value {
        name: name.to_owned(),
        index: 0,
        expected: format!("{} bytes", entry.len),
        found: error.to_string(),
    }
}

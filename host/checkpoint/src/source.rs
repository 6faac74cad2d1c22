//! Hands out tensors by name, checked, and knows at the end which were not asked for.

use std::collections::HashSet;

use hotseam_model::{DType, Matrix, Tensor, TensorError};
use safetensors::Dtype;

use crate::error::CheckpointError;
use crate::shards::{Entry, Shards};

/// What to do about an element type that is only stored, not computed with.
const CONVERT: &str = "this build reads bf16 and f32 weights (and integer token tables): convert FP8 and FP4 checkpoints \
                       to bf16 first";

/// Tensors of multi-token prediction; this build decodes one token at a time.
const MTP: &str = "mtp.";

pub(crate) struct Source<'a> {
    shards: Shards,
    used: HashSet<String>,
    total: usize,
    progress: &'a dyn Fn(usize, usize),
}

impl<'a> Source<'a> {
    pub(crate) fn new(shards: Shards, progress: &'a dyn Fn(usize, usize)) -> Self {
        let total = shards.tensors.keys().filter(|name| !name.starts_with(MTP)).count();
        Self { shards, used: HashSet::new(), total, progress }
    }

    /// A matrix in its format on disk, shared with the map.
    pub(crate) fn matrix(&mut self, name: &str, shape: [usize; 2]) -> Result<Matrix, CheckpointError> {
        let data = self.values(name, shape)?;
        Matrix::dense(data).map_err(|e| CheckpointError::Matrix { name: name.to_owned(), source: e })
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

    /// Refuses what was not asked for; returns notes on what is skipped on purpose.
    pub(crate) fn finish(self) -> Result<Vec<String>, CheckpointError> {
        let unused: Vec<&String> =
            self.shards.tensors.keys().filter(|name| !self.used.contains(*name)).collect();
        let mtp = unused.iter().filter(|name| name.starts_with(MTP)).count();
        if let Some(name) = unused.iter().find(|name| !name.starts_with(MTP)) {
            return Err(CheckpointError::ExtraTensor { name: (*name).clone(), count: unused.len() - mtp });
        }
        let note = format!("{mtp} tensors of multi-token prediction (`mtp.*`) are not used");
        Ok(if mtp == 0 { Vec::new() } else { vec![note] })
    }

    fn find(&self, name: &str, shape: &[usize]) -> Result<&Entry, CheckpointError> {
        let Some(entry) = self.shards.tensors.get(name) else {
            let hint = self
                .shards
                .tensors
                .keys()
                .filter(|other| !self.used.contains(*other))
                .map(|other| (strsim::jaro_winkler(other, name), other))
                .filter(|(score, _)| *score > 0.95)
                .max_by(|a, b| a.0.total_cmp(&b.0))
                .map(|(_, other)| other.clone());
            return Err(CheckpointError::MissingTensor { name: name.to_owned(), hint });
        };
        if entry.shape != shape {
            return Err(CheckpointError::Shape {
                name: name.to_owned(),
                expected: shape.to_vec(),
                found: entry.shape.clone(),
            });
        }
        Ok(entry)
    }

    fn region(&self, name: &str, entry: &Entry, dtype: DType) -> Result<Tensor, CheckpointError> {
        let owner = self.shards.bytes[entry.shard].clone();
        Tensor::from_region(dtype, entry.shape.clone(), owner, entry.offset)
            .map_err(|e| misfit(name, entry, &e))
    }

    fn done(&mut self, name: &str) {
        self.used.insert(name.to_owned());
        (self.progress)(self.used.len(), self.total.max(self.used.len()));
    }
}

fn float(name: &str, entry: &Entry) -> Result<DType, CheckpointError> {
    match entry.dtype {
        Dtype::F32 => Ok(DType::F32),
        Dtype::BF16 => Ok(DType::Bf16),
        _ => Err(dtype(name, "BF16 or F32", entry, CONVERT)),
    }
}

fn dtype(name: &str, expected: &'static str, entry: &Entry, advice: &'static str) -> CheckpointError {
    CheckpointError::DType { name: name.to_owned(), expected, found: entry.dtype.to_string(), advice }
}

fn value(name: &str, index: usize, expected: String, found: String) -> CheckpointError {
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

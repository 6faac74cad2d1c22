//! One call in one file: all that it read, what it wrote, and what ran it, so that the call can be made again elsewhere.
//!
//! The file is a safetensors file: tensors and tables by the names of the contract's fields, numbers and provenance as
//! JSON in its metadata, under [`META`]. Pools hold only the pages that the rows read, state only its rows in use, rope
//! tables only the positions in use, experts only those that were chosen. A hash covers all of it.

mod check;
mod error;
mod fields;
mod read;
mod replay;
#[cfg(test)]
mod tests;
mod write;

pub use error::CaptureError;
pub use replay::{OutputJudgement, Replay};

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use hotseam_abi::{CONTRACT, dtype};
use hotseam_engine::Engine;
use hotseam_engine::observe::{Args, Call, Observer, Scratch};
use hotseam_slots::{CallError, CellId, Op, Seam};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use sha2::{Digest, Sha256};

use crate::EvidenceError;
use crate::compare::{Workload, observed};
use write::{Stored, Writer};

/// Key of the metadata in the file.
pub const META: &str = "hotseam.capture";
/// Version of the format.
const FORMAT: u32 = 1;
/// Before the name of an output as the variant left it.
const OUTPUT: &str = "output.";

/// What a capture says of itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Meta {
    /// Version of the format.
    pub format: u32,
    /// Contract of the host that wrote it.
    pub contract: u32,
    /// Cell of the call.
    pub cell: CellId,
    /// Class of the layer, by number in the contract.
    pub layer_class: u32,
    /// Phase, by number in the contract.
    pub phase: u32,
    /// Which call of the cell, from 0.
    pub call: u64,
    /// Rows.
    pub rows: usize,
    /// Variant that ran, and hash of its code and options.
    pub variant: String,
    /// Hash of its code and options.
    pub hash: String,
    /// What it takes over from the host.
    pub capabilities: u64,
    /// Numbers of the arguments.
    pub numbers: Map<String, Value>,
    /// Over the numbers above and all tensors, by name.
    pub sha256: String,
}

/// A captured call in memory.
#[derive(Debug, Clone)]
pub struct Capture {
    /// What it is.
    pub meta: Meta,
    tensors: Vec<Stored>,
}

impl Capture {
    /// Stores a call, and its outputs after it ran.
    fn of(call: &Call<'_>, number: u64) -> Result<Self, CaptureError> {
        let device = |error: &dyn std::fmt::Display| CaptureError::Device { why: error.to_string() };
        let host = call.on_host().map_err(|error| device(&error))?;
        // SAFETY: inputs of a call that is looked at, which outlive the scratch.
        let scratch = unsafe { Scratch::on_host(host.args(), None) };
        let mut writer = Writer::default();
        // The scratch has the small pools and states; what is read there is what the call itself reads.
        match scratch.args() {
            Args::Store(a) => fields::store(&mut writer, &mut a.clone())?,
            Args::Compress(a) => fields::compress(&mut writer, &mut a.clone())?,
            Args::Core(a) => fields::core(&mut writer, &mut a.clone())?,
            Args::Select(a) => fields::select(&mut writer, &mut a.clone())?,
            Args::Route(a) => fields::route(&mut writer, &mut a.clone())?,
            Args::Experts(a) => fields::experts(&mut writer, &mut a.clone())?,
            Args::Pre(a) => fields::pre(&mut writer, &mut a.clone())?,
            Args::Post(a) => fields::post(&mut writer, &mut a.clone())?,
            Args::Head(a) => fields::head(&mut writer, &mut a.clone())?,
        }
        let meta = Meta {
            format: FORMAT,
            contract: CONTRACT,
            cell: call.cell,
            layer_class: call.ctx.layer_class,
            phase: call.ctx.phase,
            call: number,
            rows: call.rows,
            variant: call.generation.spec.to_string(),
            hash: call.generation.hash.clone(),
            capabilities: call.generation.instance.info().capabilities,
            numbers: std::mem::take(&mut writer.numbers),
            sha256: String::new(),
        };
        Ok(Self { meta, tensors: writer.tensors })
    }

    /// Adds what the call left in its outputs.
    ///
    /// # Errors
    /// [`CaptureError::Device`].
    fn ran(&mut self, call: &Call<'_>) -> Result<(), CaptureError> {
        let outputs = call.places().and_then(|places| Ok((places, call.outputs()?)));
        let (places, outputs) = outputs.map_err(|error| CaptureError::Device { why: error.to_string() })?;
        for (place, bytes) in places.iter().zip(outputs) {
            let shape = vec![place.items.len(), place.item_bytes];
            self.tensors.push(Stored {
                name: format!("{OUTPUT}{}", place.name),
                dtype: dtype::U8,
                shape,
                bytes,
            });
        }
        self.tensors.sort_by(|a, b| a.name.cmp(&b.name));
        self.meta.sha256 = self.hash();
        Ok(())
    }

    fn hash(&self) -> String {
        let mut sha = Sha256::new();
        let blank = Meta { sha256: String::new(), ..self.meta.clone() };
        sha.update(serde_json::to_vec(&blank).unwrap_or_default());
        for t in &self.tensors {
            sha.update(format!("\n{} {} {:?} ", t.name, t.dtype, t.shape));
            sha.update(&t.bytes);
        }
        sha.finalize().iter().map(|b| format!("{b:02x}")).collect()
    }

    /// Bytes of all tensors.
    pub fn bytes(&self) -> usize {
        self.tensors.iter().map(|t| t.bytes.len()).sum()
    }

    /// Writes the file.
    ///
    /// # Errors
    /// [`CaptureError::Io`] and, which cannot happen for a capture of this process, [`CaptureError::Format`].
    pub fn save(&self, path: &Path) -> Result<(), CaptureError> {
        let why = |why: String| CaptureError::Format { path: path.to_owned(), why };
        let views = views(&self.tensors).map_err(why)?;
        let meta = serde_json::to_string(&self.meta).map_err(|e| why(e.to_string()))?;
        let bytes = safetensors::serialize(views, Some([(META.to_owned(), meta)].into()))
            .map_err(|e| why(e.to_string()))?;
        std::fs::write(path, bytes).map_err(|source| CaptureError::Io { path: path.to_owned(), source })
    }

    /// Reads a file and checks that it is whole. Its fields are checked by [`Capture::replay`].
    ///
    /// # Errors
    /// [`CaptureError::Io`], [`CaptureError::Format`] and [`CaptureError::Checksum`].
    pub fn load(path: &Path) -> Result<Self, CaptureError> {
        let bytes =
            std::fs::read(path).map_err(|source| CaptureError::Io { path: path.to_owned(), source })?;
        let why = |why: String| CaptureError::Format { path: path.to_owned(), why };
        let (_, header) = SafeTensors::read_metadata(&bytes).map_err(|e| why(e.to_string()))?;
        let meta = header.metadata().as_ref().and_then(|m| m.get(META));
        let meta = meta.ok_or_else(|| why(format!("its metadata has no `{META}`")))?;
        let meta: Meta = serde_json::from_str(meta).map_err(|e| why(format!("`{META}`: {e}")))?;
        if meta.format != FORMAT {
            return Err(why(format!("it has format {}, this build reads {FORMAT}", meta.format)));
        }
        if meta.contract != CONTRACT {
            return Err(why(format!("it is of contract {}, this build has {CONTRACT}", meta.contract)));
        }
        let file = SafeTensors::deserialize(&bytes).map_err(|e| why(e.to_string()))?;
        let mut tensors = Vec::new();
        for (name, view) in file.iter() {
            let dtype = read::number_of(view.dtype())
                .ok_or_else(|| why(format!("tensor `{name}` is {:?}", view.dtype())))?;
            let (shape, bytes) = (view.shape().to_vec(), view.data().to_vec());
            tensors.push(Stored { name: name.to_owned(), dtype, shape, bytes });
        }
        tensors.sort_by(|a, b| a.name.cmp(&b.name));
        let capture = Self { meta, tensors };
        let found = capture.hash();
        match found == capture.meta.sha256 {
            true => Ok(capture),
            false => {
                let (path, expected) = (path.to_owned(), capture.meta.sha256);
                Err(CaptureError::Checksum { path, expected, found })
            }
        }
    }

    fn tensor(&self, name: &str) -> Option<&Stored> {
        self.tensors.iter().find(|t| t.name == name)
    }

    /// Shape of the pool entries that instances of the seam are made for: values, and how many of them are roped.
    pub fn shape(&self) -> Option<(u32, u32)> {
        let pool = match self.meta.cell.op {
            Op::Store | Op::Compress => "pool",
            Op::Core => "swa",
            Op::Select => "keys",
            _ => return None,
        };
        let number = |field: &str| {
            let value = self.meta.numbers.get(&format!("{pool}.{field}")).and_then(Value::as_u64)?;
            u32::try_from(value).ok()
        };
        Some((number("dim")?, number("rope_dim")?))
    }
}

/// Tensors as the file format takes them.
fn views(tensors: &[Stored]) -> Result<Vec<(String, TensorView<'_>)>, String> {
    let mut views = Vec::with_capacity(tensors.len());
    for t in tensors {
        let kind = match t.dtype {
            dtype::F32 => Dtype::F32,
            dtype::BF16 => Dtype::BF16,
            dtype::I32 => Dtype::I32,
            dtype::E4M3 => Dtype::F8_E4M3,
            dtype::E8M0 => Dtype::F8_E8M0,
            _ => Dtype::U8,
        };
        let view = TensorView::new(kind, t.shape.clone(), &t.bytes).map_err(|e| e.to_string())?;
        views.push((t.name.clone(), view));
    }
    Ok(views)
}

/// Captures call number `number` of `cell` in a request that `assignment` serves. The request goes on to its end.
///
/// # Errors
/// [`EvidenceError::Assignment`], [`EvidenceError::Submit`], [`EvidenceError::Baseline`], and
/// [`EvidenceError::Capture`] if there is no such call or it cannot be stored.
pub fn capture(
    engine: &Engine,
    assignment: &str,
    cell: CellId,
    number: u64,
    workload: &Workload,
) -> Result<Capture, EvidenceError> {
    let snapshot = crate::compare::snapshot(engine, assignment)?;
    let known = |view: hotseam_slots::CellView<'_>| view.cell == cell && cell.seam != Seam::KvTransport;
    if !snapshot.cells().any(known) {
        return Err(EvidenceError::Cell { cell: cell.to_string() });
    }
    let taker = Arc::new(Mutex::new(Taker { cell, wanted: number, calls: 0, taken: None }));
    observed(engine, assignment, workload, Box::new(Arc::clone(&taker)))?;
    let mut taker = taker.lock().unwrap_or_else(PoisonError::into_inner);
    match taker.taken.take() {
        Some(taken) => Ok(taken?),
        None => {
            let cell = cell.to_string();
            Err(CaptureError::NoCall { cell, calls: taker.calls, wanted: number }.into())
        }
    }
}

struct Taker {
    cell: CellId,
    wanted: u64,
    calls: u64,
    taken: Option<Result<Capture, CaptureError>>,
}

impl Observer for Taker {
    fn call(&mut self, call: &Call<'_>) -> Result<(), CallError> {
        if call.cell != self.cell {
            return call.run();
        }
        self.calls += 1;
        if self.calls != self.wanted + 1 {
            return call.run();
        }
        let capture = Capture::of(call, self.wanted);
        let result = call.run();
        self.taken = Some(match (capture, &result) {
            (Ok(mut capture), Ok(())) => capture.ran(call).map(|()| capture),
            (capture, _) => capture,
        });
        result
    }
}

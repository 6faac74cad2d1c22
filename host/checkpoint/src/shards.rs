//! Finds, maps and lists the shards of a checkpoint.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensorError, SafeTensors};
use serde_json::Value;

use crate::error::CheckpointError;

const INDEX: &str = "model.safetensors.index.json";
const SINGLE: &str = "model.safetensors";

/// Longest JSON file that is read; the index of the largest known checkpoint has a few megabytes.
const MAX_TEXT: u64 = 256 << 20;

/// Shared bytes of a shard: a mapped file, or memory.
pub(crate) type Bytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// A tensor in a shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name in the file.
    pub name: String,
    /// Element type, as safetensors spells it: `BF16`, `F32`, `F8_E4M3`, ...
    pub dtype: String,
    /// Sizes, outermost first.
    pub shape: Vec<usize>,
    /// Size of the data in bytes.
    pub bytes: usize,
    /// File name of the shard.
    pub shard: String,
}

/// Where a tensor's data is. The header of its shard was checked: data and shape agree and lie in the file.
pub(crate) struct Entry {
    pub(crate) dtype: Dtype,
    pub(crate) shape: Vec<usize>,
    pub(crate) shard: usize,
    /// Byte offset in the shard.
    pub(crate) offset: usize,
    pub(crate) len: usize,
}

/// All tensors of a checkpoint.
pub(crate) struct Shards {
    pub(crate) names: Vec<String>,
    pub(crate) bytes: Vec<Bytes>,
    pub(crate) tensors: BTreeMap<String, Entry>,
}

impl Shards {
    /// Maps the shards of a directory.
    pub(crate) fn open(dir: &Path) -> Result<Self, CheckpointError> {
        let index = dir.join(INDEX);
        let mut shards = Self { names: Vec::new(), bytes: Vec::new(), tensors: BTreeMap::new() };
        if !index.exists() {
            let single = dir.join(SINGLE);
            if !single.exists() {
                return Err(CheckpointError::NoWeights { dir: dir.to_owned() });
            }
            shards.add(SINGLE, &single, map(&single)?)?;
            return Ok(shards);
        }
        let map_of = read_index(&index)?;
        let mut by_shard: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for (tensor, shard) in &map_of {
            by_shard.entry(shard).or_default().push(tensor);
        }
        for (shard, tensors) in by_shard {
            let path = dir.join(shard);
            if !path.exists() {
                let example = tensors[0].to_owned();
                return Err(CheckpointError::MissingShard { path, tensors: tensors.len(), example });
            }
            shards.add(shard, &path, map(&path)?)?;
        }
        shards.check_index(&index, &map_of)?;
        Ok(shards)
    }

    /// Shards that are in memory already; used by the random models.
    pub(crate) fn from_memory(files: Vec<(String, Vec<u8>)>) -> Result<Self, CheckpointError> {
        let mut shards = Self { names: Vec::new(), bytes: Vec::new(), tensors: BTreeMap::new() };
        for (name, bytes) in files {
            shards.add(&name, Path::new(&name), Arc::new(bytes))?;
        }
        Ok(shards)
    }

    fn add(&mut self, name: &str, path: &Path, bytes: Bytes) -> Result<(), CheckpointError> {
        let damaged =
            |e: SafeTensorError| CheckpointError::Shard { path: path.to_owned(), reason: explain(&e) };
        let (header, metadata) = SafeTensors::read_metadata((*bytes).as_ref()).map_err(damaged)?;
        let data = 8 + header; // an 8-byte length precedes the header
        let shard = self.names.len();
        for (tensor, info) in metadata.tensors() {
            if let Some(other) = self.tensors.get(&tensor) {
                return Err(CheckpointError::DuplicateTensor {
                    name: tensor,
                    first: self.names[other.shard].clone(),
                    second: name.to_owned(),
                });
            }
            let (start, end) = info.data_offsets;
            let entry = Entry {
                dtype: info.dtype,
                shape: info.shape.clone(),
                shard,
                offset: data + start,
                len: end - start,
            };
            self.tensors.insert(tensor, entry);
        }
        self.names.push(name.to_owned());
        self.bytes.push(bytes);
        Ok(())
    }

    /// The index and the headers must tell the same.
    fn check_index(&self, path: &Path, index: &HashMap<String, String>) -> Result<(), CheckpointError> {
        for (name, shard) in index {
            let found = self.tensors.get(name).map(|e| &self.names[e.shard]);
            if found != Some(shard) {
                let found = found.map_or("in no shard".to_owned(), |s| format!("in {s}"));
                let reason = format!("it puts tensor `{name}` in {shard}, but the tensor is {found}");
                return Err(CheckpointError::Malformed { path: path.to_owned(), reason });
            }
        }
        match self.tensors.iter().find(|(name, _)| !index.contains_key(*name)) {
            Some((name, entry)) => {
                let reason = format!("tensor `{name}` of {} is not in it", self.names[entry.shard]);
                Err(CheckpointError::Malformed { path: path.to_owned(), reason })
            }
            None => Ok(()),
        }
    }

    pub(crate) fn list(&self) -> Vec<TensorInfo> {
        let info = |(name, e): (&String, &Entry)| TensorInfo {
            name: name.clone(),
            dtype: e.dtype.to_string(),
            shape: e.shape.clone(),
            bytes: e.len,
            shard: self.names[e.shard].clone(),
        };
        self.tensors.iter().map(info).collect()
    }
}

/// From the index of a directory, if it has one: bytes of all tensors, and how many tensors are of multi-token prediction.
pub(crate) fn index_totals(dir: &Path) -> Result<Option<(u64, usize)>, CheckpointError> {
    let path = dir.join(INDEX);
    if !path.exists() {
        return Ok(None);
    }
    let names = read_index(&path)?;
    let malformed =
        |e: serde_json::Error| CheckpointError::Malformed { path: path.clone(), reason: e.to_string() };
    let value: Value = serde_json::from_str(&read_text(&path)?).map_err(malformed)?;
    let total = value.pointer("/metadata/total_size").and_then(Value::as_u64);
    Ok(total.map(|total| (total, names.keys().filter(|name| name.starts_with("mtp.")).count())))
}

/// Reads a text file of bounded size.
pub(crate) fn read_text(path: &Path) -> Result<String, CheckpointError> {
    let fail = |source| CheckpointError::Io { path: path.to_owned(), source };
    let mut text = String::new();
    let file = open_regular(path).map_err(fail)?;
    file.take(MAX_TEXT + 1).read_to_string(&mut text).map_err(fail)?;
    if text.len() as u64 > MAX_TEXT {
        let reason = format!("more than {MAX_TEXT} bytes of JSON");
        return Err(CheckpointError::Malformed { path: path.to_owned(), reason });
    }
    Ok(text)
}

/// Opens a file; directories, pipes and devices, which could block or have no length, are refused.
fn open_regular(path: &Path) -> io::Result<File> {
    if !path.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    File::open(path)
}

fn map(path: &Path) -> Result<Bytes, CheckpointError> {
    let fail = |source| CheckpointError::Io { path: path.to_owned(), source };
    let file = open_regular(path).map_err(fail)?;
    // SAFETY: the map is read-only, and the crate documentation asks that no program changes a shard while it is mapped.
    let map = unsafe { Mmap::map(&file) }.map_err(fail)?;
    Ok(Arc::new(map))
}

/// Tensor name to shard file name.
fn read_index(path: &Path) -> Result<HashMap<String, String>, CheckpointError> {
    let malformed = |reason: String| CheckpointError::Malformed { path: path.to_owned(), reason };
    let text = read_text(path)?;
    let value: Value = serde_json::from_str(&text).map_err(|e| malformed(e.to_string()))?;
    let Some(map) = value.get("weight_map").and_then(Value::as_object) else {
        return Err(malformed("expected an object `weight_map`, found none".to_owned()));
    };
    let mut index = HashMap::with_capacity(map.len());
    for (tensor, shard) in map {
        // A bare file name: an index must not lead out of its directory.
        let name = shard.as_str().filter(|s| PathBuf::from(s).file_name().is_some_and(|n| n == *s));
        let Some(name) = name else {
            return Err(malformed(format!("weight_map[\"{tensor}\"]: expected a file name, found {shard}")));
        };
        index.insert(tensor.clone(), name.to_owned());
    }
    if index.is_empty() {
        return Err(malformed("`weight_map` is empty".to_owned()));
    }
    Ok(index)
}

/// A header error in words; the library's own are terse.
fn explain(error: &SafeTensorError) -> String {
    use SafeTensorError as E;
    match error {
        E::HeaderTooSmall => "it has fewer than 8 bytes".to_owned(),
        E::HeaderTooLarge => "its header claims more than 100 MB".to_owned(),
        E::InvalidHeaderLength => "its header claims more bytes than the file has (truncated?)".to_owned(),
        E::InvalidHeader(e) => format!("its header is not UTF-8: {e}"),
        E::InvalidHeaderDeserialization(e) => format!("its header is not what safetensors allows: {e}"),
        E::InvalidOffset(name) => format!("the data offsets of tensor `{name}` overlap or leave a gap"),
        E::TensorInvalidInfo => "a tensor's data offsets do not fit its shape and element type".to_owned(),
        E::MetadataIncompleteBuffer => {
            "its data is shorter or longer than the header says (truncated?)".to_owned()
        }
        E::ValidationOverflow => "a tensor's shape overflows".to_owned(),
        other => other.to_string(),
    }
}

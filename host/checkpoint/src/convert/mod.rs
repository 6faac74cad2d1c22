//! Writes a checkpoint in another storage form.
//!
//! The source is checked whole before anything is written, and the result before it gets its name. One matrix at a time is
//! in memory as f32 values; everything else is copied from the map.

mod class;
mod form;
mod measure;
mod work;
mod writer;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use hotseam_model::{Format, Matrix};
use serde::Serialize;
use serde_json::{Map, Value, json};

pub use class::Class;
pub use form::Form;
pub use measure::Figures;

pub(crate) use class::{module, role};
pub(crate) use form::tensors;
pub(crate) use work::stored;

use crate::error::CheckpointError;
use crate::quantisation::Quantisation;
use crate::quantise::{amax, global_scale, quantise};
use crate::shards::{self, Shards};
use crate::source::{Source, value};
use measure::Sums;
use work::{Piece, What};
use writer::Writer;

/// Largest shard that is written, in bytes of data, as published checkpoints have.
pub const SHARD: usize = 4 << 30;

/// Beginnings of the names of files that go along unchanged.
const ALONG: [&str; 8] = [
    "tokenizer",
    "special_tokens",
    "added_tokens",
    "vocab",
    "merges",
    "chat_template",
    "generation_config",
    "LICENSE",
];

/// How to convert.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Form of the result.
    pub form: Form,
    /// Largest shard, in bytes of data; [`SHARD`] as a rule. A matrix larger than that has a shard of its own.
    pub shard: usize,
    /// Threads to use; at least 1.
    pub threads: usize,
}

/// What a conversion did.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// Matrices that changed their format, by class and formats.
    pub changes: Vec<Change>,
    /// Tensors that were copied as they are.
    pub copied_tensors: usize,
    /// Bytes of tensors in the source.
    pub bytes_before: u64,
    /// Bytes of tensors in the result.
    pub bytes_after: u64,
    /// Files written, by name.
    pub files: Vec<String>,
    /// What the reader should know, one sentence each.
    pub notes: Vec<String>,
}

/// Matrices of one class that went from one format to another.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Class of the tensors.
    pub class: &'static str,
    /// Format in the source.
    pub from: &'static str,
    /// Format in the result.
    pub to: &'static str,
    /// Whether both formats are quantised: the error of the result adds to that of the source.
    pub double_quantisation: bool,
    /// Matrices.
    pub matrices: usize,
    /// Values in them.
    pub values: u64,
    /// Distance of the result from the source.
    #[serde(flatten)]
    pub figures: Figures,
}

/// Reads the checkpoint in `from` and writes it to the directory `to`, which must not exist. `progress(done, total)` counts
/// tensors or matrices.
///
/// # Errors
/// [`CheckpointError`]: `to` exists, the source does not pass [`crate::read`], a matrix does not fit the form, or a file
/// cannot be written. After an error in writing, what is there stays in a directory beside `to` that ends in `.partial`.
pub fn convert(
    from: &Path,
    to: &Path,
    options: &Options,
    mut progress: impl FnMut(usize, usize),
) -> Result<Report, CheckpointError> {
    let partial = partial_of(to);
    if let Some(path) = [to, &partial].into_iter().find(|path| path.symlink_metadata().is_ok()) {
        return Err(CheckpointError::Exists { path: path.to_owned() });
    }
    let mut notes = crate::read(from, |_, _| ())?.notes;
    let path = from.join("config.json");
    let config: Value = serde_json::from_str(&shards::read_text(&path)?)
        .map_err(|e| CheckpointError::Malformed { path, reason: e.to_string() })?;
    let source = Shards::open(from)?;
    let pieces = work::plan(&source, options.form)?;
    let bytes_before = source.tensors.values().map(|e| e.len as u64).sum();

    let write_error = |path: &Path| {
        let path = path.to_owned();
        move |source| CheckpointError::Write { path, source }
    };
    fs::create_dir_all(&partial).map_err(write_error(&partial))?;
    let cut = writer::cut(&pieces, options.shard);
    let mut state = Converter {
        source: Source::new(source, Quantisation::default(), &|_, _| ()),
        options,
        factors: HashMap::new(),
        sums: BTreeMap::new(),
    };
    let mut weight_map = Map::new();
    let mut copied_tensors = 0;
    let mut done = 0;
    for shard in &cut {
        let pieces = &pieces[shard.pieces.clone()];
        let tensors = || pieces.iter().flat_map(|piece| &piece.out);
        let mut writer = Writer::create(&partial.join(&shard.name), tensors())?;
        for piece in pieces {
            state.run(piece, &mut writer)?;
            copied_tensors += if matches!(piece.what, What::Copy) { piece.out.len() } else { 0 };
            done += 1;
            progress(done, cut.last().map_or(0, |last| last.pieces.end));
        }
        writer.finish()?;
        weight_map.extend(tensors().map(|t| (t.name.clone(), json!(shard.name))));
    }
    let bytes_after: u64 = pieces.iter().flat_map(|p| &p.out).map(|t| t.bytes as u64).sum();
    let index = json!({ "metadata": { "total_size": bytes_after }, "weight_map": weight_map });
    let mut files: Vec<String> = cut.iter().map(|shard| shard.name.clone()).collect();
    for (name, value) in
        [("model.safetensors.index.json", index), ("config.json", options.form.config(&config))]
    {
        let path = partial.join(name);
        fs::write(&path, format!("{value:#}\n")).map_err(write_error(&path))?;
        files.push(name.to_owned());
    }
    files.extend(copy_along(from, &partial)?);
    crate::read(&partial, |_, _| ())?;
    fs::rename(&partial, to).map_err(write_error(to))?;

    let changes = state.changes();
    notes.extend(double_quantisation(&changes));
    Ok(Report { changes, copied_tensors, bytes_before, bytes_after, files, notes })
}

/// Where the result is until it is whole.
fn partial_of(to: &Path) -> PathBuf {
    let mut name = to.file_name().unwrap_or_default().to_owned();
    name.push(".partial");
    to.with_file_name(name)
}

/// Copies tokenizer and the like; returns their names.
fn copy_along(from: &Path, to: &Path) -> Result<Vec<String>, CheckpointError> {
    let read_error = |source| CheckpointError::Io { path: from.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(from).map_err(read_error)? {
        let entry = entry.map_err(read_error)?;
        let Ok(name) = entry.file_name().into_string() else { continue };
        let wanted = ALONG.iter().any(|start| name.starts_with(start)) && entry.path().is_file();
        if wanted {
            let path = to.join(&name);
            fs::copy(entry.path(), &path).map_err(|source| CheckpointError::Write { path, source })?;
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// A sentence for each pair of quantised formats.
fn double_quantisation(changes: &[Change]) -> Vec<String> {
    let twice = changes.iter().filter(|change| change.double_quantisation);
    let text = |change: &Change| {
        let Change { class, from, to, .. } = change;
        format!(
            "double quantisation of {class}, {from} -> {to}: {from} has rounded the weights once already, and the errors \
             reported here come on top; quantising the original weights once would lose less"
        )
    };
    twice.map(text).collect()
}

struct Converter<'a> {
    source: Source<'a>,
    options: &'a Options,
    /// NVFP4 factors that gate and up projection of an expert share, by expert, while the second is to come.
    factors: HashMap<String, f32>,
    sums: BTreeMap<(Class, Format, Format), (usize, Sums)>,
}

impl Converter<'_> {
    fn run(&mut self, piece: &Piece, writer: &mut Writer) -> Result<(), CheckpointError> {
        let What::Store { module, role, shape, from, to } = &piece.what else {
            for tensor in &piece.out {
                let entry = self.source.entry(&tensor.name)?;
                let shard = (*self.source.shards.bytes[entry.shard]).as_ref();
                writer.put(&tensor.name, &shard[entry.offset..entry.offset + entry.len])?;
            }
            return Ok(());
        };
        let threads = self.options.threads;
        let matrix = self.source.matrix(module, *shape, *role)?;
        let values = measure::values(&matrix, threads);
        if let Some(index) = values.iter().position(|v| !v.is_finite()) {
            let name = format!("{module}.weight");
            return Err(value(&name, index, "a finite number".to_owned(), values[index].to_string()));
        }
        let global = if *to == Format::Nvfp4 { self.factor(module, *shape, &values)? } else { 1.0 };
        let unfit = |source| CheckpointError::Matrix { name: format!("{module}.weight"), source };
        let made = quantise(*to, &values, *shape, global, threads).map_err(unfit)?;
        let (matrices, sums) = self.sums.entry((piece.class, *from, *to)).or_default();
        *matrices += 1;
        sums.add(&Sums::of(&values, &made, threads));
        put(module, &made, writer)
    }

    /// The NVFP4 factor of a matrix. Gate and up projection of an expert share theirs: fused kernels have room for one.
    fn factor(&mut self, module: &str, shape: [usize; 2], values: &[f32]) -> Result<f32, CheckpointError> {
        let own = amax(values);
        let twin = match module.rsplit_once('.') {
            Some((expert, "w1")) => Some((expert, "w3")),
            Some((expert, "w3")) => Some((expert, "w1")),
            _ => None,
        };
        let Some((expert, other)) = twin else { return Ok(global_scale(own)) };
        if let Some(factor) = self.factors.remove(expert) {
            return Ok(factor);
        }
        let twin =
            self.source.matrix(&format!("{expert}.{other}"), shape, crate::quantisation::Role::Expert)?;
        let factor = global_scale(own.max(amax(&measure::values(&twin, self.options.threads))));
        self.factors.insert(expert.to_owned(), factor);
        Ok(factor)
    }

    fn changes(&self) -> Vec<Change> {
        let quantised = |format: Format| format.scales(1, format.group()).is_some();
        let change =
            |(&(class, from, to), (matrices, sums)): (&(Class, Format, Format), &(usize, Sums))| Change {
                class: class.name(),
                from: from.name(),
                to: to.name(),
                double_quantisation: quantised(from) && quantised(to),
                matrices: *matrices,
                values: sums.values,
                figures: sums.figures(),
            };
        self.sums.iter().map(change).collect()
    }
}

/// Writes the tensors of a matrix.
fn put(module: &str, matrix: &Matrix, writer: &mut Writer) -> Result<(), CheckpointError> {
    let names = form::layout(module, matrix.format, matrix.n, matrix.k);
    for ((name, ..), bytes) in names.into_iter().zip(form::parts(matrix)) {
        writer.put(&name, &bytes)?;
    }
    Ok(())
}

//! A captured call made again, by any variant of the seam, and judged against truth.

use std::fmt;
use std::sync::Arc;

use hotseam_abi::{PoolRef, SelectArgs, StepCtx, layout};
use hotseam_conformance::Form;
use hotseam_conformance::layouts::{Entry, EntryMut, Parts, Shape};
use hotseam_conformance::truth::layout as layouts;
use hotseam_engine::observe::{Args, Block, Scratch};
use hotseam_loader::Device;
use hotseam_slots::{CellId, Generation, Op, OwnedArgs, Phase};
use serde::Serialize;

use super::check::check;
use super::error::CaptureError;
use super::read::{Memory, Reader};
use super::{Capture, Meta, fields};
use crate::compare::judge::{Judged, judge, truth};
use crate::compare::values::{plain, pool_layout};
use crate::compare::{ChoiceError, FloatError};

/// A call out of a file, checked.
struct Loaded {
    owned: OwnedArgs,
    /// What the arguments point to.
    _memory: Memory,
}

/// One output of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutputJudgement {
    /// Name of the output.
    pub output: String,
    /// Distance from truth.
    pub error: FloatError,
    /// Error that the number formats of the op allow.
    pub floor: f64,
}

/// Result of a replay.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Replay {
    /// The call.
    pub meta: Meta,
    /// Variant that was judged.
    pub variant: String,
    /// Whether nothing is beyond the floor.
    pub passed: bool,
    /// What is wrong; empty if passed.
    pub message: String,
    /// Outputs that are numbers, held against truth on the same stored bytes.
    pub outputs: Vec<OutputJudgement>,
    /// The choice, by scores recomputed from the same stored bytes.
    pub choice: Option<ChoiceError>,
    /// The choice by exact scores, where keys or queries are quantised: how much the format itself costs.
    pub exact_choice: Option<ChoiceError>,
    /// Distance of stored entries from what an exact layout would hold, where the layout quantises.
    pub exact: Option<FloatError>,
    /// Whether the outputs are, bit for bit, those in the file; `None` if its variant failed or wrote another layout.
    pub reproduces: Option<bool>,
    /// Set if index keys had to be converted to the variant's layout.
    pub converted: Option<String>,
}

/// Loose bound of the error of a quantised layout against exact values.
fn loose(id: u32) -> Option<f64> {
    match id {
        layout::KEY_BF16 | layout::KV_BF16 => Some(1e-2),
        layout::KEY_FP8_HADAMARD | layout::KV_FP8_DS_MLA => Some(1e-1),
        layout::KEY_FP4_HADAMARD => Some(3e-1),
        _ => None,
    }
}

/// The layout that holds the same entries exactly.
fn plain_of(id: u32) -> u32 {
    match id {
        layout::KV_F32 | layout::KV_BF16 | layout::KV_FP8_DS_MLA => layout::KV_F32,
        _ => layout::KEY_F32,
    }
}

impl Capture {
    /// Makes the call again with a variant and judges it. No plugin sees a call that is not as the contract says.
    ///
    /// # Errors
    /// [`CaptureError::Field`], [`CaptureError::Call`] and [`CaptureError::Variant`]. A variant that fails is a result.
    pub fn replay(&self, generation: &Arc<Generation>) -> Result<Replay, CaptureError> {
        let loaded = self.rebuild()?;
        let cell = self.meta.cell;
        let serves = generation.seam == cell.seam && generation.serving(cell.op).is_some();
        if !serves {
            return Err(CaptureError::Variant {
                op: format!("{}.{}", cell.seam, cell.op),
                variant: generation.spec.to_string(),
                seam: cell.seam.to_string(),
            });
        }
        let device = generation.instance.plugin().manifest().device;
        if device != Device::Cpu {
            return Err(CaptureError::OtherDevice {
                variant: generation.spec.to_string(),
                device: device.name().to_owned(),
                seam: cell.seam.to_string(),
            });
        }
        let run = Run { capture: self, generation, args: loaded.owned.args() };
        run.judge().map_err(|why| CaptureError::Call { op: format!("{}.{}", cell.seam, cell.op), why })
    }

    /// Rebuilds the call and runs truth on it: what a file must survive before a plugin sees it.
    #[cfg(test)]
    pub(super) fn probe(&self) -> Result<Result<(), String>, CaptureError> {
        let loaded = self.rebuild()?;
        // SAFETY: the arguments and what they point to live to the end of this function.
        let scratch = unsafe { Scratch::on_host(loaded.owned.args(), None) };
        Ok(truth(&scratch, 0))
    }

    /// The arguments, checked.
    fn rebuild(&self) -> Result<Loaded, CaptureError> {
        let op = format!("{}.{}", self.meta.cell.seam, self.meta.cell.op);
        let call = |why: String| CaptureError::Call { op: op.clone(), why };
        let cell = self.meta.cell;
        if !cell.seam.ops().contains(&cell.op) || self.meta.phase > 2 || self.meta.layer_class > 2 {
            let Meta { phase, layer_class, .. } = self.meta;
            return Err(call(format!("there is no such op, phase {phase} or layer class {layer_class}")));
        }
        let mut reader = Reader::new(&self.tensors, &self.meta.numbers);
        let owned = build(&mut reader, cell.op)?;
        let loaded = Loaded { owned, _memory: reader.into_memory() };
        check(loaded.owned.args(), cell.seam == hotseam_slots::Seam::Indexer).map_err(call)?;
        Ok(loaded)
    }
}

/// Fills in the arguments of an op.
fn build(reader: &mut Reader<'_>, op: Op) -> Result<OwnedArgs, CaptureError> {
    /// Arguments before their fields are read: null pointers, no numbers.
    fn blank<A>() -> A {
        // SAFETY: the argument structs are plain numbers and raw pointers, for which zero bytes are a value.
        let mut args: A = unsafe { std::mem::zeroed() };
        // SAFETY: every argument struct begins with its size (contract).
        unsafe { *(&raw mut args).cast::<u32>() = size_of::<A>() as u32 };
        args
    }
    macro_rules! read {
        ($variant:ident, $walk:path) => {{
            let mut args = blank();
            $walk(reader, &mut args)?;
            Ok(OwnedArgs::$variant(Box::new(args)))
        }};
    }
    match op {
        Op::Store => read!(Store, fields::store),
        Op::Compress => read!(Compress, fields::compress),
        Op::Core => read!(Core, fields::core),
        Op::Select => read!(Select, fields::select),
        Op::Route => read!(Route, fields::route),
        Op::Experts => read!(Experts, fields::experts),
        Op::Pre => read!(Pre, fields::pre),
        Op::Post => read!(Post, fields::post),
        Op::Head => read!(Head, fields::head),
        Op::Transport => Err(super::error::field("cell", "an op that computes", "is the transport")),
    }
}

/// A pool with the entries of another in a layout, in pages without padding.
fn convert(pool: &PoolRef, id: u32) -> Result<(PoolRef, Block), String> {
    let wanted = pool_layout(pool, id)?;
    let form = |layout: u32, data: usize, scale: usize, page_bytes: usize| Form {
        layout,
        shape: Shape { dim: pool.dim as usize, rope_dim: pool.rope_dim as usize },
        parts: Parts { data, scale },
        entries_per_page: pool.entries_per_page as usize,
        page_bytes,
    };
    let (pages, size) = (pool.bytes.shape[0].max(0) as usize, pool.bytes.shape[1].max(0) as usize);
    let per_page = pool.entries_per_page as usize;
    let (from, to) = (
        form(pool.layout, pool.data_bytes as usize, pool.scale_bytes as usize, size),
        form(id, wanted.data_bytes, wanted.scale_bytes, wanted.page_bytes(per_page).next_multiple_of(4)),
    );
    // SAFETY: the pool was built by the reader with this many bytes.
    let bytes = unsafe {
        std::slice::from_raw_parts(pool.bytes.data.cast::<u8>().cast_const(), pages * from.page_bytes)
    };
    let mut block = Block::poisoned(pages * to.page_bytes);
    let mut values = vec![0f32; from.shape.dim];
    for slot in 0..pages * per_page {
        let (data, scale) = from.ranges(slot);
        let entry = Entry { data: &bytes[data], scale: &bytes[scale] };
        plain(pool.layout, from.shape.rope_dim, entry, &mut values)?;
        let (data, scale) = to.ranges(slot);
        let (head, tail) = block.bytes_mut().split_at_mut(scale.start);
        let entry = EntryMut { data: &mut head[data], scale: &mut tail[..scale.len()] };
        layouts::encode(id, to.shape.rope_dim, &values, entry).map_err(|e| e.message)?;
    }
    let mut converted = *pool;
    (converted.layout, converted.data_bytes, converted.scale_bytes) =
        (id, wanted.data_bytes as u32, wanted.scale_bytes as u32);
    converted.bytes.data = block.ptr().cast();
    converted.bytes.shape[1] = to.page_bytes as i64;
    converted.bytes.strides[0] = to.page_bytes as i64;
    Ok((converted, block))
}

struct Run<'a> {
    capture: &'a Capture,
    generation: &'a Arc<Generation>,
    args: Args<'a>,
}

impl Run<'_> {
    fn context(&self) -> StepCtx {
        let meta = &self.capture.meta;
        StepCtx {
            size: size_of::<StepCtx>() as u32,
            phase: meta.phase,
            layer: meta.cell.layer.unwrap_or(u32::MAX),
            layer_class: meta.layer_class,
            rank: 0,
            world: 1,
            step: 0,
            stream: 0,
            workspace: std::ptr::null_mut(),
            workspace_bytes: 0,
            host: hotseam_loader::host_services(),
        }
    }

    fn judge(&self) -> Result<Replay, String> {
        let meta = &self.capture.meta;
        let cell = meta.cell;
        let serving = self.generation.serving(cell.op).ok_or("no such op")?;
        let (capabilities, own) = (serving.instance.info().capabilities, serving.instance.info().layout);
        let mut replay = Replay {
            meta: meta.clone(),
            variant: self.generation.spec.to_string(),
            passed: false,
            message: String::new(),
            outputs: Vec::new(),
            choice: None,
            exact_choice: None,
            exact: None,
            reproduces: None,
            converted: None,
        };
        // Keys of another layout are converted, and then are the input of the variant and of truth alike.
        let mut changed = None;
        let mut args = self.args;
        let _keys: Option<Block>;
        if let Args::Select(a) = self.args
            && own != a.keys.layout
        {
            let (keys, block) = convert(&a.keys, own)?;
            _keys = Some(block);
            replay.converted = Some(format!("index keys from layout {} to {own}", a.keys.layout));
            args = Args::Select(changed.insert(SelectArgs { keys, ..*a }));
        }
        let written = match args {
            Args::Store(a) if a.pool.layout != own => Some(&a.pool),
            Args::Compress(a) if a.pool.layout != own => Some(&a.pool),
            _ => None,
        };
        let other = written.map(|pool| pool_layout(pool, own)).transpose()?;
        // SAFETY: the arguments and what they point to live as long as this call.
        let (got, want) = unsafe { (Scratch::on_host(args, other), Scratch::on_host(args, other)) };
        if let Err(error) = self.generation.invoke(cell, &self.context(), got.args()) {
            replay.message = format!("it failed: {}", error.message);
            return Ok(replay);
        }
        let failed = |error: &dyn fmt::Display| error.to_string();
        if let Some(stray) = got.stray().map_err(|error| failed(&error))? {
            replay.message = format!("it wrote outside its {}: {}", stray.output, stray.place);
            return Ok(replay);
        }
        truth(&want, capabilities)?;
        let judged = judge(cell, &got, &want, capabilities, meta.call)?;
        replay.message = judged.alarm(None).unwrap_or_default();
        let outputs = got.outputs().map_err(|error| failed(&error))?;
        replay.reproduces = self.reproduces(&got, outputs);
        self.exactly(&mut replay, args, &got)?;
        replay.passed = replay.message.is_empty();
        let Judged { outputs, choice } = judged;
        replay.choice = choice;
        replay.outputs = outputs
            .into_iter()
            .map(|(name, error, tolerance)| OutputJudgement {
                output: name.to_owned(),
                error,
                floor: tolerance.rms,
            })
            .collect();
        Ok(replay)
    }

    /// Whether the outputs are those in the file.
    fn reproduces(&self, got: &Scratch, outputs: Vec<Vec<u8>>) -> Option<bool> {
        let mut same = true;
        for (place, bytes) in got.places().iter().zip(outputs) {
            let stored = self.capture.tensor(&format!("{}{}", super::OUTPUT, place.name))?;
            if stored.bytes.len() != bytes.len() {
                return None;
            }
            same &= stored.bytes == bytes;
        }
        Some(same)
    }

    /// The loose half of the judgement of a quantised layout: against exact values.
    fn exactly(&self, replay: &mut Replay, args: Args<'_>, got: &Scratch) -> Result<(), String> {
        let cell = self.capture.meta.cell;
        match args {
            Args::Select(a) => {
                let Some(bound) = loose(a.keys.layout) else { return Ok(()) };
                // Exact as far as the stored keys are: no rounding of queries, none of products.
                let (Args::Select(file), id) = (self.args, layout::KEY_F32) else { return Ok(()) };
                let (keys, _block) = convert(&file.keys, id)?;
                let Args::Select(chosen) = got.args() else { return Ok(()) };
                let exact = SelectArgs { keys, ids: chosen.ids, ..*a };
                let choice = crate::compare::judge::exact_choice(&exact, self.capture.meta.call, bound)?;
                if choice.gap > crate::compare::GAP_FLOORS && replay.message.is_empty() {
                    let (gap, overlap) = (choice.gap, choice.overlap() * 100.0);
                    replay.message = format!(
                        "by exact scores the choice is {gap:.1} floors of its format below the best ({overlap:.1} % of the best chosen)"
                    );
                }
                replay.exact_choice = Some(choice);
            }
            Args::Compress(a) => {
                let Args::Compress(of) = got.args() else { return Ok(()) };
                let Some(bound) = loose(of.pool.layout) else { return Ok(()) };
                let plain = pool_layout(&a.pool, plain_of(of.pool.layout))?;
                // SAFETY: as in `judge`.
                let want = unsafe { Scratch::on_host(args, Some(plain)) };
                truth(&want, 0)?;
                let judged = judge(cell, got, &want, 0, self.capture.meta.call)?;
                let error = judged.outputs.into_iter().find(|(name, ..)| *name == "pool").map(|(_, e, _)| e);
                if let Some(error) = error.as_ref().filter(|e| e.rms > bound && replay.message.is_empty()) {
                    replay.message = format!(
                        "entries are off by {:.1e} (rms) from exact ones, more than {bound:.0e}",
                        error.rms
                    );
                }
                replay.exact = error;
            }
            _ => {}
        }
        Ok(())
    }
}

impl fmt::Display for Replay {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let meta = &self.meta;
        let verdict = if self.passed { "passed" } else { "FAILED" };
        let cell: CellId = meta.cell;
        let phase = cell.phase.map_or("", Phase::name);
        writeln!(
            out,
            "{} {verdict} on {cell} (call {}, {} rows, {phase})",
            self.variant, meta.call, meta.rows
        )?;
        if !self.message.is_empty() {
            writeln!(out, "  {}", self.message)?;
        }
        for o in &self.outputs {
            let at = o.error.at.as_ref().map_or(String::new(), |at| format!(" at {}", at.coordinate));
            writeln!(
                out,
                "  {:<8} rms {:.1e} of {:.0e} allowed; worst row {:.1e}; max {:.1e}{at}",
                o.output, o.error.rms, o.floor, o.error.row, o.error.max_abs
            )?;
        }
        for (name, choice) in [("choice", &self.choice), ("by exact scores", &self.exact_choice)] {
            let Some(c) = choice else { continue };
            write!(out, "  {name}: {:.2} % of the best", c.overlap() * 100.0)?;
            if c.flipped_rows > 0 {
                write!(out, "; {} of {} rows differ, gap {:.2} floors", c.flipped_rows, c.rows, c.gap)?;
            }
            if let Some(rank) = c.best_lost {
                write!(out, ", best lost rank {}", rank + 1)?;
            }
            writeln!(out)?;
        }
        if let Some(e) = &self.exact {
            writeln!(out, "  entries against exact ones: rms {:.1e}", e.rms)?;
        }
        if let Some(what) = &self.converted {
            writeln!(out, "  converted for this variant: {what}")?;
        }
        match self.reproduces {
            Some(true) => {
                writeln!(out, "  the outputs are those in the file, bit for bit ({})", meta.variant)
            }
            Some(false) => {
                writeln!(out, "  the outputs are not those in the file, which {} wrote", meta.variant)
            }
            None => Ok(()),
        }
    }
}

//! Views of `attention.store`, `*.compress` and `attention.core`.

use super::{Pool, PoolMut, Rope, Rows};
use crate::tensor::{dim, f32s, f32s_mut, raw};
use crate::{Error, Result};
use hotseam_abi::{CompressArgs, CoreArgs, StoreArgs};

/// `attention.store`.
#[derive(Debug)]
pub struct Store<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// `[rows, dim]`.
    pub kv: &'a [f32],
    /// Dimension of an entry.
    pub dim: usize,
    /// `[dim]`.
    pub norm_weight: &'a [f32],
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// Tables.
    pub rope: Rope<'a>,
    /// `[rows]`, -1 writes nothing.
    pub out_slots: &'a [i32],
    /// Pool to write.
    pub pool: PoolMut<'a>,
}

impl<'a> Store<'a> {
    /// # Safety
    /// The arguments are as the contract says for `'a`.
    pub unsafe fn from_raw(a: &StoreArgs) -> Result<Self> {
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let d = dim(&a.norm_weight, 0, "norm_weight")?;
            let out_slots = raw(a.out_slots, rows.len(), "out_slots")?;
            let rope = Rope::from_raw(&a.rope, d)?;
            check_positions(rows.positions, rope)?;
            Ok(Self {
                rows,
                kv: f32s(&a.kv, "kv", &[rows.len(), d])?,
                dim: d,
                norm_weight: f32s(&a.norm_weight, "norm_weight", &[d])?,
                norm_eps: a.norm_eps,
                rope,
                out_slots,
                pool: PoolMut::from_raw(&a.pool, out_slots, d, "pool")?,
            })
        }
    }
}

/// Where a compressed entry takes a token from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// A row of this batch; `ape` is still to be added to its gate.
    Row(usize),
    /// A state row; `ape` is already in its score.
    State(usize),
    /// No token: kv 0, score minus infinity.
    Absent,
}

/// `attention.compress` and `indexer.compress`.
#[derive(Debug)]
pub struct Compress<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Tokens in a group.
    pub ratio: usize,
    /// Whether an entry also takes the previous group.
    pub overlap: bool,
    /// Dimension of an entry.
    pub dim: usize,
    /// Channels of a row: `dim`, or twice that with overlap.
    pub channels: usize,
    /// `[rows, channels]`.
    pub kv: &'a [f32],
    /// `[rows, channels]`.
    pub gate: &'a [f32],
    /// `[ratio, channels]`.
    pub ape: &'a [f32],
    /// `[dim]`.
    pub norm_weight: &'a [f32],
    /// Epsilon of the norm.
    pub norm_eps: f32,
    /// Tables.
    pub rope: Rope<'a>,
    /// `[n_entries]` rope position.
    pub entry_positions: &'a [i32],
    /// `[n_entries]`.
    pub out_slots: &'a [i32],
    /// `[rows]`, -1 writes nothing.
    pub state_dst: &'a [i32],
    /// `[state_rows, 2 * channels]`. Rows that are read and rows that are written are disjoint.
    pub state: &'a mut [f32],
    /// Pool to write.
    pub pool: PoolMut<'a>,
    sources: &'a [i32],
}

impl<'a> Compress<'a> {
    /// Number of entries to write.
    pub fn n_entries(&self) -> usize {
        self.out_slots.len()
    }

    /// Sources of an entry.
    pub fn width(&self) -> usize {
        self.ratio * (1 + self.overlap as usize)
    }

    /// The `i`-th source of an entry; with overlap the first `ratio` are the previous group.
    pub fn source(&self, entry: usize, i: usize) -> Source {
        match self.sources[entry * self.width() + i] {
            row if row >= 0 => Source::Row(row as usize),
            -1 => Source::Absent,
            state => Source::State((-(state + 2)) as usize),
        }
    }

    /// # Safety
    /// The arguments are as the contract says for `'a`.
    pub unsafe fn from_raw(a: &CompressArgs) -> Result<Self> {
        let (ratio, overlap, n) = (a.ratio as usize, a.overlap != 0, a.n_entries as usize);
        if ratio == 0 {
            return Err(Error::argument("ratio is 0"));
        }
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let d = dim(&a.norm_weight, 0, "norm_weight")?;
            let channels = d * (1 + overlap as usize);
            let state_rows = dim(&a.state, 0, "state")?;
            let out_slots = raw(a.out_slots, n, "out_slots")?;
            let entry_positions = raw(a.entry_positions, n, "entry_positions")?;
            let rope = Rope::from_raw(&a.rope, d)?;
            let sources = raw(a.sources, n * ratio * (1 + overlap as usize), "sources")?;
            let state_dst = raw(a.state_dst, rows.len(), "state_dst")?;
            check_positions(entry_positions, rope)?;
            let lowest = -(state_rows as i64) - 1;
            if let Some(bad) =
                sources.iter().find(|s| i64::from(**s) >= rows.len() as i64 || i64::from(**s) < lowest)
            {
                return Err(Error::argument(format!(
                    "source {bad}: {} rows, {state_rows} state rows",
                    rows.len()
                )));
            }
            if let Some(bad) = state_dst.iter().find(|s| i64::from(**s) >= state_rows as i64) {
                return Err(Error::argument(format!("state_dst {bad} of {state_rows}")));
            }
            if let Some(bad) = out_slots.iter().find(|s| **s < 0) {
                return Err(Error::argument(format!("out_slots: entry without a slot ({bad})")));
            }
            Ok(Self {
                rows,
                ratio,
                overlap,
                dim: d,
                channels,
                kv: f32s(&a.kv, "kv", &[rows.len(), channels])?,
                gate: f32s(&a.gate, "gate", &[rows.len(), channels])?,
                ape: f32s(&a.ape, "ape", &[ratio, channels])?,
                norm_weight: f32s(&a.norm_weight, "norm_weight", &[d])?,
                norm_eps: a.norm_eps,
                rope,
                entry_positions,
                out_slots,
                state_dst,
                state: f32s_mut(&a.state, "state", &[state_rows, 2 * channels])?,
                pool: PoolMut::from_raw(&a.pool, out_slots, d, "pool")?,
                sources,
            })
        }
    }
}

/// `attention.core`.
#[derive(Debug)]
pub struct Core<'a> {
    /// The rows.
    pub rows: Rows<'a>,
    /// Query heads.
    pub heads: usize,
    /// Dimension of a head.
    pub dim: usize,
    /// `[rows, heads, dim]`.
    pub q: &'a [f32],
    /// `[heads]`.
    pub sinks: &'a [f32],
    /// Softmax scale.
    pub scale: f32,
    /// Window in tokens.
    pub window: usize,
    /// Window pool; entry number = position.
    pub swa: Pool<'a>,
    /// Compression ratio, 0 for none.
    pub ratio: usize,
    /// Compressed entries; absent when `ratio` is 0.
    pub entries: Option<Pool<'a>>,
    /// Tables.
    pub rope: Rope<'a>,
    /// `[rows, heads, dim]`.
    pub out: &'a mut [f32],
    ids: Option<&'a [i32]>,
    ids_width: usize,
}

impl<'a> Core<'a> {
    /// Window positions of a row.
    pub fn window_of(&self, row: usize) -> std::ops::Range<usize> {
        let p = self.rows.positions[row] as usize;
        (p + 1).saturating_sub(self.window)..p + 1
    }

    /// The selected entries of a row, -1 padded; `None` if the row attends all complete entries.
    pub fn ids_of(&self, row: usize) -> Option<&'a [i32]> {
        self.ids.map(|ids| &ids[row * self.ids_width..(row + 1) * self.ids_width])
    }

    /// Number of complete entries at a row.
    pub fn complete(&self, row: usize) -> usize {
        (self.rows.positions[row] as usize + 1).checked_div(self.ratio).unwrap_or(0)
    }

    /// Calls `f` with the entry number of each compressed entry that the row attends.
    pub fn for_each_entry(&self, row: usize, mut f: impl FnMut(usize)) {
        match self.ids_of(row) {
            Some(ids) => ids.iter().filter(|id| **id >= 0).for_each(|id| f(*id as usize)),
            None => (0..self.complete(row)).for_each(f),
        }
    }

    /// # Safety
    /// The arguments are as the contract says for `'a`.
    pub unsafe fn from_raw(a: &CoreArgs) -> Result<Self> {
        // SAFETY: the caller's contract.
        unsafe {
            let rows = Rows::from_raw(a.batch)?;
            let (heads, d) = (dim(&a.q, 1, "q")?, dim(&a.q, 2, "q")?);
            let n_seqs = rows.seqs.len();
            let (ratio, ids_width) = (a.ratio as usize, a.ids_width as usize);
            let entries = match ratio {
                0 => None,
                _ => Some(Pool::from_raw(&a.entries, n_seqs, d, "entries")?),
            };
            let ids = match ratio == 0 || a.ids.is_null() {
                true => None,
                false => Some(raw(a.ids, rows.len() * ids_width, "ids")?),
            };
            let rope = Rope::from_raw(&a.rope, d)?;
            check_positions(rows.positions, rope)?;
            let view = Self {
                rows,
                heads,
                dim: d,
                q: f32s(&a.q, "q", &[rows.len(), heads, d])?,
                sinks: f32s(&a.sinks, "sinks", &[heads])?,
                scale: a.scale,
                window: a.window as usize,
                swa: Pool::from_raw(&a.swa, n_seqs, d, "swa")?,
                ratio,
                entries,
                rope,
                out: f32s_mut(&a.out, "out", &[rows.len(), heads, d])?,
                ids,
                ids_width,
            };
            for row in (0..rows.len()).filter(|row| rows.positions[*row] >= 0) {
                let limit = view.complete(row) as i32;
                if let Some(bad) = view.ids_of(row).and_then(|ids| ids.iter().find(|id| **id >= limit)) {
                    return Err(Error::argument(format!("ids: entry {bad} in row {row}, which has {limit}")));
                }
            }
            Ok(view)
        }
    }
}

fn check_positions(positions: &[i32], rope: Rope<'_>) -> Result<()> {
    match positions.iter().find(|p| **p >= 0 && **p as usize >= rope.positions()) {
        Some(p) => Err(Error::argument(format!(
            "position {p} is outside the {} of the rope tables",
            rope.positions()
        ))),
        None => Ok(()),
    }
}

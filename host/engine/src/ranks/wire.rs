//! What leader and followers say to each other.

use crate::{CublasLt, Device, EngineConfig, EngineError};
use hotseam_abi::SeqSpan;
use hotseam_kv::{CompressPlan, Plan};
use hotseam_slots::{CallError, CellId, Counted, Phase, Rule};
use serde::{Deserialize, Serialize};

/// Kinds of frames. The first six go over the link for tables, the others over that for steps.
pub(super) mod kind {
    /// [`super::Hello`].
    pub(crate) const HELLO: u32 = 1;
    /// Done; nothing else to say.
    pub(crate) const DONE: u32 = 2;
    /// Not done: a text that says why.
    pub(crate) const REFUSED: u32 = 3;
    /// [`super::Build`].
    pub(crate) const BUILD: u32 = 4;
    /// Number of a table.
    pub(crate) const FORGET: u32 = 5;
    /// Number of a table; answered by [`super::Counts`].
    pub(crate) const COUNTS: u32 = 6;
    /// [`super::encode`]; answered by `DONE` or [`super::Fault`].
    pub(crate) const STEP: u32 = 7;
    /// [`super::Fault`].
    pub(crate) const FAULT: u32 = 8;
}

/// The sizes that all ranks of an engine have alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankSizes {
    /// CUDA device of the leader; `None` for the CPU. Rank `r` takes the device `r` after it, and begins again at the last one.
    pub(super) device: Option<u32>,
    /// [`EngineConfig::graphs`].
    pub(super) graphs: bool,
    /// [`EngineConfig::cublaslt`]: on every rank as on the first, whose products of whole weights must have the same bits.
    pub(super) cublaslt: CublasLt,
    /// [`EngineConfig::max_seqs`].
    pub(super) max_seqs: usize,
    /// [`EngineConfig::max_context`].
    pub(super) max_context: usize,
    /// [`EngineConfig::chunk`].
    pub(super) chunk: usize,
    /// [`EngineConfig::pages`].
    pub(super) pages: Option<usize>,
    /// [`EngineConfig::index_topk`].
    pub(super) index_topk: Option<usize>,
    /// [`EngineConfig::guard`].
    pub(super) guard: bool,
    /// [`EngineConfig::amx`].
    pub(super) amx: bool,
}

impl RankSizes {
    pub(super) fn of(c: &EngineConfig) -> Self {
        Self {
            device: match c.device {
                Device::Cpu => None,
                Device::Cuda(ordinal) => Some(ordinal),
            },
            graphs: c.graphs,
            cublaslt: c.cublaslt,
            max_seqs: c.max_seqs,
            max_context: c.max_context,
            chunk: c.chunk,
            pages: c.pages,
            index_topk: c.index_topk,
            guard: c.guard,
            amx: c.amx,
        }
    }

    /// The sizes of the engine of one rank.
    ///
    /// # Errors
    /// If it is to run on a CUDA device and there is no driver.
    pub(super) fn config(&self, rank: u32) -> Result<EngineConfig, EngineError> {
        let device = match self.device {
            None => Device::Cpu,
            Some(first) => Device::Cuda((first + rank) % (hotseam_cuda::capabilities()?.len() as u32).max(1)),
        };
        Ok(EngineConfig {
            device,
            graphs: self.graphs,
            cublaslt: self.cublaslt,
            max_seqs: self.max_seqs,
            max_context: self.max_context,
            chunk: self.chunk,
            pages: self.pages,
            index_topk: self.index_topk,
            guard: self.guard,
            amx: self.amx,
            ..EngineConfig::default()
        })
    }
}

/// The first message to a rank.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) rank: u32,
    pub(super) world: u32,
    /// [`super::RankSettings::spec`].
    pub(super) spec: String,
    pub(super) sizes: RankSizes,
    /// The name that NCCL gave the group; `None` where shared memory carries the sums.
    pub(super) nccl: Option<Vec<u8>>,
}

/// A table to build.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Build {
    pub(super) number: u64,
    pub(super) name: String,
    pub(super) rules: Vec<Rule>,
    /// What the leader's table hashes to.
    pub(super) digest: hotseam_slots::Digest,
}

/// What a rank has counted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Counts(pub(super) Vec<Counted>);

/// Why a step failed on a rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(super) enum Fault {
    /// A call failed.
    Call { cell: CellId, variant: String, code: i32, message: String },
    /// Something else did.
    Other(String),
}

impl From<CallError> for Fault {
    fn from(CallError { cell, variant, code, message }: CallError) -> Self {
        Self::Call { cell, variant, code, message }
    }
}

/// What a step is, apart from its rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepHead {
    pub(crate) number: u64,
    /// Number of its table.
    pub(crate) table: u64,
    pub(crate) phase: Phase,
    /// [`crate::forward::Step::looked_at`].
    pub(crate) looked_at: bool,
}

/// A step as it is told. The lists of the plan go as they are.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) number: u64,
    pub(super) table: u64,
    pub(super) decode: bool,
    pub(super) looked_at: bool,
    pub(super) tokens: Vec<i32>,
    pub(super) plan: Plan,
}

/// Writes a step into `frame`.
pub(super) fn encode(frame: &mut Vec<u8>, step: StepHead, tokens: &[i32], plan: &Plan) {
    frame.clear();
    let StepHead { number, table, phase, looked_at } = step;
    let flags = u64::from(phase == Phase::Decode) | u64::from(looked_at) << 1;
    for word in [number, table, flags, plan.table_width as u64] {
        frame.extend_from_slice(&word.to_le_bytes());
    }
    put(frame, plan.seqs.len(), |frame| {
        for s in &plan.seqs {
            for word in [s.row_begin, s.row_count, s.position, s.chunk] {
                frame.extend_from_slice(&word.to_le_bytes());
            }
        }
    });
    for list in lists(plan).into_iter().chain([tokens]) {
        put(frame, list.len(), |frame| list.iter().for_each(|v| frame.extend_from_slice(&v.to_le_bytes())));
    }
}

fn put(frame: &mut Vec<u8>, len: usize, write: impl FnOnce(&mut Vec<u8>)) {
    frame.extend_from_slice(&(len as u64).to_le_bytes());
    write(frame);
}

/// The i32 lists of a plan, in the order in which they are told.
fn lists(plan: &Plan) -> [&[i32]; 13] {
    let [a, b] = [&plan.c4, &plan.c128];
    [
        &plan.positions,
        &plan.row_seq,
        &plan.window_slots,
        &plan.table,
        &plan.window_table,
        &a.sources,
        &a.entry_positions,
        &a.out_slots,
        &a.state_dst,
        &b.sources,
        &b.entry_positions,
        &b.out_slots,
        &b.state_dst,
    ]
}

/// Reads a step into `told`; `None` if the frame is not one.
pub(super) fn decode(frame: &[u8], told: &mut Told) -> Option<()> {
    let mut rest = frame;
    let mut word = || take::<8>(&mut rest).map(u64::from_le_bytes);
    (told.number, told.table) = (word()?, word()?);
    let flags = word()?;
    (told.decode, told.looked_at) = (flags & 1 != 0, flags & 2 != 0);
    let plan = &mut told.plan;
    plan.table_width = usize::try_from(word()?).ok()?;
    plan.seqs.clear();
    let n = u64::from_le_bytes(take::<8>(&mut rest)?);
    for _ in 0..n {
        let mut word = || take::<4>(&mut rest).map(u32::from_le_bytes);
        let (row_begin, row_count) = (word()?, word()?);
        plan.seqs.push(SeqSpan { row_begin, row_count, position: word()?, chunk: word()? });
    }
    let Plan { positions, row_seq, window_slots, table, window_table, c4, c128, .. } = plan;
    let of = |c: &mut CompressPlan, rest: &mut &[u8]| {
        let CompressPlan { sources, entry_positions, out_slots, state_dst } = c;
        [sources, entry_positions, out_slots, state_dst].into_iter().try_for_each(|list| get(rest, list))
    };
    for list in [positions, row_seq, window_slots, table, window_table] {
        get(&mut rest, list)?;
    }
    of(c4, &mut rest)?;
    of(c128, &mut rest)?;
    get(&mut rest, &mut told.tokens)?;
    rest.is_empty().then_some(())
}

fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (first, tail) = rest.split_first_chunk::<N>()?;
    *rest = tail;
    Some(*first)
}

fn get(rest: &mut &[u8], list: &mut Vec<i32>) -> Option<()> {
    let n = usize::try_from(u64::from_le_bytes(take::<8>(rest)?)).ok()?;
    let (values, tail) = rest.split_at_checked(n.checked_mul(4)?)?;
    *rest = tail;
    list.clear();
    list.extend(values.chunks_exact(4).map(|v| i32::from_le_bytes([v[0], v[1], v[2], v[3]])));
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        let list = |from: i32, n: i32| (from..from + n).collect::<Vec<_>>();
        let compress = |from: i32| CompressPlan {
            sources: list(from, 16),
            entry_positions: list(from, 2),
            out_slots: list(-from, 2),
            state_dst: vec![-1; 3],
        };
        Plan {
            positions: list(7, 3),
            row_seq: vec![0, 0, 1],
            seqs: vec![
                SeqSpan { row_begin: 0, row_count: 2, position: 7, chunk: 1 },
                SeqSpan { row_begin: 2, row_count: 1, position: 9, chunk: 0 },
            ],
            window_slots: list(90, 3),
            c4: compress(5),
            c128: compress(50),
            table: list(0, 8),
            window_table: vec![-1; 8],
            table_width: 4,
        }
    }

    #[test]
    fn a_step_arrives_as_it_was_told() {
        let (plan, tokens) = (plan(), [3, 1, 4]);
        let mut frame = vec![1, 2, 3];
        let step = StepHead { number: 11, table: 22, phase: Phase::Decode, looked_at: false };
        encode(&mut frame, step, &tokens, &plan);
        let mut told = Told::default();
        // What an earlier step left must not show.
        told.plan.positions = vec![9; 100];
        decode(&frame, &mut told).expect("a step");
        assert_eq!((told.number, told.table, told.decode, told.looked_at), (11, 22, true, false));
        assert_eq!(told.tokens, tokens);
        assert_eq!(format!("{:?}", told.plan), format!("{plan:?}"));
    }

    #[test]
    fn a_frame_that_is_cut_or_too_long_is_no_step() {
        let mut frame = Vec::new();
        let step = StepHead { number: 1, table: 2, phase: Phase::Prefill, looked_at: true };
        encode(&mut frame, step, &[5], &plan());
        for length in 0..frame.len() {
            assert_eq!(decode(&frame[..length], &mut Told::default()), None, "{length} bytes");
        }
        frame.push(0);
        assert_eq!(decode(&frame, &mut Told::default()), None);
        let huge = [[0u8; 8]; 4].concat().into_iter().chain(u64::MAX.to_le_bytes()).collect::<Vec<_>>();
        assert_eq!(decode(&huge, &mut Told::default()), None);
    }
}

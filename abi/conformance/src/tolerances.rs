//! What an output may differ from truth, and why. One table for all variants: a kernel of reduced precision passes
//! because its error is that of its number format, a fault fails because its error is far larger.

use crate::Op;
use hotseam_abi::layout::{KEY_BF16, KEY_FP4_HADAMARD, KEY_FP8_HADAMARD, KV_BF16, KV_FP8_DS_MLA};

/// Allowed errors, relative to the root mean square of the truth over a row, head or entry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Largest error of one element.
    pub max: f64,
    /// Root mean square of the errors of all elements. Tighter than `max`: rounding errors average, faults do not.
    pub rms: f64,
    /// Why these.
    pub reason: &'static str,
}

struct Entry {
    op: Op,
    output: &'static str,
    /// Layout of the keys, 0 for every other one.
    layout: u32,
    tolerance: Tolerance,
}

const fn entry(op: Op, output: &'static str, layout: u32, max: f64, rms: f64, reason: &'static str) -> Entry {
    Entry { op, output, layout, tolerance: Tolerance { max, rms, reason } }
}

const BF16_STEP: &str = "one bf16 step (2^-8) of an entry's largest value, rarely";
const E4M3_STEP: &str = "one e4m3 step of an entry's largest value, rarely";

const TABLE: &[Entry] = &[
    entry(Op::AttentionStore, "pool", KV_BF16, 2e-2, 1e-3, BF16_STEP),
    entry(Op::AttentionStore, "pool", KV_FP8_DS_MLA, 3e-1, 1e-2, E4M3_STEP),
    entry(Op::AttentionStore, "pool", 0, 1e-5, 1e-6, "one norm and one rotation in f32"),
    entry(Op::AttentionCompress, "pool", KV_BF16, 2e-2, 1e-3, BF16_STEP),
    entry(Op::AttentionCompress, "pool", KV_FP8_DS_MLA, 3e-1, 1e-2, E4M3_STEP),
    entry(Op::AttentionCompress, "pool", 0, 1e-4, 1e-5, "softmax over 8 or 128 sources in f32"),
    entry(Op::AttentionCompress, "state", 0, 1e-6, 1e-7, "copies, and one addition in f32"),
    entry(Op::AttentionCore, "out", 0, 4e-2, 4e-3, "operands and probabilities in bf16 (2^-9 each), summed"),
    entry(Op::IndexerCompress, "pool", KEY_BF16, 2e-2, 1e-3, BF16_STEP),
    entry(Op::IndexerCompress, "pool", KEY_FP8_HADAMARD, 3e-1, 1e-2, E4M3_STEP),
    entry(
        Op::IndexerCompress,
        "pool",
        KEY_FP4_HADAMARD,
        2.0,
        5e-2,
        "one e2m1 step of an entry's largest value, rarely",
    ),
    entry(Op::IndexerCompress, "pool", 0, 1e-4, 1e-5, "softmax over 8 sources in f32"),
    entry(Op::IndexerCompress, "state", 0, 1e-6, 1e-7, "copies, and one addition in f32"),
    entry(
        Op::IndexerSelect,
        "scores",
        KEY_BF16,
        1e-1,
        5e-3,
        "query in bf16 (2^-9); signed head weights cancel",
    ),
    entry(
        Op::IndexerSelect,
        "scores",
        KEY_FP8_HADAMARD,
        1e-1,
        5e-3,
        "a query value at an e4m3 tie may round either way",
    ),
    entry(
        Op::IndexerSelect,
        "scores",
        KEY_FP4_HADAMARD,
        3e-1,
        2e-2,
        "a query value at an e2m1 tie may round either way",
    ),
    entry(Op::IndexerSelect, "scores", 0, 1e-4, 1e-5, "dot products in f32"),
    entry(Op::MoeRoute, "weights", 0, 1e-4, 1e-5, "gate product and softplus in f32"),
    entry(Op::MoeExperts, "out", 0, 1e-4, 1e-5, "three products in f32"),
    entry(
        Op::MhcPre,
        "x",
        0,
        2e-2,
        5e-3,
        "gates from a bf16 product (2^-9 a factor) over hc * hidden channels",
    ),
    entry(Op::MhcPre, "post", 0, 2e-2, 5e-3, "as x"),
    entry(Op::MhcPre, "comb", 0, 4e-2, 1e-2, "as x, carried through the exponential"),
    entry(Op::MhcPost, "out", 0, 1e-5, 1e-6, "five products a channel in f32"),
    entry(Op::MhcHead, "x", 0, 2e-2, 5e-3, "as mhc.pre"),
];

const EXACT: Tolerance = Tolerance { max: 0.0, rms: 0.0, reason: "no arithmetic" };

/// Tolerance of an output of an op whose pool has `layout`.
pub fn of(op: Op, output: &str, layout: u32) -> Tolerance {
    let row = |layout| TABLE.iter().find(|e| e.op == op && e.output == output && e.layout == layout);
    row(layout).or_else(|| row(0)).map_or(EXACT, |e| e.tolerance)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_without_a_row_of_their_own_take_the_general_one() {
        assert_eq!(of(Op::IndexerSelect, "scores", 16), of(Op::IndexerSelect, "scores", 0));
        assert!(of(Op::IndexerSelect, "scores", KEY_BF16).max > of(Op::IndexerSelect, "scores", 16).max);
        assert_eq!(of(Op::MoeRoute, "ids", 0), EXACT);
    }

    #[test]
    fn rms_is_the_tighter_bound_everywhere() {
        assert!(TABLE.iter().all(|e| e.tolerance.rms < e.tolerance.max));
    }
}

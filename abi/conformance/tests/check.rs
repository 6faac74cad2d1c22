//! Truth passes its own check, and truth with a fault does not.

mod common;

use common::{Fault, SEAMS, report};
use hotseam_abi::{layout, seam};
use hotseam_conformance::{Level, Op};
use std::time::Instant;

#[test]
fn truth_conforms_in_every_seam_and_layout() {
    for (seam, layout) in SEAMS {
        for level in [Level::Quick, Level::Full] {
            let began = Instant::now();
            let report = report(seam, layout, Fault::None, level, None);
            println!(
                "seam {seam} layout {layout} {level:?}: {} cases, {:?}",
                report.cases.len(),
                began.elapsed()
            );
            assert!(report.passed(), "{report}");
            assert!(report.batch_invariant);
            let ops = Op::ALL.into_iter().filter(|op| op.seam() == seam);
            for op in ops {
                assert!(report.cases.iter().any(|c| c.op == op), "{op} was not checked at {level:?}");
            }
        }
    }
}

#[test]
fn every_fault_is_found_and_placed() {
    let (a, i) = ((seam::ATTENTION, layout::KV_F32), seam::INDEXER);
    let planted: &[((u32, u32), Fault, Op, &str)] = &[
        (a, Fault::NoRope, Op::AttentionStore, "pool entry"),
        (a, Fault::NoWeight, Op::AttentionStore, "pool entry"),
        (a, Fault::WrongSlot, Op::AttentionStore, "which is no slot of this call"),
        (a, Fault::FarNoRope, Op::AttentionCompress, "pool entry"),
        (a, Fault::ForgetState, Op::AttentionCompress, "state written row"),
        (a, Fault::HalfScale, Op::AttentionCore, "out row"),
        (a, Fault::NoSinks, Op::AttentionCore, "out row"),
        (a, Fault::WindowOffByOne, Op::AttentionCore, "out row"),
        (a, Fault::Unstable, Op::AttentionCore, "two equal calls differ"),
        ((seam::ATTENTION, layout::KV_FP8_DS_MLA), Fault::NoRope, Op::AttentionStore, "pool entry"),
        ((seam::ATTENTION, layout::KV_BF16), Fault::NoWeight, Op::AttentionStore, "pool entry"),
        ((seam::ATTENTION, layout::KV_FP8_DS_MLA), Fault::FarNoRope, Op::AttentionCompress, "pool entry"),
        ((seam::ATTENTION, layout::KV_FP8_DS_MLA), Fault::WindowOffByOne, Op::AttentionCore, "out row"),
        ((i, layout::KEY_F32), Fault::NoRope, Op::IndexerCompress, "pool entry"),
        ((i, layout::KEY_FP4_HADAMARD), Fault::NoRope, Op::IndexerCompress, "pool entry"),
        ((i, layout::KEY_FP4_HADAMARD), Fault::FirstPage, Op::IndexerSelect, "ids row"),
        ((i, layout::KEY_BF16), Fault::ForgetState, Op::IndexerCompress, "state written row"),
        ((i, layout::KEY_FP8_HADAMARD), Fault::FarNoRope, Op::IndexerCompress, "pool entry"),
        ((i, layout::KEY_F32), Fault::PlusOne, Op::IndexerSelect, "ids row"),
        ((i, layout::KEY_FP8_HADAMARD), Fault::FirstPage, Op::IndexerSelect, "ids row"),
        ((i, layout::KEY_BF16), Fault::ZeroIsFloor, Op::IndexerSelect, "entries are complete"),
        ((i, layout::KEY_BF16), Fault::NoIndexRope, Op::IndexerSelect, "row"),
        ((i, layout::KEY_F32), Fault::OneMoreEntry, Op::IndexerSelect, "0 entries are complete"),
        ((seam::MOE, 0), Fault::PlusOne, Op::MoeRoute, "ids row"),
        ((seam::MOE, 0), Fault::PlusOne, Op::MoeExperts, "out row"),
        ((seam::MOE, 0), Fault::ScaleTwice, Op::MoeRoute, "weights row"),
        ((seam::MOE, 0), Fault::ScaleTwice, Op::MoeExperts, "out row"),
        ((seam::MOE, 0), Fault::BiasInWeights, Op::MoeRoute, "weights row"),
        ((seam::MOE, 0), Fault::PaddingRouted, Op::MoeRoute, "padded row"),
        ((seam::MOE, 0), Fault::NoClamp, Op::MoeExperts, "out row"),
        ((seam::MOE, 0), Fault::WritesInput, Op::MoeExperts, "changed its input `x`"),
        ((seam::MHC, 0), Fault::CombTransposed, Op::MhcPre, "comb row"),
        ((seam::MHC, 0), Fault::CombRolled, Op::MhcPre, "comb row"),
        ((seam::MHC, 0), Fault::FiveIterations, Op::MhcPre, "comb row"),
        ((seam::MHC, 0), Fault::CombTransposed, Op::MhcPost, "out row"),
        ((seam::MHC, 0), Fault::NoWeight, Op::MhcHead, "x row"),
        ((seam::KV_TRANSPORT, 0), Fault::NextLayer, Op::KvTransport, "which went to c4 layer 4 item"),
        ((seam::KV_TRANSPORT, 0), Fault::DropsLast, Op::KvTransport, "does not hold source item"),
        ((seam::KV_TRANSPORT, 0), Fault::Silent, Op::KvTransport, "failed"),
    ];
    for ((seam, layout), fault, op, words) in planted {
        let report = report(*seam, *layout, *fault, Level::Full, Some(*op));
        let found: Vec<_> = report.failures().filter(|f| f.op == *op).collect();
        let named = found.iter().any(|f| f.message.contains(words));
        assert!(named, "{fault:?} in {op}: expected a failure with '{words}'\n{report}");
    }
}

/// What a swap runs first must see the coarse faults already.
#[test]
fn the_quick_check_finds_coarse_faults() {
    for (seam, fault) in [
        (seam::ATTENTION, Fault::NoRope),
        (seam::ATTENTION, Fault::HalfScale),
        (seam::ATTENTION, Fault::NoSinks),
        (seam::INDEXER, Fault::FirstPage),
        (seam::INDEXER, Fault::PlusOne),
        (seam::MOE, Fault::ScaleTwice),
        (seam::MHC, Fault::CombTransposed),
        (seam::KV_TRANSPORT, Fault::NextLayer),
    ] {
        let layout = SEAMS.iter().find(|(s, _)| *s == seam).unwrap().1;
        let report = report(seam, layout, fault, Level::Quick, None);
        assert!(!report.passed(), "{fault:?}: {report}");
    }
}

#[test]
fn a_refusal_or_a_panic_is_a_failed_case_with_its_message() {
    for (seam, layout) in SEAMS {
        let refused = report(seam, layout, Fault::Refuse, Level::Quick, None);
        assert!(refused.cases.iter().all(|c| !c.passed));
        assert!(refused.cases[0].message.contains("ERR_ARGUMENT: a planted refusal"), "{refused}");

        let panicked = report(seam, layout, Fault::Panic, Level::Quick, None);
        assert!(panicked.cases.iter().all(|c| !c.passed));
        assert!(panicked.cases[0].message.contains("ERR_PANIC: panicked: a planted panic"), "{panicked}");
        if seam != seam::KV_TRANSPORT {
            assert!(
                panicked.cases[1].message.contains("was not run: the instance panicked before"),
                "{panicked}"
            );
        }
    }
}

#[test]
fn a_failure_reads_well_and_serialises() {
    let report = report(seam::ATTENTION, layout::KV_F32, Fault::HalfScale, Level::Quick, None);
    let failure = report.failures().next().unwrap();
    let line = failure.to_string();
    let start =
        "attention.core case \"decode 4 seqs, positions 127 128 259 1023, heads 8x64, ratio 4\": max error ";
    assert!(line.starts_with(start), "{line}");
    assert!(line.contains(" > tolerance 4e-2 at out row 0 head 0 dim "), "{line}");
    assert!(line.contains(": got ") && line.contains(", want "), "{line}");
    let json = serde_json::to_value(&report).unwrap();
    let case = json["cases"].as_array().unwrap().iter().find(|c| c["passed"] == false).unwrap();
    assert_eq!(case["op"], "attention.core");
    assert_eq!(case["first"]["output"], "out");
    assert!(case["got"].is_number() && case["want"].is_number());
}

#[test]
fn an_unknown_layout_is_a_failure_that_names_it() {
    let report = report(seam::INDEXER, 99, Fault::None, Level::Quick, None);
    assert!(!report.passed());
    assert!(report.failures().all(|f| f.message.contains("layout 99")), "{report}");
}

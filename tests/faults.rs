//! What the planted faults do to answers: those that needles see lose recall, the others only show in KL, and variants
//! that are right show in neither.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Topology};
use hotseam_evidence::divergence::{Baseline, DECODE_TOKENS, Passage, compare};
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{self, NeedlePlan, Probe, Sweep};
use hotseam_tests::{Checkpoint, all, engine, full, root, rule};

/// KL in nats (mean of a phase, or scaled tail) above which two assignments differ: ten times what harmless variations do to
/// the embedded checkpoint, as the KL oracle has it.
const THRESHOLD: f64 = 4e-4;
const LENGTH: usize = 2048;

/// What sees a fault.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Seen {
    /// Needles are lost, and KL rises.
    Needle,
    /// KL rises; most needles are found.
    Kl,
    /// KL rises; what needles say is not tested.
    KlAtLeast,
    /// Nothing: the variant is right.
    Nowhere,
}
use Seen::{Kl, KlAtLeast, Needle, Nowhere};

/// Rules, and what sees them.
const FAULTS: &[(&[(&str, &str)], Seen)] = &[
    (&[("attention@decode", "faulty/attention{fault: half-scale}")], Needle),
    (&[("attention@prefill", "faulty/attention{fault: wrong-slot}")], Needle),
    (&[("indexer@decode", "faulty/indexer{fault: one-page}")], Needle),
    (&[("indexer@prefill", "faulty/indexer{fault: wrong-slot}")], Needle),
    (&[("moe", "faulty/moe{fault: id-off-by-one}")], Needle),
    (&[("mhc", "faulty/mhc{fault: comb-roll}")], Needle),
    (&[("kv_transport", "faulty/kv_transport{fault: next-layer}")], Needle),
    (&[("attention", "faulty/attention{fault: sinks-dropped}")], Kl),
    (&[("attention", "faulty/attention{fault: far-no-rope}")], Kl),
    (&[("moe", "faulty/moe{fault: scale-twice}")], Kl),
    (&[("mhc", "faulty/mhc{fault: comb-transposed}")], Kl),
    (&[("attention", "faulty/attention{fault: dropped-tail}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: rows-past-64}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: race}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: inverse-rope-claimed}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: neighbour-slot}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: unwritten-tail}")], KlAtLeast),
    (&[("attention", "faulty/attention{fault: split-scale}")], Nowhere),
    (&[("attention@prefill", "faulty/attention{fault: marks-entries}")], Nowhere),
    (&[("attention@decode", "faulty/attention{fault: reads-marks}")], Nowhere),
    (
        &[
            ("attention@prefill", "faulty/attention{fault: marks-entries}"),
            ("attention@decode", "faulty/attention{fault: reads-marks}"),
        ],
        KlAtLeast,
    ),
    (&[("attention", "faulty/attention{fault: rising-ids}")], Nowhere),
    (&[("indexer", "faulty/indexer{fault: tie-order}")], Nowhere),
    (
        &[
            ("attention", "faulty/attention{fault: rising-ids}"),
            ("indexer", "faulty/indexer{fault: tie-order}"),
        ],
        KlAtLeast,
    ),
    (&[("indexer", "faulty/indexer{fault: wrong-scale}")], KlAtLeast),
    (&[("indexer", "faulty/indexer{fault: rows-past-64}")], KlAtLeast),
    (&[("indexer", "faulty/indexer{fault: race}")], KlAtLeast),
    (&[("indexer@prefill", "faulty/indexer{fault: negated-keys}")], KlAtLeast),
    (&[("indexer@decode", "faulty/indexer{fault: negated-keys}")], KlAtLeast),
    (&[("indexer", "faulty/indexer{fault: negated-keys}")], Nowhere),
    (&[("moe", "faulty/moe{fault: dropped-tail}")], KlAtLeast),
    (&[("moe", "faulty/moe{fault: rows-past-64}")], KlAtLeast),
    (&[("moe", "faulty/moe{fault: race}")], KlAtLeast),
    (&[("moe", "faulty/moe{fault: scale-claimed}")], KlAtLeast),
    (&[("moe", "faulty/moe{fault: clobbered-input}")], KlAtLeast),
    (&[("moe", "faulty/moe{fault: scale-skipped}")], KlAtLeast),
    (
        &[
            ("moe.route", "faulty/moe{fault: scale-twice}"),
            ("moe.experts", "faulty/moe{fault: scale-skipped}"),
        ],
        Nowhere,
    ),
    (&[("moe", "faulty/moe{fault: folded-scale}")], Nowhere),
    (&[("mhc", "faulty/mhc{fault: post-halved}")], KlAtLeast),
    (&[("mhc", "faulty/mhc{fault: dropped-tail}")], KlAtLeast),
    (&[("mhc", "faulty/mhc{fault: rows-past-64}")], KlAtLeast),
    (&[("mhc", "faulty/mhc{fault: race}")], KlAtLeast),
    (&[("mhc", "faulty/mhc{fault: norm-claimed}")], KlAtLeast),
    (&[("mhc", "faulty/mhc{fault: reverse-sum}")], Nowhere),
    (&[("kv_transport", "faulty/kv_transport{fault: half-values}")], KlAtLeast),
    (&[("kv_transport", "faulty/kv_transport{fault: dropped-tail}")], KlAtLeast),
    (&[("kv_transport", "faulty/kv_transport{fault: race}")], KlAtLeast),
    (&[("kv_transport", "faulty/kv_transport{fault: page-size}")], KlAtLeast),
    (&[("kv_transport", "faulty/kv_transport{fault: state-dropped}")], KlAtLeast),
    (&[("kv_transport", "faulty/kv_transport{fault: late-reversed}")], Nowhere),
];

const PATCHES: &[(&str, &str)] = &[
    ("attention@decode", "attention/cpu-sm120-mma"),
    ("indexer", "indexer/cpu-sm120{keys: bf16}"),
    ("mhc", "mhc/cpu-bf16-gemm"),
    ("moe", "moe/cpu-fused-scale"),
];

struct Bench {
    engine: Engine,
    tokenizer: Tokenizer,
    probes: Vec<Probe>,
    passage: Passage,
    baseline: Baseline,
}

impl Bench {
    fn new(probes: usize) -> Self {
        let config =
            EngineConfig { max_context: 4096, topology: Topology::Paired, ..EngineConfig::default() };
        let engine = engine(Checkpoint::Nano, all("cpu-stock"), config);
        let tokenizer = Tokenizer::load(&root().join("assets/nano-v4/tokenizer.json")).unwrap();
        let files =
            ["log-school-house.txt", "time-machine.txt"].map(|f| root().join("assets/haystack").join(f));
        let haystack = Haystack::read(&tokenizer, &files).unwrap();
        let probes =
            NeedlePlan { lengths: vec![LENGTH], probes, seed: 1 }.probes(&tokenizer, &haystack).unwrap();
        let passage = Passage::new(&tokenizer, &haystack, LENGTH, DECODE_TOKENS).unwrap();
        let baseline = Baseline::capture(&engine, &passage, "live").unwrap();
        Self { engine, tokenizer, probes, passage, baseline }
    }

    /// Recalled needles and the figure that the KL oracle judges, with `rules` over the stock assignment.
    fn measure(&self, rules: &[(&str, &str)]) -> (usize, f64) {
        let mut assignment = all("cpu-stock");
        assignment.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
        self.engine.slots().define("arm", assignment).unwrap_or_else(|e| panic!("{e}"));
        let sweep = Sweep { assignment: "arm".into(), in_flight: 4, reuse_prefill: true };
        let recall = needle::run(&self.engine, &self.tokenizer, &self.probes, &sweep, |_, _| {}).unwrap();
        assert!(recall.failure().is_none(), "{rules:?}: {:?}", recall.failure());
        let report = compare(&self.engine, &self.passage, &self.baseline, "arm", THRESHOLD).unwrap();
        // Arms differ in key layout, which an assignment does not change.
        self.engine.slots().remove("arm");
        let (hits, of) = (recall.hits(), self.probes.len());
        eprintln!(
            "{rules:?}: {hits} of {of}, KL {:.1e} prefill, {:.1e} decode",
            report.prefill.mean, report.decode.mean
        );
        (hits, report.worst().0)
    }
}

#[test]
fn needles_see_some_faults_and_kl_sees_all() {
    let probes = if full() { 16 } else { 4 };
    let bench = Bench::new(probes);
    assert_eq!(bench.measure(&[]), (probes, 0.0));
    let (hits, kl) = bench.measure(PATCHES);
    assert!(hits == probes && kl < THRESHOLD, "the patches: {hits} of {probes}, KL {kl}");
    // Arms that differ in decode only share their prefill, so a short run can afford them.
    let short = |rules: &[(&str, &str)]| rules.iter().all(|rule| rule.0.ends_with("@decode"));
    for (rules, seen) in FAULTS.iter().filter(|(rules, seen)| full() || short(rules) && *seen != KlAtLeast) {
        let (hits, kl) = bench.measure(rules);
        match seen {
            Nowhere => assert!(hits == probes && kl < 1e-6, "{rules:?}: {hits} of {probes}, KL {kl}"),
            _ => assert!(kl > THRESHOLD, "{rules:?}: KL {kl}"),
        }
        match seen {
            Needle => assert!(hits * 4 <= probes * 3, "{rules:?}: {hits} of {probes}"),
            Kl => assert!(hits * 8 >= probes * 7, "{rules:?}: {hits} of {probes}"),
            KlAtLeast | Nowhere => {}
        }
    }
}

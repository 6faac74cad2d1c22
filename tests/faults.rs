//! What the planted faults do to answers: those that needles see lose recall, the others only show in KL, and the
//! patches that are right show in neither.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Engine, EngineConfig, Topology};
use hotseam_evidence::divergence::{Baseline, DECODE_TOKENS, Passage, compare};
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{self, NeedlePlan, Probe, Sweep};
use hotseam_tests::{Checkpoint, all, engine, full, root, rule};

/// KL in nats (mean of a phase, or scaled tail) above which two assignments differ; the default of `bisect.oracle`.
const THRESHOLD: f64 = 1e-2;
const LENGTH: usize = 2048;

/// Selector, variant, and whether needles see it.
const FAULTS: &[(&str, &str, bool)] = &[
    ("attention@decode", "faulty/attention{fault: half-scale}", true),
    ("attention@prefill", "faulty/attention{fault: wrong-slot}", true),
    ("indexer@decode", "faulty/indexer{fault: one-page}", true),
    ("indexer@prefill", "faulty/indexer{fault: wrong-slot}", true),
    ("moe", "faulty/moe{fault: id-off-by-one}", true),
    ("mhc", "faulty/mhc{fault: comb-roll}", true),
    ("kv_transport", "faulty/kv_transport{fault: next-layer}", true),
    ("attention", "faulty/attention{fault: sinks-dropped}", false),
    ("attention", "faulty/attention{fault: far-no-rope}", false),
    ("moe", "faulty/moe{fault: scale-twice}", false),
    ("mhc", "faulty/mhc{fault: comb-transposed}", false),
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
    for (select, variant, seen) in FAULTS.iter().filter(|f| full() || (f.2 && f.0.ends_with("@decode"))) {
        let (hits, kl) = bench.measure(&[(select, variant)]);
        assert!(kl > THRESHOLD, "{variant}: KL {kl}");
        match seen {
            true => assert!(hits * 4 <= probes * 3, "{variant}: {hits} of {probes}"),
            false => assert!(hits * 8 >= probes * 7, "{variant}: {hits} of {probes}"),
        }
    }
}

//! Seeded faults: each is planted beside patches that are right, and `hotseam bisect` must find the right set, confirm it in
//! both directions, and clear everything else with evidence.
//!
//! Every seam has a wrong scale, a dropped tail, a race, a benign difference and a broken contract; then pairs that fail only
//! together, two independent culprits, a culprit that another patch heals, and faults that show only from the third chunk
//! of a prompt on, past 64 rows, or between two pools. A default run takes some of each; `scripts/test --full` takes all.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{full, root};
use serde_json::Value;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One search at a time: each uses every core.
static TURN: Mutex<()> = Mutex::new(());

/// Rules of the bad end besides what is planted, all of them right. A plant on the same seam replaces its patch.
const PATCHES: &[(&str, &str)] = &[
    ("attention@decode", "attention/cpu-sm120-mma"),
    ("indexer", "indexer/cpu-sm120{early_exit: true, keys: f32}"),
    ("mhc", "mhc/cpu-bf16-gemm"),
    ("moe", "moe/cpu-fused-scale"),
];

/// The bar is given, so that it does not follow the noise floor of the checkpoint.
const KL: &str = "{kind: kl, tokens: 1100, threshold: 4.0e-4}";
const NEEDLE: &str = "{kind: needle, lengths: [2048], depths: 8}";

/// Phases of a culprit.
#[derive(Clone, Copy)]
enum Phase {
    /// Any.
    Any,
    /// This one, perhaps the other one too.
    Has(&'static str),
    /// This one and not the other.
    Only(&'static str),
}
use Phase::{Any, Has, Only};

/// A culprit that must be named.
#[derive(Clone, Copy)]
struct Culprit {
    seam: &'static str,
    fault: &'static str,
    phase: Phase,
}

const fn guilty(seam: &'static str, fault: &'static str, phase: Phase) -> Culprit {
    Culprit { seam, fault, phase }
}

/// A planted set.
struct Case {
    /// Part of a default run.
    quick: bool,
    kind: &'static str,
    /// Selector and fault; the seam of the selector is the plugin's.
    plants: &'static [(&'static str, &'static str)],
    oracle: &'static str,
    set: &'static [&'static str],
    /// Every culprit that must be named; nobody else may be.
    culprits: &'static [Culprit],
    /// They fail only together.
    together: bool,
}

const fn single(
    quick: bool,
    kind: &'static str,
    plants: &'static [(&'static str, &'static str)],
    culprits: &'static [Culprit],
) -> Case {
    Case { quick, kind, plants, oracle: KL, set: &[], culprits, together: false }
}

/// One fault, found by its seam, name and phase.
macro_rules! one {
    ($quick:literal, $kind:literal, $select:literal, $seam:literal, $fault:literal, $phase:expr) => {
        single($quick, $kind, &[($select, $fault)], &[guilty($seam, $fault, $phase)])
    };
}

const SINGLE: &[Case] = &[
    one!(false, "scale", "attention@decode", "attention", "half-scale", Only("decode")),
    one!(false, "scale", "indexer", "indexer", "wrong-scale", Has("prefill")),
    one!(false, "scale", "moe", "moe", "scale-twice", Any),
    one!(false, "scale", "mhc", "mhc", "post-halved", Any),
    one!(false, "scale", "kv_transport", "kv_transport", "half-values", Any),
    one!(false, "dropped tail", "attention", "attention", "dropped-tail", Any),
    Case {
        oracle: NEEDLE,
        ..one!(true, "dropped tail", "indexer@decode", "indexer", "one-page", Only("decode"))
    },
    one!(false, "dropped tail", "moe", "moe", "dropped-tail", Has("decode")),
    one!(true, "dropped tail", "mhc", "mhc", "dropped-tail", Any),
    one!(false, "dropped tail", "kv_transport", "kv_transport", "dropped-tail", Any),
    one!(false, "race", "attention", "attention", "race", Any),
    one!(false, "race", "indexer", "indexer", "race", Has("prefill")),
    one!(true, "race", "moe", "moe", "race", Any),
    one!(false, "race", "mhc", "mhc", "race", Any),
    one!(false, "race", "kv_transport", "kv_transport", "race", Any),
    one!(false, "contract", "attention", "attention", "inverse-rope-claimed", Any),
    one!(false, "contract", "indexer@prefill", "indexer", "negated-keys", Only("prefill")),
    one!(false, "contract", "indexer@decode", "indexer", "negated-keys", Only("decode")),
    one!(false, "contract", "moe", "moe", "scale-claimed", Any),
    one!(false, "contract", "mhc", "mhc", "norm-claimed", Any),
    one!(true, "contract", "kv_transport", "kv_transport", "page-size", Any),
    one!(false, "chunk 2 on", "attention", "attention", "wrong-slot", Only("prefill")),
    one!(false, "chunk 2 on", "indexer", "indexer", "wrong-slot", Only("prefill")),
    one!(true, "rows past 64", "attention", "attention", "rows-past-64", Only("prefill")),
    one!(false, "rows past 64", "indexer", "indexer", "rows-past-64", Only("prefill")),
    one!(false, "rows past 64", "moe", "moe", "rows-past-64", Only("prefill")),
    one!(false, "rows past 64", "mhc", "mhc", "rows-past-64", Only("prefill")),
    one!(false, "stray write", "attention", "attention", "neighbour-slot", Only("decode")),
    one!(false, "stray write", "moe", "moe", "clobbered-input", Any),
    one!(false, "unwritten", "attention", "attention", "unwritten-tail", Has("decode")),
    one!(false, "handoff", "kv_transport", "kv_transport", "next-layer", Any),
];

const SEVERAL: &[Case] = &[
    Case {
        together: true,
        ..single(
            true,
            "pair: writer, reader",
            &[
                ("attention@prefill:class=csa", "marks-entries"),
                ("attention@decode:class=csa", "reads-marks"),
            ],
            &[
                guilty("attention", "marks-entries", Only("prefill")),
                guilty("attention", "reads-marks", Only("decode")),
            ],
        )
    },
    Case {
        together: true,
        ..single(
            false,
            "pair: two seams",
            &[("indexer@decode", "tie-order"), ("attention@decode", "rising-ids")],
            &[
                guilty("indexer", "tie-order", Only("decode")),
                guilty("attention", "rising-ids", Only("decode")),
            ],
        )
    },
    single(
        true,
        "two independent",
        &[("attention@decode", "half-scale"), ("indexer@prefill", "wrong-slot")],
        &[
            guilty("attention", "half-scale", Only("decode")),
            guilty("indexer", "wrong-slot", Only("prefill")),
        ],
    ),
    single(
        false,
        "two independent",
        &[("mhc", "comb-roll"), ("moe", "id-off-by-one")],
        &[guilty("mhc", "comb-roll", Any), guilty("moe", "id-off-by-one", Any)],
    ),
];

/// Plants that heal one another, and the culprit beside them.
const MASKED: &[Case] = &[
    single(
        true,
        "masked",
        &[("indexer", "negated-keys"), ("moe", "dropped-tail")],
        &[guilty("moe", "dropped-tail", Has("decode"))],
    ),
    single(
        false,
        "masked",
        &[("moe.route", "scale-twice"), ("moe.experts", "scale-skipped"), ("attention@decode", "half-scale")],
        &[guilty("attention", "half-scale", Only("decode"))],
    ),
];

/// Differences that the contract allows, and a culprit beside them.
const BENIGN: &[Case] = &[
    single(
        true,
        "benign",
        &[
            ("attention", "split-scale"),
            ("indexer", "tie-order"),
            ("mhc", "reverse-sum"),
            ("kv_transport", "late-reversed"),
            ("moe@decode", "id-off-by-one"),
        ],
        &[guilty("moe", "id-off-by-one", Only("decode"))],
    ),
    single(
        false,
        "benign",
        &[("moe", "folded-scale"), ("mhc@prefill", "comb-transposed")],
        &[guilty("mhc", "comb-transposed", Only("prefill"))],
    ),
];

/// Faults that show under one configuration and not under another: (kind, selector, fault, settings without it).
const CONDITIONAL: &[(&str, &str, &str, &[&str])] = &[
    ("two chunks", "indexer", "wrong-slot", &["engine.chunk=1024"]),
    ("chunks of 64", "attention", "rows-past-64", &["engine.chunk=64"]),
    ("one pool", "kv_transport", "page-size", &["engine.topology=single"]),
];

/// Settings of every case.
fn config() -> String {
    let root = root();
    let root = root.display();
    let rules: String = PATCHES
        .iter()
        .map(|(select, variant)| format!("      - {{ select: \"{select}\", use: \"{variant}\" }}\n"))
        .collect();
    format!(
        "model: {{ path: {root}/assets/nano-v4 }}
engine: {{ max_seqs: 4, max_context: 4096, chunk: 256, topology: paired, prefix_cache_bytes: 268435456 }}
assignments:
  live:
    - {{ select: attention, use: attention/cpu-stock }}
    - {{ select: indexer, use: \"indexer/cpu-stock{{keys: f32}}\" }}
    - {{ select: moe, use: moe/cpu-stock }}
    - {{ select: mhc, use: mhc/cpu-stock }}
    - {{ select: kv_transport, use: kv_transport/local }}
  patched:
    extends: live
    rules:
{rules}needle:
  haystack: [{root}/assets/haystack/log-school-house.txt, {root}/assets/haystack/time-machine.txt]
  lengths: [2048]
  probes: 8
  seed: 1
bisect: {{ good: live, bad: patched, oracle: {KL}, budget_runs: 60 }}
"
    )
}

/// Runs a bisection; returns (exit code, report).
fn bisect(kind: &str, plants: &[(&str, &str)], oracle: &str, set: &[&str]) -> (i32, Value) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("acceptance.yaml");
    std::fs::write(&path, config()).expect("a written configuration");
    let mut command = hotseam();
    command.args(["bisect", "run"]).arg(&path).args(["--format", "json"]);
    command.args(["--set", &format!("bisect.oracle={oracle}")]);
    command.args(set.iter().flat_map(|set| ["--set", set]));
    for (select, fault) in plants {
        let seam = &select[..select.find(['@', '.', ':']).unwrap_or(select.len())];
        command.args(["--plant", &format!("{select}=faulty/{seam}{{fault: {fault}}}")]);
    }
    let start = Instant::now();
    let (code, out, err) = run(&mut command);
    let report: Value =
        serde_json::from_str(&out).unwrap_or_else(|e| panic!("{kind} {plants:?}: {e}\n{out}\n{err}"));
    println!(
        "| {kind} | {} | {} | {} | {code} | {} | {:.0} s |",
        plants.iter().map(|(select, fault)| format!("{select}: {fault}")).collect::<Vec<_>>().join(", "),
        if oracle == KL { "kl" } else { "needle" },
        report["runs"],
        culprits(&report)
            .iter()
            .map(|c| format!("{} {}", c["seam"], c["phase"]))
            .collect::<Vec<_>>()
            .join(", "),
        start.elapsed().as_secs_f64(),
    );
    (code, report)
}

fn culprits(report: &Value) -> &[Value] {
    report["culprits"].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, field: &str) -> &'a str {
    value[field].as_str().unwrap_or_default()
}

impl Culprit {
    fn is(&self, named: &Value) -> bool {
        let phase = text(named, "phase");
        let phase = match self.phase {
            Any => true,
            Has(this) => phase.contains(this),
            Only(this) => phase == this,
        };
        let variant = format!("fault: {}", self.fault);
        let variant = text(named, "variant").contains(&variant) || text(named, "change").contains(&variant);
        named["seam"] == self.seam && phase && variant
    }
}

impl Case {
    /// Runs the search and checks that exactly the culprits are named, each sufficient and necessary.
    fn verify(&self) -> Value {
        let (code, report) = bisect(self.kind, self.plants, self.oracle, self.set);
        let what = format!("{} {:?}", self.kind, self.plants);
        assert_eq!(code, 0, "{what}: {report:#}");
        let masked = |named: &Value| !named["masked"].is_null();
        let named: Vec<&Value> = culprits(&report).iter().filter(|named| !masked(named)).collect();
        for wanted in self.culprits {
            let (seam, fault) = (wanted.seam, wanted.fault);
            assert!(
                named.iter().any(|named| wanted.is(named)),
                "{what}: {seam} {fault} is not named: {named:#?}"
            );
        }
        for named in &named {
            assert!(self.culprits.iter().any(|wanted| wanted.is(named)), "{what}: blames {named:#}");
            assert!(named["sufficient"].as_u64().is_some_and(|run| run > 0), "{what}: {named:#}");
            assert!(
                named["necessary"].as_u64().is_some_and(|run| run > 0),
                "{what}: not confirmed: {named:#}"
            );
            let partners = named["interacts_with"].as_array().map_or(0, Vec::len);
            assert_eq!(
                partners,
                if self.together { self.culprits.len() - 1 } else { 0 },
                "{what}: {named:#}"
            );
        }
        self.others_are_cleared(&report);
        report
    }

    /// No change of a seam without a culprit stays open, and each is cleared with a reason.
    fn others_are_cleared(&self, report: &Value) {
        let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
        let (cleared, open) = (list("exonerated"), list("open"));
        let seams = ["attention", "indexer", "moe", "mhc", "kv_transport"];
        let blamed = |seam: &str| culprits(report).iter().any(|named| named["seam"] == seam);
        for seam in seams.iter().filter(|seam| !blamed(seam)) {
            let of = |entry: &&Value| text(entry, "change").starts_with(seam);
            assert!(!open.iter().any(|entry| of(&entry)), "{} {:?}: open: {open:#?}", self.kind, self.plants);
            let mut own = cleared.iter().filter(of).peekable();
            assert!(own.peek().is_some(), "{} {:?}: {seam} is not cleared", self.kind, self.plants);
            assert!(own.all(|entry| !text(entry, "reason").is_empty()), "{cleared:#?}");
        }
    }
}

fn due(cases: &[Case]) -> impl Iterator<Item = &Case> {
    cases.iter().filter(|case| full() || case.quick)
}

#[test]
fn a_single_culprit_is_found_and_confirmed() {
    for case in due(SINGLE) {
        case.verify();
    }
}

#[test]
fn interacting_and_independent_culprits_are_told_apart() {
    for case in due(SEVERAL) {
        case.verify();
    }
}

#[test]
fn a_culprit_that_another_patch_heals_is_not_blamed_for_the_failure() {
    for case in due(MASKED) {
        let report = case.verify();
        for named in culprits(&report).iter().filter(|named| !named["masked"].is_null()) {
            let healed = case.plants.iter().any(|(_, fault)| text(named, "variant").contains(fault));
            assert!(healed && named["necessary"].is_null(), "{named:#}");
        }
    }
}

#[test]
fn benign_differences_are_cleared_with_evidence() {
    for case in due(BENIGN) {
        let report = case.verify();
        let cleared = report["exonerated"].as_array().expect("a list");
        for (select, fault) in case.plants.iter().filter(|p| !case.culprits.iter().any(|c| c.fault == p.1)) {
            let own: Vec<&Value> =
                cleared.iter().filter(|entry| text(entry, "change").contains(fault)).collect();
            assert!(!own.is_empty(), "{select}: {fault} is not cleared: {cleared:#?}");
            assert!(own.iter().all(|entry| !text(entry, "grade").is_empty()), "{own:#?}");
        }
    }
}

#[test]
fn a_conditional_fault_does_not_show_without_its_condition() {
    for (i, (kind, select, fault, set)) in CONDITIONAL.iter().enumerate() {
        if full() || i != 1 {
            let (code, report) = bisect(kind, &[(select, fault)], KL, set);
            assert_eq!((code, culprits(&report).len()), (1, 0), "{kind}: {report:#}");
        }
    }
}

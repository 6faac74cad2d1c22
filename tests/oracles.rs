//! The oracles, the axes and the evidence of a target in this process, on the embedded checkpoint.

use hotseam_config::{
    CommandOracle, ExactOracle, ExactPrompt, KlOracle, NeedleOracle, OracleKind, PerplexityOracle,
    RepeatOracle,
};
use hotseam_encoding::Tokenizer;
use hotseam_engine::{EngineConfig, Topology};
use hotseam_slots::Rule;
use hotseam_target::{Arm, InProcess, Outcome, Setup, Target, TargetError, Verdict};
use hotseam_tests::{Checkpoint, engine, root, rule};
use std::collections::BTreeMap;

fn stock() -> Vec<Rule> {
    vec![
        rule("attention", "attention/cpu-stock"),
        rule("indexer", "indexer/cpu-stock{keys: fp8}"),
        rule("moe", "moe/cpu-stock"),
        rule("mhc", "mhc/cpu-stock"),
        rule("kv_transport", "kv_transport/local"),
    ]
}

fn with(rules: &[(&str, &str)]) -> Vec<Rule> {
    let mut all = stock();
    all.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
    all
}

/// The patches of `configs/context-loss.yaml`, all of them right.
fn patches() -> Vec<Rule> {
    with(&[
        ("attention@decode", "attention/cpu-sm120-mma"),
        ("indexer", "indexer/cpu-sm120{early_exit: true, keys: bf16}"),
        ("mhc", "mhc/cpu-bf16-gemm"),
        ("moe", "moe/cpu-fused-scale"),
    ])
}

fn sizes() -> EngineConfig {
    EngineConfig { max_context: 4096, topology: Topology::Paired, ..EngineConfig::default() }
}

fn target(bad: Vec<Rule>, oracle: OracleKind, sizes: EngineConfig) -> InProcess {
    InProcess::new(Setup {
        engine: engine(Checkpoint::Nano, stock(), sizes),
        tokenizer: Tokenizer::load(&root().join("assets/nano-v4")).unwrap(),
        good: ("live".into(), stock()),
        bad: ("bad".into(), bad),
        oracle: oracle.into(),
        haystack: vec![root().join("assets/haystack/time-machine.txt")],
        seed: 1,
        single_to_paired: false,
        progress: Box::new(|_| {}),
        expose: None,
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

/// Outcomes of both ends.
fn ends(target: &mut InProcess) -> (Outcome, Outcome) {
    let all = target.plan().all();
    let good = target.measure(&Arm::new()).unwrap_or_else(|error| panic!("{error}"));
    let bad = target.measure(&all).unwrap_or_else(|error| panic!("{error}"));
    println!(
        "{}\n  good: {} | {}\n  bad: {} | {}",
        target.oracle(),
        good.summary,
        good.detail,
        bad.summary,
        bad.detail
    );
    (good, bad)
}

fn needle(length: usize, depths: usize) -> OracleKind {
    OracleKind::Needle(NeedleOracle { lengths: vec![length], depths, ..NeedleOracle::default() })
}

#[test]
fn kl_lets_right_patches_pass_and_tells_needle_blind_faults() {
    let kl = |tokens| OracleKind::Kl(KlOracle { tokens, ..KlOracle::default() });
    let (good, right) = ends(&mut target(patches(), kl(1024), sizes()));
    assert_eq!((good.verdict, right.verdict), (Verdict::Good, Verdict::Good), "{right:?}");
    assert!(good.detail.contains("chunks halved 0, in company 0, bf16 rounding "), "{}", good.detail);
    assert!(
        right.metric > 0.0 && right.detail.contains("token 1 ") && right.detail.contains("later tokens ")
    );
    for (select, variant) in
        [("attention", "faulty/attention{fault: far-no-rope}"), ("mhc", "faulty/mhc{fault: comb-transposed}")]
    {
        let (_, bad) = ends(&mut target(with(&[(select, variant)]), kl(1024), sizes()));
        assert_eq!((bad.verdict, bad.signature.as_str()), (Verdict::Bad, "kl"), "{variant}: {bad:?}");
    }
}

#[test]
fn a_saved_baseline_judges_the_good_end_too() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stock.kl");
    let kl = |tokens, least_top1| {
        let (baseline, threshold) = (Some(file.clone()), Some(1e-2));
        OracleKind::Kl(KlOracle { tokens, threshold, baseline, least_top1, ..KlOracle::default() })
    };
    let (good, bad) = ends(&mut target(patches(), kl(300, None), sizes()));
    assert!(good.detail.contains("saved as") && file.exists(), "{}", good.detail);
    // The same end against its own distributions, read back from the file: not a bit differs.
    let (again, same) = ends(&mut target(patches(), kl(300, None), sizes()));
    assert!(again.detail.contains("held against"), "{}", again.detail);
    assert_eq!((again.verdict, again.metric), (Verdict::Good, 0.0));
    assert_eq!(same.metric.to_bits(), bad.metric.to_bits());
    // An end whose top-1 may not flip at all.
    let (_, strict) =
        ends(&mut target(with(&[("moe", "faulty/moe{fault: scale-twice}")]), kl(300, Some(1.0)), sizes()));
    assert_eq!(strict.verdict, Verdict::Bad);
    assert!(strict.summary.contains("same top-1"), "{}", strict.summary);
    // Another length is another text.
    let mut other = target(patches(), kl(301, None), sizes());
    match other.measure(&Arm::new()) {
        Err(TargetError::Oracle { message, .. }) => {
            assert!(message.contains("another text or length"), "{message}")
        }
        found => panic!("{found:?}"),
    }
}

#[test]
fn perplexity_exact_and_repeat() {
    let perplexity =
        OracleKind::Perplexity(PerplexityOracle { lengths: vec![64, 300], ratio: 1.1, most: None });
    let (good, right) = ends(&mut target(patches(), perplexity.clone(), sizes()));
    assert_eq!((good.verdict, right.verdict), (Verdict::Good, Verdict::Good), "{right:?}");
    let other_experts = with(&[("moe", "faulty/moe{fault: id-off-by-one}")]);
    let (_, bad) = ends(&mut target(other_experts, perplexity, sizes()));
    assert_eq!((bad.verdict, bad.signature.as_str()), (Verdict::Bad, "perplexity"), "{bad:?}");

    let prompt = |expect: Option<&str>| ExactPrompt {
        prompt: "It was cold. The secret word of Lisbon is tiger. What is the secret word of Lisbon?".into(),
        expect: expect.map(str::to_owned),
    };
    let exact = |prompts| OracleKind::Exact(ExactOracle { prompts, max_tokens: 12 });
    let twice = with(&[("moe", "faulty/moe{fault: scale-twice}")]);
    let (good, bad) = ends(&mut target(twice, exact(vec![prompt(None)]), sizes()));
    assert_eq!((good.verdict, good.metric), (Verdict::Good, 1.0));
    assert_eq!((bad.counts.total, bad.counts.fail > 0), (1, bad.verdict == Verdict::Bad));
    let mut wrong = target(patches(), exact(vec![prompt(Some("no such answer")), prompt(None)]), sizes());
    let outcome = wrong.measure(&Arm::new()).unwrap();
    assert_eq!((outcome.verdict, outcome.counts.fail, outcome.counts.total), (Verdict::Bad, 1, 2));
    assert!(outcome.detail.contains("differs at 0"), "{}", outcome.detail);

    let (good, bad) =
        ends(&mut target(patches(), OracleKind::Repeat(RepeatOracle { tokens: 64, times: 3 }), sizes()));
    assert_eq!((good.verdict, bad.verdict, bad.counts.total), (Verdict::Good, Verdict::Good, 2));
}

#[test]
fn a_command_is_asked_about_every_arm() {
    let script = "echo \"$HOTSEAM_ASSIGNMENT\"; echo '{\"fail\": 1, \"total\": 4, \"signature\": \"mine\"}' >&3; exit 1";
    let command = CommandOracle {
        command: vec!["sh".into(), "-c".into(), script.into()],
        timeout_seconds: 10.0,
        env: BTreeMap::new(),
    };
    let (good, bad) = ends(&mut target(patches(), OracleKind::Command(command), sizes()));
    for outcome in [good, bad] {
        assert_eq!((outcome.verdict, outcome.signature.as_str()), (Verdict::Bad, "mine"));
        assert_eq!((outcome.counts.fail, outcome.counts.total), (1, 4));
        assert_eq!(outcome.detail, "bisect-arm");
    }
}

#[test]
fn arms_side_by_side_answer_as_alone() {
    let bad = with(&[
        ("attention@decode", "attention/cpu-sm120-mma"),
        ("moe", "faulty/moe{fault: scale-twice}"),
        ("mhc", "mhc/cpu-bf16-gemm"),
    ]);
    let kl = OracleKind::Kl(KlOracle { tokens: 200, threshold: Some(1e-2), ..KlOracle::default() });
    let mut target = target(bad, kl, sizes());
    let arms: Vec<Arm> = target
        .plan()
        .changes
        .iter()
        .map(|change| change.atoms.iter().map(|atom| atom.id).collect())
        .chain([target.plan().all()])
        .collect();
    target.measure(&Arm::new()).unwrap();
    let together = target.measure_many(&arms);
    for (arm, outcome) in arms.iter().zip(together) {
        let (together, alone) = (outcome.unwrap(), target.measure(arm).unwrap());
        assert_eq!(together.metric.to_bits(), alone.metric.to_bits(), "{arm:?}");
        assert_eq!((together.verdict, together.summary), (alone.verdict, alone.summary));
    }
    // A new launch is another engine with other instances of the same code.
    let before = target.measure(&arms[0]).unwrap();
    let launch = target.relaunch().unwrap();
    let after = target.measure(&arms[0]).unwrap();
    assert_eq!((launch, after.launch, before.launch), (1, 1, 0));
    assert_eq!(before.metric.to_bits(), after.metric.to_bits());
}

#[test]
fn every_axis_can_be_changed_and_a_small_topk_is_healed_by_a_larger_one() {
    let own = Checkpoint::Nano.model().config.index_topk;
    let small = EngineConfig { index_topk: Some(1), ..sizes() };
    let all =
        NeedleOracle { lengths: vec![2048], depths: 4, least_good: Some(1.0), ..NeedleOracle::default() };
    let mut target = target(patches(), OracleKind::Needle(all), small);
    let axes = target.axes();
    let names: Vec<&str> = axes.iter().map(|axis| axis.name.as_str()).collect();
    assert_eq!(names, ["index_topk", "keys", "chunk", "max_seqs", "prefix_cache", "topology"]);
    assert_eq!((axes[0].now.as_str(), axes[0].values.last()), ("1", Some(&own.to_string())));
    assert_eq!(
        (axes[1].now.as_str(), axes[1].values.as_slice()),
        ("fp8", ["f32", "bf16"].map(str::to_owned).as_slice())
    );
    let lost = target.measure(&Arm::new()).unwrap();
    assert_eq!(lost.verdict, Verdict::Bad, "{lost:?}");
    let set = |name: &str, value: &str| vec![(name.to_owned(), value.to_owned())];
    let healed = target.measure_axes(&set("index_topk", &own.to_string()), &Arm::new()).unwrap();
    assert_eq!(healed.verdict, Verdict::Good, "{healed:?}");
    assert!(healed.launch > lost.launch);
    for axis in &axes[1..] {
        let value = &axis.values[0];
        let outcome = target.measure_axes(&set(&axis.name, value), &Arm::new()).unwrap();
        assert_eq!(outcome.counts.total, 4, "{} {value}", axis.name);
    }
    let error = target.measure_axes(&set("index_tpok", "9"), &Arm::new()).unwrap_err().to_string();
    assert!(error.contains("there is no axis `index_tpok`"), "{error}");
}

#[test]
fn the_shadow_suspects_the_change_that_is_wrong() {
    let mut bad = patches();
    bad.push(rule("attention@prefill", "faulty/attention{fault: far-no-rope}"));
    let mut target = target(bad, needle(512, 2), EngineConfig { chunk: 128, ..sizes() });
    let suspicions = target.suspicions().unwrap();
    let changes = &target.plan().changes;
    let heaviest = suspicions.iter().max_by(|a, b| a.weight.total_cmp(&b.weight)).unwrap();
    println!("{heaviest:?}");
    let change = &changes[heaviest.change];
    assert!(change.title().contains("far-no-rope"), "{}: {heaviest:?}", change.title());
    assert!(suspicions.iter().all(|suspicion| suspicion.weight > 0.0));
}

#[test]
fn identity_depends_on_what_answers_depend_on() {
    let identity = |bad, oracle, sizes| target(bad, oracle, sizes).identity();
    let one = identity(patches(), needle(256, 2), sizes());
    assert_eq!(one, identity(patches(), needle(256, 2), sizes()));
    for other in [
        identity(patches(), needle(256, 3), sizes()),
        identity(with(&[("mhc", "mhc/cpu-bf16-gemm")]), needle(256, 2), sizes()),
        identity(patches(), needle(256, 2), EngineConfig { index_topk: Some(8), ..sizes() }),
    ] {
        assert_ne!(one, other);
    }
}

/// Bisects `configs/seed-replay.yaml` with `index_topk` entries kept, or as many as the file says.
fn seed_replay(index_topk: Option<usize>) -> (usize, hotseam_bisect::Report) {
    let config = hotseam_config::load(&root().join("configs/seed-replay.yaml"), &[]).unwrap();
    let section = config.bisect.as_ref().unwrap();
    let rules = |name: &str| -> Vec<Rule> {
        let texts = config.assignments.rules(name).unwrap();
        texts.iter().map(|text| rule(&text.select, text.variant.as_deref().unwrap())).collect()
    };
    let given = config.engine.index_topk.unwrap();
    let sizes = EngineConfig {
        max_seqs: config.engine.max_seqs,
        max_context: config.engine.max_context,
        chunk: config.engine.chunk,
        topology: Topology::Paired,
        index_topk: Some(index_topk.unwrap_or(given)),
        ..EngineConfig::default()
    };
    let (good, bad) = (rules(&section.good), rules(&section.bad));
    let mut target = InProcess::new(Setup {
        engine: engine(Checkpoint::Nano, good.clone(), sizes),
        tokenizer: Tokenizer::load(&root().join("assets/nano-v4")).unwrap(),
        good: (section.good.clone(), good),
        bad: (section.bad.clone(), bad),
        oracle: section.oracle.clone(),
        haystack: config.needle.haystack.clone(),
        seed: config.needle.seed,
        single_to_paired: false,
        progress: Box::new(|_| {}),
        expose: None,
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let options =
        hotseam_bisect::Options { budget_runs: section.budget(), ..hotseam_bisect::Options::default() };
    (given, hotseam_bisect::run(&mut target, &options, &mut ()))
}

#[test]
fn seed_replay_ends_in_no_patch_with_the_topk_that_heals() {
    if !hotseam_tests::full() {
        // Two searches of a minute each, which share all but their end with those of other tests.
        return println!("left to scripts/test --full");
    }
    let own = Checkpoint::Nano.model().config.index_topk;
    let (given, healthy) = seed_replay(Some(own));
    assert!(given < own, "the file must keep fewer entries than the checkpoint's {own}");
    assert_eq!(healthy.verdict, hotseam_bisect::Word::OracleAgrees, "{:?}", healthy.notes);
    let (_, report) = seed_replay(None);
    for tried in &report.what_if {
        println!("{:?}: {}", tried.settings, tried.outcome.summary);
    }
    assert_eq!((report.verdict, report.exit_code), (hotseam_bisect::Word::NoPatch, 0), "{:?}", report.notes);
    let answer = report.what_if.iter().find(|tried| tried.heals).unwrap();
    assert_eq!((answer.settings.len(), answer.settings[0].name.as_str()), (1, "index_topk"));
    let healed: usize = answer.settings[0].to.parse().unwrap();
    assert!(given < healed && healed <= own, "{healed}");
    assert!(report.culprits.is_empty());
}

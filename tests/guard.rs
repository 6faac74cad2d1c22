//! The guard names the seam that wrote wrongly. Without it each of these faults trips another seam, or nobody.

use hotseam_engine::{Engine, EngineConfig, GuardReport, Request, Topology, ViolationKind};
use hotseam_slots::{Op, Phase, Rule, Seam};
use hotseam_tests::{Checkpoint, Heard, all, config, engine, goldens, hear, rule, tap};

/// An engine under guard with `rules` over the stock variants.
fn guarded(rules: &[(&str, &str)], topology: Topology) -> Engine {
    start(rules, EngineConfig { guard: true, topology, ..config() })
}

fn start(rules: &[(&str, &str)], config: EngineConfig) -> Engine {
    engine(Checkpoint::Nano, with(rules), config)
}

fn with(rules: &[(&str, &str)]) -> Vec<Rule> {
    let mut all = all("cpu-stock");
    all.extend(rules.iter().map(|(select, variant)| rule(select, variant)));
    all
}

fn prompt(length: usize) -> Vec<u32> {
    goldens::ladder(Checkpoint::Nano).tokens[..length].to_vec()
}

/// What a planted fault does under guard: one violation, by the cell of `seam.op`, and the request fails with its code.
fn caught(rules: &[(&str, &str)], topology: Topology, length: usize) -> GuardReport {
    let engine = guarded(rules, topology);
    let (_, failure) = hear(tap(&engine, length, 4));
    let report = engine.guard();
    let (code, message) = failure.unwrap_or_else(|| panic!("{rules:?} passed under guard: {report:?}"));
    let first = report.last.first().unwrap_or_else(|| panic!("{rules:?}: {code} {message}"));
    println!("{code}: {message}");
    assert_eq!((report.violations, report.last.len(), engine.stats().guard_violations), (1, 1, 1));
    assert_eq!((code, message), (first.code(), first.to_string()));
    assert!(first.variant.starts_with("faulty/") && first.hash.len() == 64, "{first:?}");
    report
}

/// What goes on without the guard.
fn unguarded(rules: &[(&str, &str)], length: usize) -> Heard {
    hear(tap(&start(rules, config()), length, 4))
}

#[test]
fn sound_variants_pass_under_guard_and_answer_bit_for_bit() {
    let patches = [
        ("attention@decode", "attention/cpu-sm120-mma"),
        ("indexer", "indexer/cpu-sm120{keys: bf16}"),
        ("mhc", "mhc/cpu-bf16-gemm"),
        ("moe", "moe/cpu-fused-scale"),
    ];
    let fp8 = [("indexer", "indexer/cpu-stock{keys: fp8}")];
    for rules in [&[][..], &patches, &fp8] {
        let plain = start(rules, EngineConfig { topology: Topology::Paired, ..config() });
        let engine = guarded(rules, Topology::Paired);
        // Two sequences, so that a step has rows of both.
        let of = |engine: &Engine| {
            let handles = [tap(engine, 300, 6), tap(engine, 700, 6)];
            handles.map(hear)
        };
        let (want, got) = (of(&plain), of(&engine));
        let report = engine.guard();
        assert!(got.iter().all(|(_, failure)| failure.is_none()), "{:?}", report.last);
        assert_eq!(got, want, "{rules:?}");
        assert!(report.on && report.calls > 100 && report.violations == 0);
        assert_eq!(plain.guard(), GuardReport::default());
    }
}

#[test]
fn a_write_past_an_output_is_the_writers() {
    let rules = [("attention.core", "faulty/attention{fault: past-end}")];
    let found = &caught(&rules, Topology::Single, 200).last[0];
    assert_eq!(found.kind, ViolationKind::OutOfBounds);
    assert_eq!(
        (found.cell.seam, found.cell.op, found.cell.phase),
        (Seam::Attention, Op::Core, Some(Phase::Decode))
    );
    assert_eq!(
        (found.cell.layer, found.argument.as_str(), found.place.as_str()),
        (Some(0), "out", "0 bytes past the end")
    );
    // Control: the host's buffer goes on there, so that nobody notices.
    let (rows, failure) = unguarded(&rules, 200);
    assert_eq!((rows, failure), unguarded(&[], 200));
}

#[test]
fn a_write_into_a_neighbours_slot_is_the_writers() {
    let rules = [("attention.store", "faulty/attention{fault: neighbour-slot}")];
    let found = &caught(&rules, Topology::Single, 200).last[0];
    assert_eq!(found.kind, ViolationKind::StrayWrite);
    assert_eq!(
        (found.cell.seam, found.cell.op, found.cell.phase),
        (Seam::Attention, Op::Store, Some(Phase::Decode))
    );
    assert_eq!(found.argument, "pool");
    assert!(found.place.starts_with("slot 8 before"), "{}", found.place);
    // Control: no error, and other logits.
    let (rows, failure) = unguarded(&rules, 200);
    let (want, _) = unguarded(&[], 200);
    assert!(failure.is_none() && rows != want && rows.len() == want.len());
}

#[test]
fn an_unwritten_tail_is_the_writers() {
    let rules = [("attention.core", "faulty/attention{fault: unwritten-tail}")];
    let found = &caught(&rules, Topology::Single, 200).last[0];
    assert_eq!(found.kind, ViolationKind::Unwritten);
    assert_eq!(
        (found.cell.seam, found.cell.op, found.cell.phase),
        (Seam::Attention, Op::Core, Some(Phase::Prefill))
    );
    let heads = Checkpoint::Nano.model().config.num_attention_heads;
    let want = format!("row 199, head {}, channel ", heads * 3 / 4);
    assert!(found.place.starts_with(&want) && found.place.ends_with("(position 199)"), "{}", found.place);
    let (rows, failure) = unguarded(&rules, 200);
    assert!(failure.is_none() && rows != unguarded(&[], 200).0);
}

#[test]
fn numbers_that_are_not_finite_are_the_writers() {
    let layer = Checkpoint::Nano.model().config.num_hidden_layers - 1;
    let select = format!("attention.core@decode:layers={layer}");
    let rules = [(select.as_str(), "faulty/attention{fault: nan}")];
    let found = &caught(&rules, Topology::Single, 200).last[0];
    assert_eq!((found.kind, found.cell.layer), (ViolationKind::NotFinite, Some(layer as u32)));
    assert_eq!((found.cell.seam, found.cell.op), (Seam::Attention, Op::Core));
    assert_eq!(found.place, "row 0, head 0, channel 0 (position 200)");
    // Control: the sampler trips, and names nobody.
    let (_, failure) = unguarded(&rules, 200);
    let (code, message) = failure.expect("NaN logits fail the request");
    assert!(code == "E-STEP-502" && !message.contains("attention"), "{code} {message}");
}

#[test]
fn a_changed_input_is_the_changers() {
    let rules = [("moe.experts", "faulty/moe{fault: clobbered-input}")];
    let found = &caught(&rules, Topology::Single, 200).last[0];
    assert_eq!(found.kind, ViolationKind::InputChanged);
    assert_eq!((found.cell.seam, found.cell.op, found.argument.as_str()), (Seam::Moe, Op::Experts, "x"));
    assert_eq!(found.place, "row 0, channel 0");
    // Control: the shared expert, which is the host's, reads the harmed input; no error.
    let (rows, failure) = unguarded(&rules, 200);
    assert!(failure.is_none() && rows != unguarded(&[], 200).0);
}

#[test]
fn ids_and_weights_that_cannot_be_are_named() {
    for (select, variant, kind, seam, op) in [
        (
            "indexer.select",
            "faulty/indexer{fault: out-of-range, keys: f32}",
            ViolationKind::OutOfRange,
            Seam::Indexer,
            Op::Select,
        ),
        (
            "moe.route:class=hash",
            "faulty/moe{fault: id-off-by-one}",
            ViolationKind::Missing,
            Seam::Moe,
            Op::Route,
        ),
        ("moe.route", "faulty/moe{fault: scale-twice}", ViolationKind::OutOfRange, Seam::Moe, Op::Route),
    ] {
        let found = &caught(&[(select, variant)], Topology::Single, 200).last[0];
        assert_eq!((found.kind, found.cell.seam, found.cell.op), (kind, seam, op), "{variant}");
    }
}

#[test]
fn a_hand_off_that_delivers_other_bytes_is_the_transports() {
    for (fault, component) in [("next-layer", "c4"), ("state-dropped", "c4_state")] {
        let variant = format!("faulty/kv_transport{{fault: {fault}}}");
        let found = &caught(&[("kv_transport", &variant)], Topology::Paired, 300).last[0];
        assert_eq!((found.kind, found.cell.seam), (ViolationKind::Transfer, Seam::KvTransport), "{fault}");
        assert_eq!(found.argument, component, "{fault}");
        assert!(found.layer.is_some());
    }
}

#[test]
fn a_violation_fails_its_request_and_harms_no_other() {
    let engine = guarded(&[], Topology::Single);
    let bad = with(&[("attention.store", "faulty/attention{fault: neighbour-slot}")]);
    engine.slots().define("bad", bad).unwrap();
    let want = tap_all(&start(&[], config()));
    let tokens = prompt(200);
    let broken = engine.submit(Request { assignment: "bad".into(), ..Request::greedy(tokens, 8) }).unwrap();
    let got = tap_all(&engine);
    let (code, _) = broken.tokens().expect_err("the guard stops it");
    assert_eq!(code, "E-GUARD-STRAY-WRITE");
    assert_eq!(got, want);
}

fn tap_all(engine: &Engine) -> Heard {
    hear(tap(engine, 280, 16))
}

//! From rules to snapshots: which cells there are, who serves them, and what is refused.

mod common;

use common::fixture::{build, manifest_with, variant};
use common::{geometry, no_args, patched, rule, rules, slots, step, stock};
use hotseam_abi::{PollArgs, seam};
use hotseam_loader::file_name;
use hotseam_slots::{Cell, Class, Phase, Seam, Selector, SlotsError, Snapshot, Topology};
use std::collections::BTreeMap;

/// Cells that a variant serves, as text.
fn served_by(snapshot: &Snapshot, variant: &str) -> Vec<String> {
    let all = snapshot.cells().filter(|c| c.generation.spec.to_string() == variant);
    all.map(|c| c.cell.to_string()).collect()
}

#[track_caller]
fn assert_error<T: std::fmt::Debug>(result: Result<T, SlotsError>, words: &[&str]) {
    let text = result.expect_err("refused").to_string();
    assert!(text.ends_with(['.', '?']), "{text}");
    for word in words {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn cells_of_a_model() {
    let cells = geometry(Topology::Paired).cells();
    let count = |text: &str| {
        let selector: Selector = text.parse().expect(text);
        cells.iter().filter(|c| selector.matches(c)).count()
    };
    for (selector, expected) in [
        ("attention", 2 * (2 + 3 + 3 + 3 + 3)),
        ("attention.compress", 2 * 4),
        ("attention:class=window", 2 * 2),
        ("indexer", 2 * 2 * 2),
        ("indexer:class=csa", 2 * 2 * 2),
        ("indexer:class=hca", 0),
        ("indexer.select@decode:layers=0-3", 2),
        ("moe", 2 * 5 * 2),
        ("moe:class=hash", 2 * 2 * 2),
        ("moe:class=topk", 2 * 3 * 2),
        ("mhc", 2 * (5 * 2 + 1)),
        ("mhc@decode:layers=0-4", 5 * 2),
        ("mhc.head", 2),
        ("mhc:class=csa", 2 * 2 * 2),
        ("mhc/ranks=0", 2 * (5 * 2 + 1)),
        ("mhc/ranks=1-3", 0),
        ("kv_transport", 1),
    ] {
        assert_eq!(count(selector), expected, "{selector}");
    }
    assert_eq!(cells.len(), 28 + 8 + 20 + 22 + 1);
    let single = geometry(Topology::Single).cells();
    assert_eq!(single.len(), cells.len() - 1);
    // Each cell's own selector matches it and no other.
    for cell in &cells {
        let matching: Vec<&Cell> = cells.iter().filter(|c| cell.id.selector().matches(c)).collect();
        assert_eq!(matching, [cell]);
    }
    assert!(cells.iter().all(|c| c.class.is_none_or(|class| Class::of_seam(c.id.seam).contains(&class))));
}

#[test]
fn a_snapshot_binds_every_cell() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Paired);
    let live = slots.define("live", rules(&[])).expect("defined");
    let served: Vec<String> = live.cells().map(|c| c.cell.to_string()).collect();
    let expected: Vec<String> = geometry(Topology::Paired).cells().iter().map(|c| c.id.to_string()).collect();
    let sorted = |mut list: Vec<String>| {
        list.sort();
        list
    };
    assert_eq!(sorted(served), sorted(expected));
    assert_eq!(live.generations().len(), 5);

    let layer = live.layer(Phase::Decode, 1);
    assert!(layer.compress.is_some() && layer.index_compress.is_some() && layer.select.is_some());
    let layer = live.layer(Phase::Decode, 2);
    assert!(layer.compress.is_some() && layer.index_compress.is_none() && layer.select.is_none());
    assert!(live.layer(Phase::Prefill, 0).compress.is_none());
    assert_eq!(live.kv_layout(0).to_string(), "kv-f32 (256 bytes an entry)");
    assert_eq!(live.key_layout(1).map(|l| (l.id, l.data_bytes)), Some((16, 128)));
    assert_eq!(live.key_layout(2), None);
    assert_eq!(live.name(), "live");
    assert!(slots.snapshot("dead").is_none());
}

#[test]
fn calls_are_counted_and_errors_name_the_cell() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Paired);
    let mut seen = 0i64;
    let good = format!("moe/stock{{seen: {}}}", &raw mut seen as usize);
    let more =
        [("moe@decode:layers=3", good.as_str()), ("moe.experts@decode:layers=4", "moe/stock{fail: true}")];
    let live = slots.define("live", rules(&more)).expect("defined");

    let route = &live.layer(Phase::Decode, 3).route;
    route.call(&step(7), &no_args(), 5).expect("called");
    route.call(&step(8), &no_args(), 6).expect("called");
    // SAFETY: `seen` lives; volatile, because the plugin writes it behind the compiler's back.
    assert_eq!(unsafe { (&raw const seen).read_volatile() }, 8);
    assert_eq!((route.receipt.calls(), route.receipt.rows()), (2, 11));

    let error = live.layer(Phase::Decode, 4).experts.call(&step(9), &no_args(), 1).expect_err("fails");
    assert_eq!((error.code, error.message.as_str()), (4, "told to fail"));
    assert_eq!(
        error.to_string(),
        "E-PLUG-501 moe.experts@decode:layers=4: variant `moe/stock{fail: true}` failed with code 4 (internal): told to \
         fail"
    );
    live.layer(Phase::Prefill, 3).route.call(&step(9), &no_args(), 1).expect("another cell does not fail");

    let transport = live.transport().expect("paired");
    transport.put.call(&step(1), &no_args(), 3).expect("called");
    let mut poll: PollArgs = no_args();
    transport.poll.call(&step(1), &mut poll).expect("called");
    transport.cancel.call(&step(1), 1).expect("called");

    let counts: BTreeMap<String, (u64, u64)> =
        live.cells().filter(|c| c.calls > 0).map(|c| (c.cell.to_string(), (c.calls, c.rows))).collect();
    let expected = [
        ("kv_transport", (3, 3)),
        ("moe.experts@decode:layers=4", (1, 1)),
        ("moe.route@decode:layers=3", (2, 11)),
        ("moe.route@prefill:layers=3", (1, 1)),
    ];
    assert_eq!(counts, expected.map(|(k, v)| (k.to_owned(), v)).into());
}

#[test]
fn later_rules_win_and_healing_goes_back_to_the_first() {
    let dir = stock();
    variant(dir.path(), "moe/a", seam::MOE, &[]);
    variant(dir.path(), "moe/b", seam::MOE, &["CAPABILITIES=4"]);
    let slots = slots(dir.path(), Topology::Single);
    let list = [
        ("moe", "moe/a"),
        ("moe@decode", "moe/b"),
        ("!moe.route:class=hash", ""),
        ("moe.route:layers=1", "moe/a"),
    ];
    let live = slots.define("live", rules(&list)).expect("defined");
    let b: Vec<_> = served_by(&live, "moe/b");
    assert_eq!(
        b,
        [
            "moe.experts@decode:layers=0",
            "moe.experts@decode:layers=1",
            "moe.route@decode:layers=2",
            "moe.experts@decode:layers=2",
            "moe.route@decode:layers=3",
            "moe.experts@decode:layers=3",
            "moe.route@decode:layers=4",
            "moe.experts@decode:layers=4",
        ]
    );
    assert_eq!(served_by(&live, "moe/stock"), ["moe.route@prefill:layers=0", "moe.route@decode:layers=0"]);
    let b = &live.layer(Phase::Decode, 3).route;
    assert!(b.has(4) && !live.layer(Phase::Prefill, 3).route.has(4));

    assert_error(
        slots.define("x", vec![rule("!moe", ""), rule("moe", "moe/a")]),
        &["assignment `x`", "attention.store@prefill:layers=0", "Add a rule"],
    );
    let mut list = rules(&[]);
    list.insert(0, rule("!moe@decode", ""));
    list.push(rule("!moe@decode", ""));
    assert_error(slots.define("x", list), &["`!moe@decode`", "nothing to heal", "moe.route@decode:layers=0"]);
}

#[test]
fn ops_that_are_left_out_go_to_the_base() {
    let dir = stock();
    patched(dir.path(), "attention/mma", seam::ATTENTION, "attention/stock", &["OPS=4", "PHASES=2"]);
    patched(dir.path(), "indexer/sm120", seam::INDEXER, "indexer/stock", &["OPS=2"]);
    let slots = slots(dir.path(), Topology::Single);
    let more = [("attention@decode", "attention/mma"), ("indexer", "indexer/sm120{keys: bf16, scale: 2}")];
    let live = slots.define("live", rules(&more)).expect("defined");
    let mma: Vec<String> = (0..5).map(|l| format!("attention.core@decode:layers={l}")).collect();
    assert_eq!(served_by(&live, "attention/mma"), mma);
    // The base gets the options that it knows, so that both ends read one layout.
    let bases = served_by(&live, "indexer/stock{keys: bf16, scale: 2.0}");
    assert_eq!(bases.len(), 4);
    assert!(bases.iter().all(|c| c.starts_with("indexer.compress")));
    assert_eq!(live.key_layout(1).map(|l| l.name()), Some("key-bf16"));

    // Per op, the stock of the base is the same code as stock: only the core differs.
    let changes =
        slots.diff(&rules(&[]), &rules(&[("attention@decode", "attention/mma")])).expect("compared");
    let cells: Vec<String> = changes.iter().map(|c| c.cell.to_string()).collect();
    assert_eq!(cells, mma);
    assert_eq!(changes[0].from.variant.to_string(), "attention/stock");
    assert_eq!(changes[0].to.variant.to_string(), "attention/mma");
    assert_ne!(changes[0].from.hash, changes[0].to.hash);
}

#[test]
fn default_options_are_no_difference() {
    let dir = stock();
    let slots = slots(dir.path(), Topology::Single);
    let explicit =
        rules(&[("indexer", "indexer/stock{keys: f32, fail: false}"), ("moe", "moe/stock{scale: 1}")]);
    assert_eq!(slots.diff(&rules(&[]), &explicit).expect("compared"), []);
    let a = slots.define("a", rules(&[])).expect("defined");
    let b = slots.define("b", explicit).expect("defined");
    assert_eq!((a.digest(), a.prefill_digest()), (b.digest(), b.prefill_digest()));
    let same = a.cells().zip(b.cells()).all(|(a, b)| a.generation.id == b.generation.id);
    assert!(same, "arms share instances");

    let decode = slots.define("c", rules(&[("moe@decode", "moe/stock{scale: 2}")])).expect("defined");
    assert_ne!(a.digest(), decode.digest());
    assert_eq!(a.prefill_digest(), decode.prefill_digest());
    let prefill =
        slots.define("d", rules(&[("mhc.pre@prefill:layers=4", "mhc/stock{scale: 2}")])).expect("defined");
    assert_ne!(a.prefill_digest(), prefill.prefill_digest());
}

#[test]
fn refused_rules() {
    let dir = stock();
    patched(dir.path(), "attention/mma", seam::ATTENTION, "attention/stock", &["OPS=4", "PHASES=2"]);
    variant(dir.path(), "attention/orphan", seam::ATTENTION, &["OPS=4"]);
    patched(dir.path(), "moe/lost", seam::MOE, "moe/nowhere", &["OPS=1"]);
    patched(dir.path(), "moe/loop", seam::MOE, "moe/loop", &["OPS=1"]);
    patched(dir.path(), "moe/crossed", seam::MOE, "mhc/stock", &["OPS=1"]);
    variant(dir.path(), "kv_transport/half", seam::KV_TRANSPORT, &["OPS=3"]);
    let slots = slots(dir.path(), Topology::Single);
    let define = |selector: &str, variant: &str| slots.define("live", rules(&[(selector, variant)]));

    assert_error(define("moe:layers=2-9", "moe/stock"), &["`moe:layers=2-9`", "layer 9", "5 layers, 0 to 4"]);
    assert_error(
        define("indexer:layers=0,2", "indexer/stock"),
        &["`indexer:layers=0,2`", "no cell", "layers 1,3"],
    );
    assert_error(
        define("attention.compress:class=window", "attention/stock"),
        &["attention.compress in layers 1-4"],
    );
    assert_error(define("mhc.head:layers=1", "mhc/stock"), &["mhc.head in no layer"]);
    assert_error(define("moe/ranks=1", "moe/stock"), &["`moe/ranks=1`", "rank 0 of 1"]);
    assert_error(define("moe", "mhc/stock"), &["E-PLUG-206", "`moe`", "expected moe, found mhc"]);
    assert_error(define("moe", "moe/stok"), &["E-PLUG-100", "Did you mean `moe/stock`?"]);
    assert_error(define("moe", "moe/stock{scal: 2}"), &["E-PLUG-107", "`scal`", "Did you mean `scale`?"]);
    assert_error(
        define("attention", "attention/mma"),
        &["attention.core@prefill:layers=0", "only decode", "attention@decode"],
    );
    assert_error(define("attention", "attention/orphan"), &["`attention/orphan`", "no op `store`", "base"]);
    define("attention.core", "attention/orphan").expect("the op that it has");
    assert_error(define("moe", "moe/lost"), &["`moe/lost`", "base `moe/nowhere`", "E-PLUG-100"]);
    assert_error(define("moe", "moe/loop"), &["circle", "moe/loop -> moe/loop"]);
    assert_error(
        define("moe", "moe/crossed"),
        &["E-PLUG-206", "base `mhc/stock`", "expected moe, found mhc"],
    );
    assert_error(
        define("indexer@decode", "indexer/stock{keys: bf16}"),
        &[
            "indexer.compress@prefill:layers=1",
            "indexer.compress@decode:layers=1",
            "key-f32 (128",
            "key-bf16 (64",
        ],
    );
    assert_error(
        define("indexer.select:layers=3", "indexer/stock{keys: bf16}"),
        &["indexer.compress@prefill:layers=3", "indexer.select@prefill:layers=3"],
    );
    define("indexer:layers=3", "indexer/stock{keys: bf16}")
        .expect_err("the pool of a defined assignment changes");
    slots
        .define("arm", rules(&[("indexer:layers=3", "indexer/stock{keys: bf16}")]))
        .expect("layers may differ");

    let paired = common::slots(dir.path(), Topology::Paired);
    let half = paired.define("live", rules(&[("kv_transport", "kv_transport/half")]));
    assert_error(half, &["kv_transport", "`kv_transport/half`", "register, put, poll and cancel"]);
}

/// The engine hands host memory to its variants, so one of another device is refused before it makes an instance.
#[test]
fn a_variant_of_another_device_is_refused() {
    let dir = stock();
    let on_cuda = |name: &str, base: &str| {
        let manifest = manifest_with(name, base, r#", "device": "cuda""#);
        let file = file_name(name).expect("a variant name");
        build(dir.path(), &file, seam::MOE, &manifest, &["OPS=1"]);
    };
    on_cuda("moe/fast", "null");
    on_cuda("moe/mixed", "\"moe/stock\"");
    let slots = slots(dir.path(), Topology::Single);
    let refused = slots.define("live", rules(&[("moe@decode", "moe/fast")]));
    assert_error(
        refused,
        &["E-PLUG-210 variant `moe/fast`", "expected cpu, found cuda. Choose", "`hotseam plugin check`"],
    );
    slots.define("live", rules(&[])).expect("defined");
    let plan = slots.plan("live", &hotseam_slots::Change::Add(vec![rule("moe", "moe/fast")]));
    assert_error(plan, &["E-PLUG-210 variant `moe/fast`"]);
    let mixed = slots.registry().generation(&"moe/mixed".parse().expect("a variant"));
    assert_error(
        mixed,
        &["E-PLUG-210 variant `moe/mixed`: its base `moe/stock`", "expected cuda, found cpu. Correct `base`"],
    );
}

#[test]
fn rules_for_another_topology_have_no_effect() {
    let dir = stock();
    let list = rules(&[("moe^paired", "moe/stock{scale: 2}")]);
    let single = slots(dir.path(), Topology::Single).define("live", list.clone()).expect("defined");
    assert_eq!(served_by(&single, "moe/stock{scale: 2.0}").len(), 0);
    assert!(single.transport().is_none(), "the rule for kv_transport has no cell");
    assert!(single.cells().all(|c| c.cell.seam != Seam::KvTransport));
    let paired = slots(dir.path(), Topology::Paired).define("live", list).expect("defined");
    assert_eq!(served_by(&paired, "moe/stock{scale: 2.0}").len(), 20);
    assert_ne!(single.prefill_digest(), paired.prefill_digest());
}

//! Every variant that ships conforms, and every planted fault is flagged with case, error, tolerance and first index.
//!
//! The plugins are the files that `cargo build --release` left beside this test.

use hotseam_conformance::{Level, Report, Subject, check};
use hotseam_loader::{Loader, Options, Shape, host_services, init_threads, take_error};
use std::path::PathBuf;

/// Directory of the plugin files: the parent of the `deps` directory that this test runs from.
fn plugin_dir() -> PathBuf {
    let test = std::env::current_exe().expect("path of this test");
    test.ancestors().nth(2).expect("a directory above deps").to_owned()
}

fn report(loader: &Loader, variant: &str, options: &[(&str, &str)]) -> Report {
    let plugin = loader.open(variant).unwrap_or_else(|e| panic!("{e}"));
    let options: Options = options
        .iter()
        .map(|(k, v)| ((*k).to_owned(), serde_json::from_str(v).unwrap_or_else(|_| (*v).into())))
        .collect();
    let instance =
        plugin.create(&options, Shape { dim: 128, rope_dim: 64 }).unwrap_or_else(|e| panic!("{e}"));
    let entry = plugin.entry();
    let name = format!("{variant}{}", serde_json::Value::from(instance.options().clone()));
    let subject = Subject {
        variant: &name,
        seam: entry.seam,
        this: instance.this(),
        attention: entry.attention,
        indexer: entry.indexer,
        moe: entry.moe,
        mhc: entry.mhc,
        kv_transport: entry.kv_transport,
        info: *instance.info(),
        device: None,
        host: host_services(),
        take_error,
    };
    check(&subject, Level::Full)
}

const VARIANTS: &[(&str, &[(&str, &str)])] = &[
    ("attention/cpu-stock", &[("kv", "f32")]),
    ("attention/cpu-stock", &[("kv", "bf16")]),
    ("attention/cpu-stock", &[("kv", "fp8")]),
    ("attention/cpu-sm120-mma", &[]),
    ("attention/cpu-sm120-mma", &[("split", "1")]),
    ("attention/cpu-sm120-mma", &[("split", "100")]),
    ("indexer/cpu-stock", &[("keys", "f32")]),
    ("indexer/cpu-stock", &[("keys", "bf16")]),
    ("indexer/cpu-stock", &[("keys", "fp8")]),
    ("indexer/cpu-stock", &[("keys", "fp4")]),
    ("indexer/cpu-sm120", &[("keys", "bf16")]),
    ("indexer/cpu-sm120", &[("keys", "fp8")]),
    ("indexer/cpu-sm120", &[("keys", "f32")]),
    ("indexer/cpu-sm120", &[("keys", "bf16"), ("early_exit", "false")]),
    ("moe/cpu-stock", &[]),
    ("moe/cpu-fused-scale", &[]),
    ("mhc/cpu-stock", &[]),
    ("mhc/cpu-bf16-gemm", &[]),
    ("kv_transport/local", &[]),
    ("kv_transport/tcp", &[]),
    ("kv_transport/shm", &[]),
];

/// What conformance must say of a planted fault.
#[derive(Clone, Copy, PartialEq)]
enum Flag {
    /// A case fails, with a measured error and its place.
    Measured,
    /// A case fails.
    Fails,
    /// Two equal calls differ.
    Differs,
}

/// Fault, the op that must be flagged, and how.
const FAULTS: &[(&str, &str, &str, Flag)] = &[
    ("faulty/attention", "half-scale", "attention.core", Flag::Measured),
    ("faulty/attention", "sinks-dropped", "attention.core", Flag::Measured),
    ("faulty/attention", "wrong-slot", "attention.compress", Flag::Measured),
    ("faulty/attention", "far-no-rope", "attention.compress", Flag::Measured),
    ("faulty/attention", "hca-masked", "attention.core", Flag::Measured),
    ("faulty/attention", "dropped-tail", "attention.core", Flag::Measured),
    ("faulty/attention", "rows-past-64", "attention.core", Flag::Measured),
    ("faulty/attention", "race", "attention.core", Flag::Differs),
    ("faulty/attention", "inverse-rope-claimed", "attention.core", Flag::Measured),
    ("faulty/attention", "rising-ids", "attention.core", Flag::Measured),
    ("faulty/attention", "neighbour-slot", "attention.store", Flag::Fails),
    ("faulty/attention", "unwritten-tail", "attention.core", Flag::Measured),
    ("faulty/attention", "past-end", "attention.core", Flag::Fails),
    ("faulty/attention", "nan", "attention.core", Flag::Measured),
    ("faulty/attention", "panic", "attention.core", Flag::Fails),
    ("faulty/attention", "error", "attention.core", Flag::Fails),
    ("faulty/indexer", "one-page", "indexer.select", Flag::Fails),
    ("faulty/indexer", "wrong-slot", "indexer.compress", Flag::Measured),
    ("faulty/indexer", "wrong-scale", "indexer.compress", Flag::Measured),
    ("faulty/indexer", "rows-past-64", "indexer.select", Flag::Fails),
    ("faulty/indexer", "race", "indexer.compress", Flag::Differs),
    ("faulty/indexer", "out-of-range", "indexer.select", Flag::Fails),
    ("faulty/indexer", "panic", "indexer.select", Flag::Fails),
    ("faulty/moe", "id-off-by-one", "moe.route", Flag::Fails),
    ("faulty/moe", "scale-twice", "moe.route", Flag::Measured),
    ("faulty/moe", "scale-skipped", "moe.experts", Flag::Measured),
    ("faulty/moe", "dropped-tail", "moe.experts", Flag::Measured),
    ("faulty/moe", "rows-past-64", "moe.experts", Flag::Measured),
    ("faulty/moe", "race", "moe.experts", Flag::Differs),
    ("faulty/moe", "scale-claimed", "moe.route", Flag::Measured),
    ("faulty/moe", "clobbered-input", "moe.experts", Flag::Fails),
    ("faulty/moe", "panic", "moe.experts", Flag::Fails),
    ("faulty/mhc", "comb-roll", "mhc.pre", Flag::Measured),
    ("faulty/mhc", "comb-transposed", "mhc.pre", Flag::Measured),
    ("faulty/mhc", "post-halved", "mhc.pre", Flag::Measured),
    ("faulty/mhc", "dropped-tail", "mhc.post", Flag::Measured),
    ("faulty/mhc", "rows-past-64", "mhc.post", Flag::Measured),
    ("faulty/mhc", "race", "mhc.post", Flag::Differs),
    ("faulty/mhc", "norm-claimed", "mhc.pre", Flag::Measured),
    ("faulty/mhc", "panic", "mhc.post", Flag::Fails),
    ("faulty/kv_transport", "next-layer", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "half-values", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "dropped-tail", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "race", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "page-size", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "state-dropped", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "component-dropped", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "layer-offset", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "ring-size", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "truncated-page", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "stale-page", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "bit-flip", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "reorder", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "stray-page", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "short-count", "kv_transport", Flag::Fails),
    ("faulty/kv_transport", "panic", "kv_transport", Flag::Fails),
];

/// Planted variants that are within the contract: no fault at all, or wrong beside another variant only.
const SOUND: &[(&str, &str)] = &[
    ("faulty/attention", "split-scale"),
    ("faulty/attention", "marks-entries"),
    ("faulty/attention", "reads-marks"),
    ("faulty/indexer", "tie-order"),
    ("faulty/moe", "folded-scale"),
    ("faulty/mhc", "reverse-sum"),
    ("faulty/kv_transport", "late-reversed"),
];

fn loader() -> Loader {
    init_threads(2);
    Loader::new(vec![plugin_dir()]).unwrap_or_else(|e| panic!("{e}"))
}

#[path = "../plugins/kv_transport/nixl/tests/library/mod.rs"]
mod nixl;

/// The variant that needs a library which is perhaps not there.
#[test]
fn nixl_conforms() {
    let Some(library) = nixl::path() else { return };
    let report = report(&loader(), "kv_transport/nixl", &[("library", &library), ("ucx", "NET_DEVICES=lo")]);
    assert!(report.passed() && !report.cases.is_empty(), "{report}");
}

#[test]
fn every_variant_conforms() {
    let loader = loader();
    let reports = VARIANTS.iter().map(|(variant, options)| report(&loader, variant, options));
    let failed: Vec<_> =
        reports.filter(|r| !r.passed() || r.cases.is_empty()).map(|r| r.to_string()).collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn every_fault_is_flagged_in_its_op_only() {
    let loader = loader();
    for (variant, fault, op, flag) in FAULTS {
        let report = report(&loader, variant, &[("fault", fault)]);
        let first = report.failures().next().unwrap_or_else(|| panic!("{fault} passes: {report}"));
        let stray: Vec<_> = report.failures().filter(|f| f.op.name() != *op).collect();
        // After a panic the instance must not be called again, so later ops fail too.
        assert!(stray.is_empty() || *fault == "panic", "{fault} is flagged elsewhere: {report}");
        assert_eq!(first.op.name(), *op, "{report}");
        assert!(!first.case.is_empty() && !first.message.is_empty(), "{first}");
        match flag {
            Flag::Measured => {
                let place = report.failures().find(|f| f.first.is_some());
                let worst = place.unwrap_or_else(|| panic!("no place: {report}"));
                assert!(worst.error > 3.0 * worst.tolerance, "{fault} is within 3 tolerances: {worst}");
            }
            Flag::Differs => {
                let differs = report.failures().any(|f| f.message.contains("two equal calls differ"));
                assert!(differs, "{fault}: no two equal calls differ: {report}");
            }
            Flag::Fails => {}
        }
    }
}

/// Negated keys are wrong in the pool and right as a pair of ops, which a check by op cannot know.
#[test]
fn a_writer_and_a_reader_of_an_undeclared_layout_are_both_flagged() {
    let report = report(&loader(), "faulty/indexer", &[("fault", "negated-keys")]);
    let mut ops: Vec<&str> = report.failures().map(|f| f.op.name()).collect();
    ops.sort_unstable();
    ops.dedup();
    assert_eq!(ops, ["indexer.compress", "indexer.select"], "{report}");
}

#[test]
fn planted_variants_within_the_contract_pass() {
    let loader = loader();
    for (variant, fault) in SOUND {
        let report = report(&loader, variant, &[("fault", fault)]);
        assert!(report.passed() && !report.cases.is_empty(), "{fault}: {report}");
    }
}

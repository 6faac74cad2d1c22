//! Every variant that ships conforms, and every planted fault is flagged with case, error, tolerance and first index.
//!
//! The plugins are the files that `cargo build --release` left beside this test.

use hotseam_conformance::{Level, Report, Subject, check};
use hotseam_loader::{Loader, Options, host_services, init_threads, take_error};
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
    let instance = plugin.create(&options, 128).unwrap_or_else(|e| panic!("{e}"));
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
        host: host_services(),
        take_error,
    };
    check(&subject, Level::Full)
}

const VARIANTS: &[(&str, &[(&str, &str)])] = &[
    ("attention/cpu-stock", &[]),
    ("attention/cpu-sm120-mma", &[]),
    ("attention/cpu-sm120-mma", &[("split", "1")]),
    ("attention/cpu-sm120-mma", &[("split", "100")]),
    ("indexer/cpu-stock", &[("keys", "f32")]),
    ("indexer/cpu-stock", &[("keys", "bf16")]),
    ("indexer/cpu-stock", &[("keys", "fp8")]),
    ("indexer/cpu-sm120", &[("keys", "bf16")]),
    ("indexer/cpu-sm120", &[("keys", "fp8")]),
    ("indexer/cpu-sm120", &[("keys", "f32")]),
    ("indexer/cpu-sm120", &[("keys", "bf16"), ("early_exit", "false")]),
    ("moe/cpu-stock", &[]),
    ("moe/cpu-fused-scale", &[]),
    ("mhc/cpu-stock", &[]),
    ("mhc/cpu-bf16-gemm", &[]),
    ("kv_transport/local", &[]),
];

/// Fault, the op that must be flagged, and whether a measured error with a place is expected.
const FAULTS: &[(&str, &str, &str, bool)] = &[
    ("faulty/attention", "half-scale", "attention.core", true),
    ("faulty/attention", "sinks-dropped", "attention.core", true),
    ("faulty/attention", "wrong-slot", "attention.compress", true),
    ("faulty/attention", "far-no-rope", "attention.compress", true),
    ("faulty/attention", "nan", "attention.core", true),
    ("faulty/attention", "panic", "attention.core", false),
    ("faulty/attention", "error", "attention.core", false),
    ("faulty/indexer", "one-page", "indexer.select", false),
    ("faulty/indexer", "wrong-slot", "indexer.compress", true),
    ("faulty/indexer", "out-of-range", "indexer.select", false),
    ("faulty/moe", "id-off-by-one", "moe.route", false),
    ("faulty/moe", "scale-twice", "moe.route", true),
    ("faulty/mhc", "comb-roll", "mhc.pre", true),
    ("faulty/mhc", "comb-transposed", "mhc.pre", true),
    ("faulty/kv_transport", "next-layer", "kv_transport", false),
];

fn loader() -> Loader {
    init_threads(2);
    Loader::new(vec![plugin_dir()]).unwrap_or_else(|e| panic!("{e}"))
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
    for (variant, fault, op, measured) in FAULTS {
        let report = report(&loader, variant, &[("fault", fault)]);
        let first = report.failures().next().unwrap_or_else(|| panic!("{fault} passes: {report}"));
        let stray: Vec<_> = report.failures().filter(|f| f.op.name() != *op).collect();
        // After a panic the instance must not be called again, so later ops fail too.
        assert!(stray.is_empty() || *fault == "panic", "{fault} is flagged elsewhere: {report}");
        assert_eq!(first.op.name(), *op, "{report}");
        assert!(!first.case.is_empty() && !first.message.is_empty(), "{first}");
        if *measured {
            let worst =
                report.failures().find(|f| f.first.is_some()).unwrap_or_else(|| panic!("no place: {report}"));
            assert!(worst.error > 3.0 * worst.tolerance, "{fault} is within 3 tolerances: {worst}");
        }
    }
}

//! `hotseam bisect` on `configs/context-loss.yaml`: each planted fault is found and named, right patches are cleared.
//!
//! A default run plants the demonstration's fault, one born in prefill, one that needles cannot see, and none;
//! `scripts/test --full` plants them all.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::{full, root};
use serde_json::Value;
use std::time::Instant;

/// Rule that plants a fault, seam and phase of the culprit, and whether needles see it.
const FAULTS: &[(&str, &str, &[&str], bool)] = &[
    ("indexer@decode=faulty/indexer{fault: one-page, keys: bf16}", "indexer", &["decode"], true),
    ("attention@decode=faulty/attention{fault: half-scale}", "attention", &["decode"], true),
    ("attention@prefill=faulty/attention{fault: wrong-slot}", "attention", &["prefill"], true),
    ("mhc=faulty/mhc{fault: comb-roll}", "mhc", &["prefill", "decode"], true),
    ("moe=faulty/moe{fault: id-off-by-one}", "moe", &["prefill", "decode"], true),
    ("kv_transport=faulty/kv_transport{fault: next-layer}", "kv_transport", &[], true),
    ("moe=faulty/moe{fault: scale-twice}", "moe", &["prefill", "decode"], false),
    ("mhc=faulty/mhc{fault: comb-transposed}", "mhc", &["prefill", "decode"], false),
    ("attention=faulty/attention{fault: far-no-rope}", "attention", &["prefill", "decode"], false),
    ("attention=faulty/attention{fault: sinks-dropped}", "attention", &["prefill", "decode"], false),
];

/// Faults of a default run, by place in [`FAULTS`].
const QUICK: &[usize] = &[0, 9];

/// Runs a bisection; returns (exit code, report).
fn bisect(plant: &str, kl: bool) -> (i32, Value) {
    let mut command = hotseam();
    command.args(["bisect", "run"]).arg(root().join("configs/context-loss.yaml"));
    command.args(["--plant", plant, "--format", "json"]);
    if kl {
        command.args(["--set", "bisect.oracle={kind: kl, tokens: 2048, threshold: 4.0e-4}"]);
    }
    let start = Instant::now();
    let (code, out, err) = run(&mut command);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{plant}: {e}\n{out}\n{err}"));
    println!(
        "{plant}, {}: exit {code}, {} runs, {:.0} s, culprits {}",
        if kl { "kl" } else { "needle" },
        report["runs"],
        start.elapsed().as_secs_f64(),
        report["culprits"]
    );
    (code, report)
}

#[test]
fn planted_faults_are_found_in_at_most_13_runs() {
    for (i, (plant, seam, phases, visible)) in FAULTS.iter().enumerate() {
        if !full() && !QUICK.contains(&i) {
            continue;
        }
        let (code, report) = bisect(plant, !visible);
        assert_eq!(code, 0, "{plant}: {report:#}");
        let culprits = report["culprits"].as_array().unwrap();
        assert!(!culprits.is_empty() && culprits.iter().all(|c| c["seam"] == *seam), "{plant}: {culprits:?}");
        let text = report["culprits"].to_string();
        assert!(text.contains("faulty/"), "{plant}: {text}");
        assert!(phases.is_empty() || phases.iter().any(|p| text.contains(p)), "{plant}: {text}");
        let exonerated = report["exonerated"].as_array().unwrap();
        assert!(
            exonerated.iter().all(|e| !e["reason"].as_str().unwrap_or_default().is_empty()),
            "{exonerated:?}"
        );
        assert!(!exonerated.is_empty());
        assert_eq!(culprits.len(), 1, "{plant}: {culprits:?}");
        assert!(report["runs"].as_u64().unwrap() <= 13, "{plant}: {} runs", report["runs"]);
    }
}

#[test]
fn with_right_patches_the_ends_agree() {
    let (code, report) = bisect("none", false);
    assert_eq!((code, report["culprits"].as_array().map(Vec::len)), (1, Some(0)), "{report:#}");
    assert!(report["verdict"].to_string().contains("agree"), "{}", report["verdict"]);
    let (code, report) = bisect("none", true);
    assert_eq!((code, report["culprits"].as_array().map(Vec::len)), (1, Some(0)), "{report:#}");
}

#[test]
fn a_fault_that_needles_miss_is_named_by_conformance() {
    let blind = FAULTS.iter().enumerate().filter(|(_, f)| !f.3);
    for (i, (plant, seam, ..)) in blind {
        if !full() && i != 7 {
            continue;
        }
        let (code, report) = bisect(plant, false);
        assert_eq!(code, 1, "{plant}: {report:#}");
        assert!(report["verdict"].to_string().contains("agree"), "{}", report["verdict"]);
        let flagged = report["conformance"].to_string();
        assert!(flagged.contains(&format!("faulty/{seam}")), "{plant}: {flagged}");
    }
}

//! What the report looks like.

mod fake;

use fake::{Fake, atoms, suspects};
use hotseam_bisect::report::{Style, markdown, text, trial_line};

fn found() -> hotseam_bisect::Report {
    let changes = suspects();
    let ids = atoms(&changes, 9);
    let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
    target.flagged = vec!["indexer/cpu-sm120".into()];
    target.not_run = atoms(&changes, 15);
    target.run()
}

#[test]
fn text_fits_eighty_columns_and_names_everything() {
    let report = found();
    let style = Style { color: false, width: 80 };
    let drawn = text(&report, style);
    let trials: Vec<String> = report.trials.iter().map(|trial| trial_line(trial, Some(12), style)).collect();
    for line in drawn.lines().chain(trials.iter().map(String::as_str)) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for part in [
        "culprit found after",
        "✗ indexer  phase decode  class csa  layers 2,4,6",
        "- sufficient: the good end with it fails (run ",
        "- necessary: the bad end without it passes (run ",
        "✓ decode+prefill window+csa+hca+model: mhc/cpu-stock -> mhc/cpu-bf16-gemm",
        "did not run in the failing run (receipts)",
        "same code and options at both ends",
        "conformance  ",
        "case decode-3: error 2.1",
    ] {
        assert!(drawn.contains(part), "{part} is not in\n{drawn}");
    }
    assert!(!drawn.contains('\u{1b}'));
    assert!(text(&report, Style { color: true, width: 80 }).contains("\u{1b}[31;1m"));
}

#[test]
fn markdown_is_ready_to_paste() {
    let drawn = markdown(&found(), "hotseam bisect run x.yaml");
    assert!(drawn.starts_with("### Hotseam bisect: culprit found\n"));
    assert!(drawn.contains("| ✗ | indexer | decode csa | `indexer/cpu-stock -> indexer/cpu-sm120` |"));
    assert!(drawn.ends_with("Reproduce: `hotseam bisect run x.yaml`\n"));
    // Every table row has as many cells as its header.
    let mut columns = None;
    for line in drawn.lines() {
        let cells = line.replace("\\|", "").matches('|').count();
        if line.starts_with('|') {
            assert_eq!(*columns.get_or_insert(cells), cells, "{line}");
        } else {
            columns = None;
        }
    }
}

#[test]
fn json_has_the_documented_fields() {
    let value = serde_json::to_value(found()).unwrap();
    assert_eq!(value["verdict"], "culprit found");
    assert_eq!(value["exit_code"], 0);
    let culprit = &value["culprits"][0];
    assert_eq!(
        (&culprit["seam"], &culprit["phase"], &culprit["class"]),
        (&"indexer".into(), &"decode".into(), &"csa".into())
    );
    assert_eq!(culprit["layers"], serde_json::json!([2, 4, 6]));
    assert!(culprit["variant"].is_string() && culprit["evidence"].is_array());
    assert!(
        value["exonerated"]
            .as_array()
            .unwrap()
            .iter()
            .all(|e| e["change"].is_string() && e["reason"].is_string())
    );
    assert_eq!(value["runs"].as_u64().unwrap() as usize, value["trials"].as_array().unwrap().len());
    assert_eq!(value["ends"]["bad"]["outcome"]["verdict"], "bad");
}

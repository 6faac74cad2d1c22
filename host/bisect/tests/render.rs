//! What the report looks like, in each of its forms.

mod fake;
mod schema;

use std::collections::BTreeSet;

use fake::{Fake, atoms, suspects};
use hotseam_bisect::report::{About, Style, headline, html, junit, markdown, text, trial_line};
use hotseam_bisect::{Options, Report, run};
use hotseam_target::Probe;
use hotseam_target::simulated::{Condition, Fault, Rates, Simulated, flat};
use serde_json::Value;

/// Text that would break out of every form, if it could.
const EVIL: &str =
    "</script><script>alert('1')</script><img src=x onerror=\"alert(2)\"> ]]> & | ` \u{1b}[31m\n# no";

fn about() -> About {
    About {
        version: "1.2.3".into(),
        command: "hotseam bisect run x.yaml".into(),
        log: Some("hotseam-runs/x.jsonl".into()),
        facts: vec![("model".into(), "nano, sha256 00ff".into())],
    }
}

fn found() -> Report {
    let changes = suspects();
    let ids = atoms(&changes, 9);
    let mut target = Fake::new(changes.clone(), move |arm| !arm.is_disjoint(&ids));
    target.flagged = vec!["indexer/cpu-sm120".into()];
    target.not_run = atoms(&changes, 15);
    let mut report = target.run();
    let grid = |lost: bool| {
        let probe = |index: usize| Probe {
            length: [512, 2048][index % 2],
            depth: (index / 2) as f64 / 3.0,
            passed: !(lost && index > 4),
        };
        (0..8).map(probe).collect()
    };
    if let Some(outcome) = &mut report.ends.good.outcome {
        outcome.grid = grid(false);
    }
    if let Some(outcome) = &mut report.ends.bad.outcome {
        outcome.grid = grid(true);
    }
    report
}

fn noisy() -> Report {
    let mut target = Simulated::new(flat(16), Fault::any([5]))
        .noisy(Rates { draws: 8, ..Rates::new(0.05, 0.6) }, 3)
        .one_launch();
    run(&mut target, &Options { budget_runs: 200, ..Options::default() }, &mut ())
}

fn pair() -> Report {
    let mut target = Simulated::new(flat(16), Fault::all([3, 11]));
    run(&mut target, &Options { budget_runs: 60, ..Options::default() }, &mut ())
}

fn no_patch() -> Report {
    let fault = Fault::Always.when(Condition::Below("index_topk".into(), 300));
    let mut target = Simulated::new(flat(4), fault).axis("index_topk", "128", &["256", "512"]);
    run(&mut target, &Options { budget_runs: 40, ..Options::default() }, &mut ())
}

/// `report` with [`EVIL`] in every place that comes from files, plugins or oracles.
fn evil(mut report: Report) -> Report {
    let put = |text: &mut String| *text = EVIL.to_owned();
    put(&mut report.oracle);
    put(&mut report.ends.good.assignment);
    report.notes.push(EVIL.to_owned());
    for culprit in &mut report.culprits {
        [&mut culprit.seam, &mut culprit.change, &mut culprit.variant, &mut culprit.selector]
            .into_iter()
            .for_each(put);
        culprit.evidence.push(EVIL.to_owned());
        culprit.interacts_with.push(EVIL.to_owned());
    }
    for row in &mut report.exonerated {
        [&mut row.change, &mut row.reason, &mut row.place.delta].into_iter().for_each(put);
    }
    for check in &mut report.conformance {
        [&mut check.variant, &mut check.detail].into_iter().for_each(put);
    }
    for suspect in &mut report.suspects {
        [&mut suspect.change, &mut suspect.place.seam, &mut suspect.place.delta].into_iter().for_each(put);
        suspect.findings.iter_mut().for_each(|finding| put(&mut finding.text));
    }
    for trial in &mut report.trials {
        [&mut trial.why, &mut trial.outcome.summary, &mut trial.outcome.detail].into_iter().for_each(put);
        trial.changes.push(EVIL.to_owned());
        trial.axes.push((EVIL.to_owned(), EVIL.to_owned()));
    }
    report
}

fn all() -> [(&'static str, Report); 5] {
    [
        ("exact", found()),
        ("noisy", noisy()),
        ("pair", pair()),
        ("no patch", no_patch()),
        ("evil", evil(found())),
    ]
}

/// Elements of a page, by their names, in order; panics if tags do not match. Attributes must be quoted.
fn elements(page: &str) -> Vec<String> {
    const VOID: [&str; 3] = ["meta", "br", "!DOCTYPE"];
    let (mut open, mut seen, mut rest) = (Vec::<String>::new(), Vec::new(), page);
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag ends");
        let tag = &rest[start + 1..end];
        let name: String = tag.chars().take_while(|c| !c.is_whitespace() && *c != '/').collect();
        rest = &rest[end + 1..];
        if let Some(closed) = tag.strip_prefix('/') {
            assert_eq!(open.pop().as_deref(), Some(closed), "<{tag}>");
            continue;
        }
        assert_eq!(tag.matches('"').count() % 2, 0, "<{tag}>");
        let unquoted: String = tag.split('"').step_by(2).collect();
        assert!(!unquoted.split_whitespace().any(|word| word.to_lowercase().starts_with("on")), "<{tag}>");
        seen.push(name.clone());
        if VOID.contains(&name.as_str()) || tag.ends_with('/') {
            continue;
        }
        if ["script", "style"].contains(&name.as_str()) {
            let close = format!("</{name}>");
            let length = rest.find(&close).expect("the element ends");
            rest = &rest[length + close.len()..];
            continue;
        }
        open.push(name);
    }
    assert_eq!(open, [""; 0]);
    seen
}

#[test]
fn html_is_whole_loads_nothing_and_lets_nothing_out() {
    for (name, report) in all() {
        let page = html(&report, &about());
        let seen = elements(&page);
        let known: BTreeSet<&str> = "!DOCTYPE html head meta title style body main header section h1 h2 h3 p ul li dl div \
             dt dd table thead tbody tr th td span strong code pre details summary b i a br svg line text polyline circle \
             rect script"
            .split_whitespace()
            .collect();
        for element in &seen {
            assert!(known.contains(element.as_str()), "{name}: <{element}>");
        }
        assert_eq!(seen.iter().filter(|element| *element == "script").count(), 1, "{name}");
        for reference in ["http:", "https:", "src=", "url(", "@import", "<link", "javascript:"] {
            let shown = page.replace("src=x onerror", "");
            assert!(!shown.contains(reference), "{name}: {reference}");
        }
        let data = page.split("id=\"report\">").nth(1).unwrap().split("</script>").next().unwrap();
        assert_eq!(
            serde_json::from_str::<Value>(data).unwrap(),
            serde_json::to_value(&report).unwrap(),
            "{name}"
        );
        assert!(page.contains(report.verdict.as_str()));
    }
}

#[test]
fn html_shows_what_was_found() {
    let page = html(&found(), &about());
    for part in [
        "Culprit found and confirmed",
        "good end with it",
        "bad end without it",
        "<table class=\"grid\">",
        "<table class=\"heat\">",
        "hotseam bisect replay hotseam-runs/x.jsonl",
        "nano, sha256 00ff",
    ] {
        assert!(page.contains(part), "{part}");
    }
    assert_eq!(page.matches("class=\"fail\" title=\"lost\"").count(), 3);
    let report = noisy();
    let page = html(&report, &about());
    assert!(page.contains("Belief after each run") && page.contains("<polyline"), "{:?}", report.verdict);
    assert!(page.contains("Failure rates"));
    assert!(html(&no_patch(), &about()).contains("index_topk"));
}

#[test]
fn text_fits_eighty_columns_and_names_everything() {
    let report = found();
    let style = Style { color: false, width: 80 };
    let drawn = text(&report, style);
    for report in [&report, &noisy(), &pair(), &no_patch()] {
        let trials: Vec<String> = report.trials.iter().map(|trial| trial_line(trial, style)).collect();
        for line in text(report, style).lines().chain(trials.iter().map(String::as_str)) {
            assert!(line.chars().count() <= 80, "{line}");
        }
    }
    for part in [
        "verdict: found, ",
        "✗ indexer  phase decode  class csa  layers 2,4,6",
        "- sufficient: the good end with it fails (run ",
        "- necessary: the bad end without it passes (run ",
        "─ ✗ decode csa layers 2,4,6: ",
        "─ ✓ decode+prefill window+csa+hca+model layers 0-7: mhc/cpu-stock ->",
        "E1 did not run in the failing run (receipts)",
        "E0 same code and options at both ends",
        "conformance  ",
        "case decode-3: error 2.1",
    ] {
        assert!(drawn.contains(part), "{part} is not in\n{drawn}");
    }
    assert!(!drawn.contains('\u{1b}'));
    assert!(text(&report, Style { color: true, width: 80 }).contains("\u{1b}[31;1m"));
    assert!(text(&no_patch(), style).starts_with("verdict: no_patch"));
    let report = noisy();
    let believed = report.trials.iter().find(|trial| trial.after.posterior.is_some()).unwrap();
    assert!(trial_line(believed, style).contains("P(top) "));
}

#[test]
fn markdown_is_ready_to_paste() {
    let drawn = markdown(&found(), &about());
    assert!(drawn.starts_with("### hotseam bisect: culprit found and confirmed\n"));
    assert!(drawn.contains(
        "| ✗ | indexer | decode csa layers 2,4,6 | `indexer/cpu-stock -> indexer/cpu-sm120` | E5 |"
    ));
    assert!(drawn.ends_with("Reproduce: `hotseam bisect run x.yaml`\n"));
    for (name, report) in all() {
        let drawn = markdown(&report, &about());
        // Every table row has as many cells as its header, and nothing but our own tags is HTML.
        let mut columns = None;
        for line in drawn.lines() {
            let cells = line.replace("\\|", "").matches('|').count();
            if line.starts_with('|') {
                assert_eq!(*columns.get_or_insert(cells), cells, "{name}: {line}");
            } else {
                columns = None;
            }
            assert!(!line.starts_with("# "), "{name}: {line}");
        }
        let code_free: String = drawn.replace("\\`", "").split('`').step_by(2).collect();
        for tag in code_free.split('<').skip(1) {
            let own = ["details>", "/details>", "summary>", "/summary>"];
            assert!(own.iter().any(|known| tag.starts_with(known)), "{name}: <{tag}");
        }
    }
}

#[test]
fn junit_is_well_formed_and_counts_its_cases() {
    for (name, report) in all() {
        let drawn = junit(&report, &about());
        let xml = drawn.strip_prefix("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n").unwrap();
        let seen = elements(xml);
        let count = |element: &str| seen.iter().filter(|seen| *seen == element).count();
        for (attribute, element) in
            [("tests", "testcase"), ("failures", "failure"), ("skipped", "skipped"), ("errors", "error")]
        {
            let part = format!("{attribute}=\"{}\"", count(element));
            assert!(drawn.lines().nth(1).unwrap().contains(&part), "{name}: {part}");
        }
        assert!(!drawn.chars().any(|c| c.is_control() && c != '\n' && c != '\t'), "{name}");
    }
    let report = found();
    let drawn = junit(&report, &about());
    let guilty = drawn.lines().find(|line| line.contains("<failure")).unwrap();
    assert!(guilty.contains("classname=\"hotseam.indexer\"") && guilty.contains("(run "), "{guilty}");
    assert!(drawn.contains("\nE5: "), "{drawn}");
    let cleared = drawn.lines().find(|line| line.contains("name=\"kv_transport\"")).unwrap();
    assert!(cleared.contains("<system-out>E0: same code"), "{cleared}");
}

#[test]
fn the_published_schema_is_that_of_the_types_and_reports_are_valid() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/schema/bisect-report.schema.json");
    let made = serde_json::to_string_pretty(&hotseam_bisect::report::schema()).unwrap() + "\n";
    if std::env::var_os("HOTSEAM_WRITE_SCHEMA").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let published = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        published, made,
        "write it anew: HOTSEAM_WRITE_SCHEMA=1 cargo test --release -p hotseam-bisect --test render"
    );
    let published: Value = serde_json::from_str(&published).unwrap();
    for (name, report) in all() {
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(schema::errors(&published, &value), [""; 0], "{name}");
        // The schema says something: without a field, or with a wrong word, it is another report.
        let mut broken = value.clone();
        broken.as_object_mut().unwrap().remove("trials");
        assert!(!schema::errors(&published, &broken).is_empty());
        let mut broken = value.clone();
        broken["verdict"] = "perhaps".into();
        assert!(!schema::errors(&published, &broken).is_empty());
        let mut broken = value;
        broken["trials"][0]["outcome"]["counts"]["fail"] = (-1).into();
        assert!(!schema::errors(&published, &broken).is_empty());
    }
}

#[test]
fn json_has_the_documented_fields() {
    let value = serde_json::to_value(found()).unwrap();
    assert_eq!(value["verdict"], "found");
    assert_eq!(value["exit_code"], 0);
    let culprit = &value["culprits"][0];
    assert_eq!(
        (&culprit["seam"], &culprit["phase"], &culprit["class"]),
        (&"indexer".into(), &"decode".into(), &"csa".into())
    );
    assert_eq!(culprit["layers"], serde_json::json!([2, 4, 6]));
    assert!(culprit["variant"].is_string() && culprit["evidence"].is_array());
    let cleared = value["exonerated"].as_array().unwrap();
    assert!(cleared.iter().all(|e| e["change"].is_string() && e["reason"].is_string()));
    assert_eq!(value["runs"].as_u64().unwrap() as usize, value["trials"].as_array().unwrap().len());
    assert_eq!(value["ends"]["bad"]["outcome"]["verdict"], "bad");
}

#[test]
fn the_headline_says_it_in_a_sentence() {
    assert_eq!(
        headline(&found()),
        "indexer in decode csa layers 2,4,6: indexer/cpu-stock -> indexer/cpu-sm120."
    );
    assert!(headline(&pair()).starts_with("Only together: "));
    assert!(
        headline(&no_patch()).contains("What heals it: index_topk 128 -> 512"),
        "{}",
        headline(&no_patch())
    );
}

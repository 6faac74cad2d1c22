//! Is it the hand-off? Planted transports are found as guilty only when disaggregated, with component, layer and page, in one
//! process and over a pair of servers; a fault of prefill is told apart from them.
//!
//! A default run plants some transports; `scripts/test --full` plants them all.

use hotseam_tests::http::{Server, hotseam, run};
use hotseam_tests::{full, root};
use serde_json::Value;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

/// One search at a time: each uses every core.
static TURN: Mutex<()> = Mutex::new(());

const AUDIT: &str = "{kind: audit, lengths: [521, 777]}";
const KL: &str = "{kind: kl, tokens: 600, threshold: 4.0e-4}";

/// A planted transport.
struct Fault {
    quick: bool,
    option: &'static str,
    oracle: &'static str,
    /// Component, layer and page of a damaged item.
    place: (&'static str, u64, Option<u64>),
    /// What is said of it.
    what: &'static str,
}

const fn fault(
    quick: bool,
    option: &'static str,
    oracle: &'static str,
    place: (&'static str, u64, Option<u64>),
    what: &'static str,
) -> Fault {
    Fault { quick, option, oracle, place, what }
}

/// Layers 2, 4 and 6 have ratio 4, layers 3 and 5 ratio 128.
const FAULTS: &[Fault] = &[
    fault(
        true,
        "fault: component-dropped, component: index_keys",
        KL,
        ("index_keys", 2, Some(1)),
        "index_keys layer 2 page 1: expected but never written",
    ),
    fault(
        false,
        "fault: component-dropped, component: c4_state",
        AUDIT,
        ("c4_state", 4, Some(0)),
        "c4_state layer 4 row 0: expected but never written",
    ),
    fault(false, "fault: layer-offset", KL, ("c128", 3, Some(0)), "its bytes are not those that were sent"),
    fault(false, "fault: page-size", KL, ("c4", 2, Some(2)), "c4 layer 2 page 2: expected but never written"),
    fault(true, "fault: ring-size", AUDIT, ("c4_state", 2, Some(0)), "holds c4_state layer 2 row"),
    fault(false, "fault: truncated-page, component: c4", AUDIT, ("c4", 2, Some(2)), "bytes were written"),
    fault(false, "fault: truncated-page, component: swa", AUDIT, ("swa", 0, Some(1)), "bytes were written"),
    fault(true, "fault: stale-page, component: c4", AUDIT, ("c4", 2, Some(0)), "of the hand-off before"),
    fault(
        true,
        "fault: bit-flip, component: c128",
        AUDIT,
        ("c128", 3, Some(0)),
        "c128 layer 3 page 0: its bytes are not those that were sent",
    ),
    fault(
        false,
        "fault: reorder, component: c4",
        KL,
        ("c4", 2, Some(1)),
        "c4 layer 2 page 1: holds c4 layer 2 page 0",
    ),
    fault(false, "fault: next-layer", KL, ("c4", 4, Some(0)), "c4 layer 4 page 0: holds c4 layer 2 page 0"),
];

/// Runs `hotseam bisect run`; returns (exit code, report).
fn bisect(config: &Path, args: &[&str]) -> (i32, Value) {
    let _turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut command = hotseam();
    command.args(["bisect", "run"]).arg(config).args(["--format", "json", "--no-log"]).args(args);
    let start = Instant::now();
    let (code, out, err) = run(&mut command);
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|e| panic!("{args:?}: {e}\n{out}\n{err}"));
    println!("{args:?}: exit {code}, {} runs, {:.0} s", report["runs"], start.elapsed().as_secs_f64());
    (code, report)
}

/// Runs `configs/topology.yaml` with other settings.
fn shipped(args: &[&str]) -> (i32, Value) {
    bisect(&root().join("configs/topology.yaml"), args)
}

fn list<'a>(value: &'a Value, field: &str) -> &'a [Value] {
    value[field].as_array().map_or(&[], Vec::as_slice)
}

/// The component of a hand-off.
fn component<'a>(handoff: &'a Value, name: &str) -> &'a Value {
    let found = list(handoff, "components").iter().find(|own| own["component"] == name);
    found.unwrap_or_else(|| panic!("no {name}: {handoff:#}"))
}

/// The one culprit, confirmed in both directions, and guilty only when disaggregated.
fn only_paired(report: &Value) -> &Value {
    let [culprit] = list(report, "culprits") else { panic!("{report:#}") };
    assert!(culprit["sufficient"].as_u64().is_some_and(|run| run > 0), "{culprit:#}");
    assert!(culprit["necessary"].as_u64().is_some_and(|run| run > 0), "{culprit:#}");
    assert_eq!(culprit["topology"]["fails"], "only_paired", "{culprit:#}");
    let evidence = culprit["evidence"].to_string();
    assert!(evidence.contains("guilty only when disaggregated: topology paired fails"), "{evidence}");
    let run = culprit["topology"]["single"].as_u64().expect("a run") as usize;
    assert_eq!(report["trials"][run - 1]["outcome"]["verdict"], "good", "{report:#}");
    culprit
}

impl Fault {
    /// The damaged item is among those that the hand-off of the culprit names.
    fn is_named_in(&self, culprit: &Value) {
        let (name, layer, page) = self.place;
        let handoff = &culprit["handoff"];
        let of = |damage: &&Value| {
            (damage["layer"].as_u64(), damage["page"].as_u64()) == (Some(layer), page)
                && damage["what"].as_str().is_some_and(|what| what.contains(self.what))
        };
        let own = component(handoff, name);
        assert!(list(own, "damage").iter().any(|damage| of(&damage)), "{}: {own:#}", self.option);
        assert!(own["whole"].as_u64() < own["items"].as_u64(), "{own:#}");
        assert!(culprit["evidence"].to_string().contains(name), "{culprit:#}");
    }
}

#[test]
fn every_faulty_transport_is_guilty_only_when_disaggregated() {
    for (index, fault) in FAULTS.iter().enumerate().filter(|(_, fault)| full() || fault.quick) {
        let plant = format!("kv_transport=faulty/kv_transport{{{}}}", fault.option);
        let oracle = format!("bisect.oracle={}", fault.oracle);
        // Half of them with the topology as an axis, half as a change between the ends.
        let as_change = format!("bisect.single_to_paired={}", index % 2 == 0);
        let (code, report) = shipped(&["--plant", &plant, "--set", &oracle, "--set", &as_change]);
        assert_eq!((code, &report["verdict"]), (0, &Value::from("found")), "{plant}: {report:#}");
        let culprit = only_paired(&report);
        assert_eq!((&culprit["seam"], &culprit["phase"]), (&"kv_transport".into(), &"handoff".into()));
        assert!(culprit["change"].to_string().contains(fault.option.split([',', ' ']).nth(1).unwrap()));
        fault.is_named_in(culprit);
        // A component that the fault is not about arrived whole.
        if fault.option.contains("component: ") {
            let other = component(&culprit["handoff"], if fault.place.0 == "c4" { "c128" } else { "c4" });
            assert_eq!(other["whole"], other["items"], "{other:#}");
        }
    }
}

#[test]
fn with_a_sound_transport_one_pool_and_two_agree_and_every_component_is_whole() {
    let (code, report) = shipped(&["--set", &format!("bisect.oracle={KL}")]);
    assert_eq!((code, report["culprits"].as_array().map(Vec::len)), (1, Some(0)), "{report:#}");
    assert_eq!(report["runs"], 2);
    // Bit for bit: the divergence of the pair from the single engine is nothing at all.
    assert_eq!(report["ends"]["bad"]["outcome"]["metric"], 0.0, "{report:#}");
    for name in ["swa", "c4", "c128", "index_keys", "c4_state", "c128_state", "index_state"] {
        let own = component(&report["handoff"], name);
        assert!(own["items"].as_u64().is_some_and(|items| items > 0), "{own:#}");
        assert_eq!((&own["whole"], list(own, "damage").len()), (&own["items"], 0), "{own:#}");
    }
}

/// The same broken transport at both ends, so that nothing differs but the topology; and what people read of it.
#[test]
fn a_transport_of_both_ends_makes_the_topology_guilty_in_every_form_of_the_report() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = std::fs::read_to_string(root().join("configs/topology.yaml")).expect("the file");
    let text = text
        .replace("kv_transport/local }", "\"faulty/kv_transport{fault: layer-offset}\" }")
        .replace("../assets", &root().join("assets").display().to_string())
        .replace("tokens: 1100", "tokens: 600");
    let path = dir.path().join("both.yaml");
    std::fs::write(&path, text).expect("a written file");
    let forms = ["md", "html"].map(|end| dir.path().join(format!("report.{end}")));
    let names = forms.each_ref().map(|path| path.display().to_string());
    let (code, report) = bisect(&path, &["-o", &names[0], "-o", &names[1]]);
    assert_eq!(code, 0, "{report:#}");
    let culprit = only_paired(&report);
    assert_eq!((&culprit["seam"], &culprit["change"]), (&"topology".into(), &"single -> paired".into()));
    assert!(component(&culprit["handoff"], "c128")["whole"] == 0, "{culprit:#}");
    assert_eq!(report["runs"], 2, "{report:#}");
    for form in &forms {
        let said = std::fs::read_to_string(form).expect("a report");
        for part in ["guilty only when disaggregated", "c128 layer 3 page 0", "index_state"] {
            assert!(said.contains(part), "{}: no `{part}` in {said}", form.display());
        }
    }
}

#[test]
fn a_fault_of_prefill_is_guilty_in_both_topologies() {
    let plant = "attention@prefill=faulty/attention{fault: wrong-slot}";
    let (code, report) = shipped(&[
        "--plant",
        plant,
        "--set",
        "bisect.single_to_paired=false",
        "--set",
        "engine.chunk=128",
        "--set",
        &format!("bisect.oracle={KL}"),
    ]);
    assert_eq!(code, 0, "{report:#}");
    let [culprit] = list(&report, "culprits") else { panic!("{report:#}") };
    assert_eq!((&culprit["seam"], &culprit["topology"]["fails"]), (&"attention".into(), &"both".into()));
    assert!(culprit["evidence"].to_string().contains("so it is not the hand-off"), "{culprit:#}");
}

/// A prefill and a decode worker, and one of topology `single`, as processes of their own.
struct Workers {
    prefill: Server,
    decode: Server,
    single: Server,
}

impl Workers {
    fn start() -> Self {
        let sizes = ["engine.max_context=2048", "engine.max_seqs=2", "engine.chunk=128"];
        let serve = |file: &str, more: &[&str]| {
            Server::serve(&root().join("configs").join(file), &[sizes.as_slice(), more].concat())
        };
        Self {
            prefill: serve("pd-prefill.yaml", &["disaggregation.audit=true"]),
            decode: serve("pd-decode.yaml", &["disaggregation.audit=true"]),
            single: serve("pd-prefill.yaml", &["disaggregation.role=single", "engine.topology=single"]),
        }
    }

    /// Writes a file whose bad end has `rules` besides those of the good one.
    fn file(&self, dir: &Path, rules: &[(&str, &str)]) -> std::path::PathBuf {
        let root = root();
        let assets = root.join("assets");
        let mut text = format!(
            "model: {{ path: {0}/nano-v4 }}\nengine: {{ topology: paired, max_context: 2048 }}\nneedle: {{ haystack: [{0}/haystack/time-machine.txt] }}\n",
            assets.display()
        );
        text += "assignments:\n  live:\n";
        for seam in ["attention", "moe", "mhc"] {
            let _ = writeln!(text, "    - {{ select: {seam}, use: {seam}/cpu-stock }}");
        }
        text += "    - { select: indexer, use: \"indexer/cpu-stock{keys: f32}\" }\n";
        text +=
            "    - { select: kv_transport, use: kv_transport/tcp }\n  bad:\n    extends: live\n    rules:\n";
        for (select, variant) in rules {
            let _ = writeln!(text, "      - {{ select: \"{select}\", use: \"{variant}\" }}");
        }
        let _ = writeln!(
            text,
            "bisect:\n  good: live\n  bad: bad\n  budget_runs: 40\n  oracle:\n    kind: exact\n    max_tokens: 8\n    prompts:\n      \
             - {{ prompt: \"{}\" }}\n  target:",
            "The old school stood by the river. Snow fell on the hills. ".repeat(36).trim()
        );
        for (name, server) in [("prefill", &self.prefill), ("decode", &self.decode), ("single", &self.single)]
        {
            let (admin, api) = (server.admin.display(), &server.address);
            let _ = writeln!(text, "    {name}: {{ admin: \"unix:{admin}\", api: \"http://{api}\" }}");
        }
        let path = dir.join("pair.yaml");
        std::fs::write(&path, text).expect("a written file");
        path
    }

    /// Nothing is left on the servers.
    fn assert_clean(&self) {
        for server in [&self.prefill, &self.decode, &self.single] {
            let slots = server.admin("GET", "/slots", "").json();
            let names: Vec<&String> = slots["assignments"].as_object().expect("assignments").keys().collect();
            assert_eq!(names, ["live"]);
            let stats = server.admin("GET", "/stats", "").json();
            assert_eq!(stats["free_pages"], stats["total_pages"], "{stats:#}");
        }
    }
}

/// Two processes are one target, and a layout is changed on both together: what prefill computes wrongly is found on it, and in
/// both topologies; what a transport does between them is found as well, and only there.
#[test]
fn a_pair_of_servers_is_one_target() {
    let workers = Workers::start();
    let dir = tempfile::tempdir().expect("a directory");

    let file = workers.file(
        dir.path(),
        &[("indexer", "indexer/cpu-stock{keys: bf16}"), ("mhc@prefill", "faulty/mhc{fault: comb-roll}")],
    );
    let (code, report) = bisect(&file, &[]);
    assert_eq!(code, 0, "{report:#}");
    let [culprit] = list(&report, "culprits") else { panic!("{report:#}") };
    assert_eq!((&culprit["seam"], &culprit["phase"]), (&"mhc".into(), &"prefill".into()), "{culprit:#}");
    assert_eq!(culprit["topology"]["fails"], "both", "{culprit:#}");
    workers.assert_clean();

    let file = workers.file(
        dir.path(),
        &[
            ("indexer", "indexer/cpu-stock{keys: bf16}"),
            ("kv_transport", "faulty/kv_transport{fault: bit-flip, component: c4}"),
        ],
    );
    let (code, report) = bisect(&file, &[]);
    assert_eq!(code, 0, "{report:#}");
    let culprit = only_paired(&report);
    assert_eq!(culprit["seam"], "kv_transport", "{culprit:#}");
    // The workers audit, so the requests fail with what the audit found, and the map of decode is read.
    assert!(culprit["handoff"].to_string().contains("c4 layer 2 page 0: its bytes are not"), "{culprit:#}");
    assert_eq!(report["ends"]["bad"]["outcome"]["signature"], "error:E-KV-AUDIT", "{report:#}");
    workers.assert_clean();

    // The worker beside the pair hands nothing over, which is well as an audit sees it.
    let rules = [("kv_transport", "faulty/kv_transport{fault: bit-flip, component: c4}")];
    let file = workers.file(dir.path(), &rules);
    let oracle = format!("bisect.oracle={AUDIT}");
    let (code, report) = bisect(
        &file,
        &["--set", "bisect.single_to_paired=true", "--set", "bisect.good=bad", "--set", &oracle],
    );
    assert_eq!(code, 0, "{report:#}");
    let culprit = only_paired(&report);
    assert_eq!((&culprit["seam"], &culprit["change"]), (&"topology".into(), &"single -> paired".into()));
    assert!(culprit["handoff"].to_string().contains("c4 layer 2 page 0: its bytes are not"), "{culprit:#}");
    workers.assert_clean();
}

#[test]
fn a_pair_that_is_not_whole_is_refused_with_the_next_step() {
    let dir = tempfile::tempdir().expect("a directory");
    let text = std::fs::read_to_string(root().join("configs/topology.yaml")).expect("the file");
    let path = dir.path().join("half.yaml");
    std::fs::write(&path, text.replace("../assets", &root().join("assets").display().to_string()))
        .expect("a file");
    let worker = "{admin: 'unix:/nonexistent/a.sock', api: 'http://127.0.0.1:1'}";
    for (target, part) in [
        (format!("{{prefill: {worker}}}"), "missing field `decode`"),
        (
            format!("{{single: {worker}}}"),
            "name a server by `endpoints` and `api`, or a pair by `prefill` and `decode`",
        ),
        (
            format!("{{prefill: {worker}, decode: {worker}, api: 'http://127.0.0.1:2'}}"),
            "only read without `prefill`",
        ),
        (
            format!("{{prefill: {worker}, decode: {worker}}}"),
            "missing field `single`, the worker of the good end",
        ),
        (
            format!("{{prefill: {worker}, decode: {worker}, single: {worker}}}"),
            "unix:/nonexistent/a.sock: cannot connect",
        ),
    ] {
        let mut command = hotseam();
        command.args(["bisect", "run"]).arg(&path).args(["--set", &format!("bisect.target={target}")]);
        let (code, _, err) = run(&mut command);
        assert_eq!(code, 2, "{target}: {err}");
        assert!(err.contains(part), "{target}: {err}");
    }
}

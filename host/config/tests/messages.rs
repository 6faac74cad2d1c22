//! Every message of the configuration, as a person sees it.

use std::path::Path;

use hotseam_config::parse;

/// A valid configuration that the cases change.
const GOOD: &str = "\
model: { path: ../assets/nano-v4 }
server: { listen: 127.0.0.1:8000, admin: null }
engine: { max_seqs: 8, max_context: 8192, topology: single }
assignments:
  live:
    - { select: attention, use: attention/cpu-stock }
    - { select: indexer, use: \"indexer/cpu-stock{keys: f32}\" }
  suspects:
    extends: live
    rules: [{ select: mhc, use: mhc/bf16-gemm }]
bisect:
  good: live
  bad: suspects
  oracle: { kind: needle, lengths: [2048], depths: 8 }
";

#[track_caller]
fn expect(text: &str, sets: &[&str], message: &str) {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    let error = parse(text, "x.yaml", Path::new("/etc/hotseam"), &sets).expect_err("accepted");
    assert_eq!(error.to_string(), message);
}

/// `GOOD` with `from` replaced; the case is broken if `from` is not there.
#[track_caller]
fn with(from: &str, to: &str) -> String {
    assert!(GOOD.contains(from), "{from} is not in the base text");
    GOOD.replacen(from, to, 1)
}

#[test]
fn unknown_key_names_the_nearest() {
    expect(
        &with("max_seqs", "max_seq"),
        &[],
        "\
x.yaml:3:11: unknown field `max_seq`
  |
3 | engine: { max_seq: 8, max_context: 8192, topology: single }
  |           ^
  field: engine.max_seq
  help: did you mean `max_seqs`? known: device, graphs, cublaslt, tp_size, collective, max_seqs, max_context, chunk, pages, topology, threads, index_topk, \
prefix_cache_bytes, guard, amx",
    );
    expect(
        &with("server:", "zzzzzzzz:"),
        &[],
        "\
x.yaml:2:1: unknown field `zzzzzzzz`
  |
2 | zzzzzzzz: { listen: 127.0.0.1:8000, admin: null }
  | ^
  field: zzzzzzzz
  help: known: model, server, engine, disaggregation, plugins, assignments, needle, bisect",
    );
    expect(
        &with("{ select: mhc, use", "{ select: mhc, uses"),
        &[],
        "\
x.yaml:10:28: unknown field `uses`
   |
10 |     rules: [{ select: mhc, uses: mhc/bf16-gemm }]
   |                            ^
  field: assignments.suspects.rules[0].uses
  help: did you mean `use`? known: select, use",
    );
}

#[test]
fn wrong_types_and_values() {
    expect(
        &with("max_context: 8192", "max_context: lots"),
        &[],
        "\
x.yaml:3:37: invalid type: string \"lots\", expected a whole number, 0 or more
  |
3 | engine: { max_seqs: 8, max_context: lots, topology: single }
  |                                     ^
  field: engine.max_context",
    );
    expect(
        &with("max_seqs: 8", "max_seqs: 0"),
        &[],
        "\
x.yaml:3:21: expected a number of at least 1, found 0
  |
3 | engine: { max_seqs: 0, max_context: 8192, topology: single }
  |                     ^
  field: engine.max_seqs",
    );
    expect(
        &with("single", "pared"),
        &[],
        "\
x.yaml:3:53: unknown value `pared`
  |
3 | engine: { max_seqs: 8, max_context: 8192, topology: pared }
  |                                                     ^
  field: engine.topology
  help: did you mean `paired`? known: single, paired",
    );
    expect(
        &with("127.0.0.1:8000", "localhost"),
        &[],
        "\
x.yaml:2:19: expected an IP address and a port, such as 127.0.0.1:8000, found `localhost`
  |
2 | server: { listen: localhost, admin: null }
  |                   ^
  field: server.listen",
    );
    expect(
        &with("model: { path: ../assets/nano-v4 }", "model: {}"),
        &[],
        "\
x.yaml:1:8: missing field `path`
  |
1 | model: {}
  |        ^
  field: model",
    );
    expect(
        &with("    rules: [{ select: mhc, use: mhc/bf16-gemm }]", "    rules: mhc"),
        &[],
        "\
x.yaml:10:12: invalid type: string \"mhc\", expected a sequence
   |
10 |     rules: mhc
   |            ^
  field: assignments.suspects.rules",
    );
    expect(
        "model: { path: a }\nassignments: { live: stock }\n",
        &[],
        "\
x.yaml:2:22: invalid type: string \"stock\", expected a list of rules or {extends: NAME, rules: [...]}
  |
2 | assignments: { live: stock }
  |                      ^
  field: assignments.live",
    );
    expect(
        "",
        &[],
        "\
x.yaml:1:1: missing field `model`
  |
1 | 
  | ^",
    );
}

#[test]
fn a_rule_has_a_variant_unless_it_heals() {
    expect(
        &with("{ select: mhc, use: mhc/bf16-gemm }", "{ select: mhc }"),
        &[],
        "\
x.yaml:10:13: missing field `use`: which variant the cells of `mhc` get
   |
10 |     rules: [{ select: mhc }]
   |             ^
  field: assignments.suspects.rules[0]",
    );
    expect(
        &with("select: mhc,", "select: \"!mhc\","),
        &[],
        "\
x.yaml:10:13: the selector `!mhc` heals, so it takes no variant; found `use: mhc/bf16-gemm`
   |
10 |     rules: [{ select: \"!mhc\", use: mhc/bf16-gemm }]
   |             ^
  field: assignments.suspects.rules[0]",
    );
}

#[test]
fn oracle_fields_belong_to_their_kind() {
    expect(
        &with("depths: 8", "threshold: 1.0"),
        &[],
        "\
x.yaml:14:44: unknown field `threshold`
   |
14 |   oracle: { kind: needle, lengths: [2048], threshold: 1.0 }
   |                                            ^
  field: bisect.oracle.threshold
  help: known: lengths, depths, task, needles, turns, concurrent, least_good, tolerance",
    );
    expect(
        &with("kind: needle, lengths: [2048], depths: 8", "kind: kl, threshold: -1"),
        &[],
        "\
x.yaml:14:34: expected null or a finite number above 0, found -1
   |
14 |   oracle: { kind: kl, threshold: -1 }
   |                                  ^
  field: bisect.oracle.threshold",
    );
    expect(
        &with("kind: needle", "kind: neddle"),
        &[],
        "\
x.yaml:14:19: unknown value `neddle`
   |
14 |   oracle: { kind: neddle, lengths: [2048], depths: 8 }
   |                   ^
  field: bisect.oracle.kind
  help: did you mean `needle`? known: needle, kl, perplexity, exact, repeat, audit, command",
    );
    expect(
        &with("lengths: [2048]", "lengths: []"),
        &[],
        "\
x.yaml:14:36: expected a list of at least one length, each at least 1
   |
14 |   oracle: { kind: needle, lengths: [], depths: 8 }
   |                                    ^
  field: bisect.oracle.lengths",
    );
}

/// The message for an oracle in place of that of [`GOOD`], without the part that shows the source line.
#[track_caller]
fn oracle_error(oracle: &str) -> String {
    let text = with("{ kind: needle, lengths: [2048], depths: 8 }", oracle);
    let error = parse(&text, "x.yaml", Path::new("/etc/hotseam"), &[]).expect_err("accepted").to_string();
    let kept = error.lines().filter(|line| !line.contains(" |"));
    kept.map(|line| line.trim().trim_start_matches("x.yaml:")).collect::<Vec<_>>().join("; ")
}

#[test]
fn every_kind_of_oracle_names_the_place() {
    for (oracle, message) in [
        (
            "{ lengths: [2] }",
            "14:11: missing field `kind`, expected one of needle, kl, perplexity, exact, repeat, audit, command; field: bisect.oracle",
        ),
        (
            "{ kind: needle, depht: 3 }",
            "14:27: unknown field `depht`; field: bisect.oracle.depht; help: did you mean `depths`? known: lengths, depths, task, needles, turns, concurrent, least_good, tolerance",
        ),
        (
            "{ kind: needle, needles: 3 }",
            "14:36: only read with `task: multi`; leave it away or set the task; field: bisect.oracle.needles",
        ),
        (
            "{ kind: needle, task: multi, needles: 1 }",
            "14:49: expected at least 2, found 1; field: bisect.oracle.needles",
        ),
        (
            "{ kind: needle, task: multy }",
            "14:33: unknown value `multy`; field: bisect.oracle.task; help: did you mean `multi`? known: single, multi, multi-turn, passphrase",
        ),
        (
            "{ kind: needle, least_good: 2 }",
            "14:39: expected null or a number from 0 to 1, found 2; field: bisect.oracle.least_good",
        ),
        (
            "{ kind: kl, noise: loud }",
            "14:30: unknown value `loud`; field: bisect.oracle.noise; help: known: exact, counted",
        ),
        (
            "{ kind: perplexity, ratio: .inf }",
            "14:38: expected a finite number above 0, found inf; field: bisect.oracle.ratio",
        ),
        (
            "{ kind: exact, prompts: [] }",
            "14:35: expected a list of at least one item, found none; field: bisect.oracle.prompts",
        ),
        (
            "{ kind: exact, prompts: [{ promt: a }] }",
            "14:38: unknown field `promt`; field: bisect.oracle.prompts[0].promt; help: did you mean `prompt`? known: prompt, expect",
        ),
        ("{ kind: exact }", "14:11: missing field `prompts`; field: bisect.oracle"),
        ("{ kind: repeat, times: 1 }", "14:34: expected at least 2, found 1; field: bisect.oracle.times"),
        (
            "{ kind: command, command: [x], timeout_seconds: 0 }",
            "14:59: expected a finite number above 0, found 0; field: bisect.oracle.timeout_seconds",
        ),
        (
            "{ kind: command, command: x }",
            "14:37: invalid type: string \"x\", expected a sequence; field: bisect.oracle.command",
        ),
    ] {
        assert_eq!(oracle_error(oracle), message, "{oracle}");
    }
}

#[test]
fn endpoints_of_a_target() {
    let target = |endpoints: &str| {
        format!("{{ kind: kl }}\n  target: {{ endpoints: {endpoints}, api: \"http://h:1\" }}")
    };
    for (endpoints, message) in [
        ("[]", "15:24: expected a list of at least one item, found none; field: bisect.target.endpoints"),
        (
            "[\"tcp:x\"]",
            "15:25: expected unix:/path/of.sock or http://host:port, found `tcp:x`; field: bisect.target.endpoints[0]",
        ),
        (
            "[\"http://host\"]",
            "15:25: expected unix:/path/of.sock or http://host:port, found `http://host`; field: bisect.target.endpoints[0]",
        ),
        (
            "[{ url: \"unix:a\", tokenfile: b }]",
            "15:42: unknown field `tokenfile`; field: bisect.target.endpoints[0].tokenfile; help: did you mean `token_file`? known: url, token_file",
        ),
        (
            "[\"https://h:1\"]",
            "15:25: `https://h:1` asks for TLS, which this client does not speak; name the near end of a tunnel, such as http://127.0.0.1:9000; field: bisect.target.endpoints[0]",
        ),
    ] {
        assert_eq!(oracle_error(&target(endpoints)), message, "{endpoints}");
    }
}

#[test]
fn syntax_duplicates_and_tags() {
    expect(
        "model: { path: a\nassignments: {}\n",
        &[],
        "\
x.yaml:2:12: did not find expected ',' or '}', while parsing a flow mapping at line 1 column 8
  |
2 | assignments: {}
  |            ^",
    );
    expect(
        &with("bisect:", "server: {}\nbisect:"),
        &[],
        "\
x.yaml:11:1: duplicate key `server`
   |
11 | server: {}
   | ^",
    );
    expect(
        &with("  suspects:", "  live:"),
        &[],
        "\
x.yaml:8:3: duplicate key `live`
  |
8 |   live:
  |   ^",
    );
    expect(
        "model: { path: !env HOME }\n",
        &[],
        "\
x.yaml:1:16: YAML tags such as `!name` have no meaning here; quote the value
  |
1 | model: { path: !env HOME }
  |                ^",
    );
}

#[test]
fn references_between_assignments() {
    expect(
        &with("extends: live", "extends: life"),
        &[],
        "\
x.yaml:9:14: `suspects` extends the unknown assignment `life`
  |
9 |     extends: life
  |              ^
  field: assignments.suspects.extends
  help: did you mean `live`? known: live",
    );
    expect(
        "\
model: { path: a }
assignments:
  live: { extends: b, rules: [] }
  b: { extends: c, rules: [] }
  c: { extends: b, rules: [] }
",
        &[],
        "\
x.yaml:4:17: `b` extends itself: b -> c -> b
  |
4 |   b: { extends: c, rules: [] }
  |                 ^
  field: assignments.b.extends",
    );
    expect(
        "model: { path: a }\nassignments: { lives: [] }\n",
        &[],
        "\
x.yaml:2:14: there is no assignment `live`, which requests use by default
  |
2 | assignments: { lives: [] }
  |              ^
  field: assignments
  help: found `lives`",
    );
    expect(
        "model: { path: a }\nassignments: { live: [], a b: [] }\n",
        &[],
        "\
x.yaml:2:26: `a b` is no assignment name
  |
2 | assignments: { live: [], a b: [] }
  |                          ^
  field: assignments.a b
  help: use 1 to 64 letters, digits, `-`, `_` or `.`",
    );
    expect(
        &with("bad: suspects", "bad: suspect"),
        &[],
        "\
x.yaml:13:8: unknown assignment `suspect`
   |
13 |   bad: suspect
   |        ^
  field: bisect.bad
  help: did you mean `suspects`? known: live, suspects",
    );
}

#[test]
fn overrides_are_blamed_by_argument() {
    expect(
        GOOD,
        &["engine.max_seqs=many"],
        "\
--set engine.max_seqs=many: invalid type: string \"many\", expected a whole number, 0 or more
  field: engine.max_seqs",
    );
    expect(
        GOOD,
        &["engin.max_seqs=4"],
        "\
--set engin.max_seqs=4: unknown field `engin`
  field: engin
  help: did you mean `engine`? known: model, server, engine, disaggregation, plugins, assignments, needle, bisect",
    );
    expect(
        GOOD,
        &["engine.max_seq=4"],
        "\
--set engine.max_seq=4: unknown field `max_seq`
  field: engine.max_seq
  help: did you mean `max_seqs`? known: device, graphs, cublaslt, tp_size, collective, max_seqs, max_context, chunk, pages, topology, threads, index_topk, \
prefix_cache_bytes, guard, amx",
    );
    expect(
        GOOD,
        &["engine.max_seqs"],
        "\
--set engine.max_seqs: expected FIELD=VALUE, found no `=`
  help: write --set server.listen=127.0.0.1:9000",
    );
    expect(
        GOOD,
        &["engine..chunk=1"],
        "\
--set engine..chunk=1: the field path `engine..chunk` has an empty name
  help: write --set server.listen=127.0.0.1:9000",
    );
    expect(
        GOOD,
        &["assignments.live[x].use=a"],
        "\
--set assignments.live[x].use=a: in the field path `assignments.live[x].use`, `[x]` is not an index such as [0]
  help: write --set server.listen=127.0.0.1:9000",
    );
    expect(
        GOOD,
        &["assignments.live[7].use=a/b"],
        "\
--set assignments.live[7].use=a/b: `assignments.live` has 2 items, counted from 0; there is no item 7
  field: assignments.live[7].use",
    );
    expect(
        GOOD,
        &["model.path.deep=1"],
        "\
--set model.path.deep=1: `model.path` is text; it has no field `deep`
  field: model.path.deep",
    );
    expect(
        GOOD,
        &["bisect.good=dead"],
        "\
--set bisect.good=dead: unknown assignment `dead`
  field: bisect.good
  help: known: live, suspects",
    );
    expect(
        "model: { path: a }\nassignments: { live: [] }\n",
        &["bisect.good=live"],
        "\
--set bisect.good=live: missing field `bad`
  field: bisect",
    );
    // A fault of the file is blamed on the file, whatever was set.
    expect(
        &with("max_seqs", "max_seq"),
        &["engine.chunk=16"],
        "\
x.yaml:3:11: unknown field `max_seq`
  |
3 | engine: { max_seq: 8, max_context: 8192, topology: single }
  |           ^
  field: engine.max_seq
  help: did you mean `max_seqs`? known: device, graphs, cublaslt, tp_size, collective, max_seqs, max_context, chunk, pages, topology, threads, index_topk, \
prefix_cache_bytes, guard, amx",
    );
}

#[test]
fn names_with_dots_are_found() {
    let text = "model: { path: a }\nassignments:\n  live: []\n  v1.2:\n    - { select: moe, use: moe/x }\n";
    let config = parse(text, "x.yaml", Path::new("/"), &[]).unwrap();
    let places = config.assignments.places("v1.2").unwrap();
    assert_eq!(places, ["assignments.\"v1.2\"[0]"]);
    let error = config.error_at(&format!("{}.use", places[0]), "not so").to_string();
    assert!(error.starts_with("x.yaml:5:27: not so\n"), "{error}");
    let set = |set: &str| parse(text, "x.yaml", Path::new("/"), &[set.to_owned()]);
    let config = set("assignments.\"v1.2\"[0].use=moe/y").unwrap();
    assert_eq!(config.assignments.rules("v1.2").unwrap()[0].variant.as_deref(), Some("moe/y"));
    let error = set("assignments.\"v1.2=[]").unwrap_err().to_string();
    assert!(error.contains("a quote is not closed"), "{error}");
}

#[test]
fn a_file_named_by_mistake_is_not_told_whole() {
    let text = "root:x:0:0:root:/root:/bin/bash\n".repeat(20);
    let error = parse(&text, "passwd", Path::new("/"), &[]).unwrap_err().to_string();
    assert!(
        error.starts_with("passwd:1:1: invalid type: string \"root:x:0:0:root:/root:/bin/bash root:"),
        "{error}"
    );
    assert!(error.contains("...\", expected") && error.len() < 250, "{error}");
}

#[test]
fn a_byte_order_mark_is_no_text() {
    let path = std::env::temp_dir().join(format!("hotseam-bom-{}.yaml", std::process::id()));
    std::fs::write(&path, format!("\u{feff}{GOOD}")).unwrap();
    let loaded = hotseam_config::load(&path, &[]);
    std::fs::remove_file(&path).unwrap();
    assert!(loaded.is_ok(), "{loaded:?}");
}

#[test]
fn a_missing_file_is_named() {
    let error = hotseam_config::load(Path::new("/nonexistent/x.yaml"), &[]).expect_err("accepted");
    assert_eq!(
        error.to_string(),
        "cannot read configuration /nonexistent/x.yaml: No such file or directory (os error 2)"
    );
}

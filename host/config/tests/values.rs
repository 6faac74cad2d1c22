//! What a configuration means: defaults, paths, inheritance, round trip.

use std::path::{Path, PathBuf};

use hotseam_config::{Config, EndpointPlace, KlOracle, NeedleTask, NoiseKind, OracleKind, Topology, parse};

const TEXT: &str = "\
model: { path: ../nano }
needle: { haystack: [a.txt, /abs/b.txt] }
assignments:
  live: [{ select: moe, use: moe/cpu-stock }]
  one: { extends: live, rules: [{ select: \"moe:layers=2\", use: \"moe/fused-scale{x: 1}\" }] }
  two: { extends: one, rules: [{ select: \"!moe:layers=3\" }] }
bisect: { good: live, bad: two, oracle: { kind: kl, threshold: 1.0e-2 } }
";

fn read(sets: &[&str]) -> Config {
    let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
    parse(TEXT, "x.yaml", Path::new("/etc/hotseam"), &sets).expect("valid")
}

#[test]
fn defaults_and_paths() {
    let config = read(&[]);
    assert_eq!(config.model.path, PathBuf::from("/etc/hotseam/../nano"));
    assert_eq!(config.needle.haystack, [PathBuf::from("/etc/hotseam/a.txt"), PathBuf::from("/abs/b.txt")]);
    assert_eq!(config.needle.lengths, [512, 1024, 2048]);
    assert_eq!(config.server.listen.to_string(), "127.0.0.1:8000");
    assert_eq!((config.engine.max_seqs, config.engine.chunk, config.engine.pages), (8, 512, None));
    assert_eq!(config.engine.topology, Topology::Single);
    let bisect = config.bisect.expect("given");
    assert_eq!((bisect.budget_runs, bisect.budget()), (None, 20));
    let noisy = read(&["bisect.oracle={kind: repeat}"]).bisect.expect("given");
    assert_eq!(noisy.budget(), 200);
    assert_eq!(bisect.oracle.kind, OracleKind::Kl(KlOracle { threshold: Some(0.01), ..KlOracle::default() }));
    assert_eq!((bisect.oracle.noise(), bisect.target), (NoiseKind::Exact, None));
}

#[test]
fn rules_of_parents_come_first() {
    let rules = read(&[]).assignments.rules("two").expect("defined");
    let selects: Vec<&str> = rules.iter().map(|rule| rule.select.as_str()).collect();
    assert_eq!(selects, ["moe", "moe:layers=2", "!moe:layers=3"]);
    assert_eq!(rules[1].variant.as_deref(), Some("moe/fused-scale{x: 1}"));
    assert_eq!(rules[2].variant, None);
    assert!(read(&[]).assignments.rules("three").is_none());
}

#[test]
fn overrides_apply_in_order() {
    let config = read(&[
        "engine.max_seqs=3",
        "engine.max_seqs=4",
        "engine.topology=paired",
        "engine.index_topk=128",
        "needle.lengths=[64, 65]",
        "assignments.live[0].use=moe/other",
        "model.path=here",
        "server.admin=/run/x.sock",
    ]);
    assert_eq!(config.engine.max_seqs, 4);
    assert_eq!(config.engine.topology, Topology::Paired);
    assert_eq!(config.engine.index_topk, Some(128));
    assert_eq!(config.needle.lengths, [64, 65]);
    assert_eq!(config.assignments.rules("live").expect("defined")[0].variant.as_deref(), Some("moe/other"));
    // Typed on the command line, so relative to where it is typed.
    assert_eq!(config.model.path, std::env::current_dir().expect("a directory").join("here"));
    assert_eq!(config.server.admin, Some(PathBuf::from("/run/x.sock")));
}

#[test]
fn the_effective_configuration_reads_back() {
    let config = read(&["engine.chunk=7"]);
    let text = serde_yaml::to_string(&config).expect("serialises");
    let again = parse(&text, "effective", Path::new("/elsewhere"), &[]).expect("reads back");
    assert_eq!(again, config);
}

#[test]
fn kinds_of_oracles() {
    let oracle = |text: &str| {
        let config = read(&[&format!("bisect.oracle={text}")]);
        let effective = serde_yaml::to_string(&config).expect("serialises");
        assert_eq!(
            parse(&effective, "effective", Path::new("/"), &[]).expect("reads back"),
            config,
            "{effective}"
        );
        config.bisect.expect("given").oracle
    };
    match oracle("{kind: needle, task: multi-turn, turns: 4, depths: 3}").kind {
        OracleKind::Needle(needle) => {
            assert_eq!((needle.task, needle.turns), (NeedleTask::MultiTurn, Some(4)));
            assert_eq!((needle.lengths, needle.depths, needle.tolerance), (vec![2048], 3, None));
        }
        other => panic!("{other:?}"),
    }
    let command = oracle("{kind: command, command: [./check, '{api}'], env: {A: b}}");
    assert_eq!(command.noise(), NoiseKind::Counted);
    assert_eq!(oracle("{kind: command, command: [x], noise: exact}").noise(), NoiseKind::Exact);
    assert_eq!(oracle("{kind: repeat}").noise(), NoiseKind::Counted);
    match oracle("{kind: exact, prompts: [{prompt: Hi, expect: Hello}, {prompt: Ho}]}").kind {
        OracleKind::Exact(exact) => assert_eq!((exact.prompts.len(), exact.max_tokens), (2, 64)),
        other => panic!("{other:?}"),
    }
    // A baseline given on the command line stands where it was typed, in the file where the file is.
    let here = std::env::current_dir().expect("a directory");
    match read(&["bisect.oracle.baseline=b.kl"]).bisect.expect("given").oracle.kind {
        OracleKind::Kl(kl) => assert_eq!(kl.baseline, Some(here.join("b.kl"))),
        other => panic!("{other:?}"),
    }
}

#[test]
fn endpoints_are_places_with_tokens() {
    let set = "bisect.target={endpoints: ['unix:run/a.sock', {url: 'http://h:9', token_file: t}], api: 'http://h:8/'}";
    let target = read(&[set]).bisect.expect("given").target.expect("given");
    let here = std::env::current_dir().expect("a directory");
    let places: Vec<&EndpointPlace> = target.endpoints.iter().map(|endpoint| &endpoint.place).collect();
    assert_eq!(places, [&EndpointPlace::Unix(here.join("run/a.sock")), &EndpointPlace::Tcp("h:9".into())]);
    assert_eq!(target.endpoints[1].token_file, Some(here.join("t")));
    let api = target.api.map(|api| api.to_string());
    assert_eq!((api.as_deref(), target.timeout_seconds), (Some("http://h:8"), 120.0));
}

#[test]
fn an_oracle_asks_for_no_more_than_the_engine_holds() {
    for (set, part) in [
        ("bisect.oracle={kind: kl, tokens: 99999999999}", "bisect.oracle.tokens"),
        ("bisect.oracle={kind: repeat, tokens: 8193}", "bisect.oracle.tokens"),
        ("bisect.oracle={kind: perplexity, lengths: [64, 999999999]}", "bisect.oracle.lengths"),
        ("bisect.oracle={kind: needle, lengths: [999999999]}", "bisect.oracle.lengths"),
        ("bisect.oracle={kind: needle, lengths: [512], depths: 99999999999}", "bisect.oracle.depths"),
        ("bisect.oracle={kind: command, command: [a], timeout_seconds: 1e300}", "at most 604800 seconds"),
    ] {
        let error =
            parse(TEXT, "x.yaml", Path::new("/etc/hotseam"), &[set.to_owned()]).unwrap_err().to_string();
        assert!(error.contains(part), "{set}: {error}");
    }
}

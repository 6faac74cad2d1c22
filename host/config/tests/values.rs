//! What a configuration means: defaults, paths, inheritance, round trip.

use std::path::{Path, PathBuf};

use hotseam_config::{Config, Oracle, Topology, parse};

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
    assert_eq!(bisect.budget_runs, 20);
    assert_eq!(bisect.oracle, Oracle::Kl { tokens: 2048, threshold: 0.01 });
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

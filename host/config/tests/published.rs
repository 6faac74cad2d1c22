//! The published schema of the configuration file.

#[path = "../../bisect/tests/schema/mod.rs"]
mod schema;

use std::path::Path;

use serde_json::Value;

fn published() -> Value {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../configs/schema/config.schema.json");
    let made = serde_json::to_string_pretty(&hotseam_config::json_schema()).unwrap() + "\n";
    if std::env::var_os("HOTSEAM_WRITE_SCHEMA").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let text = std::fs::read_to_string(path).unwrap();
    assert_eq!(
        text, made,
        "write it anew: HOTSEAM_WRITE_SCHEMA=1 cargo test --release -p hotseam-config --test published"
    );
    serde_json::from_str(&text).unwrap()
}

/// The file as it stands, without defaults.
fn shipped(name: &str) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs").join(name);
    serde_yaml::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn shipped_files_are_valid_as_written_and_with_defaults_filled_in() {
    let published = published();
    for name in [
        "quickstart.yaml",
        "context-loss.yaml",
        "seed-replay.yaml",
        "topology.yaml",
        "pd-prefill.yaml",
        "pd-decode.yaml",
    ] {
        let value = shipped(name);
        assert_eq!(schema::errors(&published, &value), [""; 0], "{name}");
        let text = serde_yaml::to_string(&value).unwrap();
        let config = hotseam_config::parse(&text, name, Path::new("/"), &[]).unwrap();
        let effective = serde_json::to_value(&config).unwrap();
        assert_eq!(schema::errors(&published, &effective), [""; 0], "{name}");
    }
}

/// What the reader refuses field by field, the schema refuses too.
#[test]
fn broken_values_are_refused_by_schema_and_reader() {
    let published = published();
    for (pointer, value) in [
        ("/model", r#"{}"#),
        ("/model/paths", r#""x""#),
        ("/servers", r#"{}"#),
        ("/server/listen", "8000"),
        ("/server/listen", r#""localhost:8000""#),
        ("/server/listen", r#""127.0.0.1""#),
        ("/server/admin_tcp", r#"{"listen": "127.0.0.1:0", "tokens": {"a b": "t"}}"#),
        ("/assignments/a b", "[]"),
        ("/assignments/.a", "[]"),
        ("/server/admin_tcp", r#"{"listen": "127.0.0.1:0", "tokens": {}}"#),
        ("/server/admin_tcp", r#"{"listen": "127.0.0.1:0"}"#),
        ("/engine/max_seqs", "0"),
        ("/engine/max_seqs", "-1"),
        ("/engine/max_seqs", "2.5"),
        ("/engine/pages", "0"),
        ("/engine/topology", r#""pared""#),
        ("/engine/guard", r#""often""#),
        ("/disaggregation", r#"{"role": "router"}"#),
        ("/disaggregation", r#"{"listen": "localhost"}"#),
        ("/disaggregation", r#"{"bootstrap_timeout_seconds": 0}"#),
        ("/disaggregation", r#"{"roles": "single"}"#),
        ("/engine/chunks", "512"),
        ("/plugins/dirs", r#""x""#),
        ("/assignments", r#"{"lives": []}"#),
        ("/assignments/live", r#""stock""#),
        ("/assignments/live/0", r#"{"use": "moe/cpu-stock"}"#),
        ("/assignments/suspects", r#"{"extends": "live"}"#),
        ("/needle/lengths", "[]"),
        ("/needle/lengths", "[512, 0]"),
        ("/bisect/oracle", r#"{"kind": "neddle"}"#),
        ("/bisect/oracle", r#"{"lengths": [512]}"#),
        ("/bisect/oracle", r#"{"kind": "needle", "threshold": 1.0}"#),
        ("/bisect/oracle", r#"{"kind": "kl", "threshold": 0}"#),
        ("/bisect/oracle", r#"{"kind": "kl", "noise": "loud"}"#),
        ("/bisect/oracle", r#"{"kind": "exact", "prompts": []}"#),
        ("/bisect/oracle", r#"{"kind": "repeat", "times": 1}"#),
        ("/bisect/oracle", r#"{"kind": "command", "command": "x"}"#),
        ("/bisect/target", r#"{"endpoints": [], "api": "http://h:1"}"#),
        ("/bisect/target", r#"{"endpoints": [{"token_file": "b"}], "api": "http://h:1"}"#),
        ("/bisect/budget_runs", "0"),
    ] {
        let mut config = shipped("context-loss.yaml");
        for section in ["server", "plugins"] {
            config[section] = serde_json::json!({});
        }
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        let value: Value = serde_json::from_str(value).unwrap();
        match config.pointer_mut(parent).expect("the section is there") {
            Value::Array(list) => list[key.parse::<usize>().unwrap()] = value,
            parent => parent[key] = value,
        }
        let text = serde_yaml::to_string(&config).unwrap();
        let refused = hotseam_config::parse(&text, "x.yaml", Path::new("/"), &[]).is_err();
        assert!(refused, "the reader accepts {pointer} in {text}");
        assert!(!schema::errors(&published, &config).is_empty(), "the schema accepts {pointer} in {text}");
    }
}

//! How `hotseam bisect` splits two assignments into changes.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::root;
use serde_json::Value;

/// The plan of `configs/context-loss.yaml` with `plant` in the bad end and further arguments.
fn plan(plant: &str, more: &[&str]) -> Value {
    let mut command = hotseam();
    command.args(["bisect", "run"]).arg(root().join("configs/context-loss.yaml"));
    let (code, out, err) = run(command.args(["--dry-run", "--format", "json", "--plant", plant]).args(more));
    assert_eq!(code, 0, "{err}");
    serde_json::from_str(&out).expect("JSON")
}

/// The changes of a seam: (phase, class, delta, variants).
fn changes(plan: &Value, seam: &str) -> Vec<(String, String, String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let delta = |value: &Value| match &value["option"] {
        Value::Null => format!("{} -> {}", text(&value["variant"]["from"]), text(&value["variant"]["to"])),
        option => format!("{}: {} -> {}", text(&option["name"]), text(&option["from"]), text(&option["to"])),
    };
    let own = plan["changes"].as_array().unwrap().iter().filter(|change| change["seam"] == seam);
    own.map(|change| {
        let variants: Vec<String> = change["variants"].as_array().unwrap().iter().map(text).collect();
        (text(&change["phase"]), text(&change["class"]), delta(&change["delta"]), variants.join(" "))
    })
    .collect()
}

fn row(phase: &str, delta: &str, variants: &str) -> (String, String, String, String) {
    (phase.into(), "csa".into(), delta.into(), variants.into())
}

#[test]
fn options_are_changes_of_their_own_and_layouts_flip_in_both_phases() {
    let plan = plan("none", &[]);
    let swap = "indexer/cpu-stock -> indexer/cpu-sm120";
    let exit = "early_exit: false -> true";
    let (off, on) =
        ("indexer/cpu-sm120{early_exit: false, keys: fp8}", "indexer/cpu-sm120{early_exit: true, keys: fp8}");
    assert_eq!(
        changes(&plan, "indexer"),
        [
            row("decode", swap, off),
            row("decode", exit, on),
            row("prefill", swap, off),
            row("prefill", exit, on),
            row("prefill+decode", "keys: fp8 -> bf16", "indexer/cpu-stock{amx: false, keys: bf16}"),
        ]
    );
    // The decode patch of attention leaves store and compress to its base: only `core` differs.
    let attention: Vec<&Value> =
        plan["changes"].as_array().unwrap().iter().filter(|change| change["seam"] == "attention").collect();
    assert_eq!(attention.len(), 3);
    assert!(attention.iter().all(|change| change["ops"] == serde_json::json!(["core"])));
    assert_eq!(plan["unchanged"], serde_json::json!(["kv_transport"]));
    assert_eq!(plan["notes"], serde_json::json!([]));
}

#[test]
fn a_switch_requires_its_variant_and_atoms_are_numbered_once() {
    let plan = plan("none", &[]);
    let atoms: Vec<&Value> = plan["changes"]
        .as_array()
        .unwrap()
        .iter()
        .flat_map(|change| change["atoms"].as_array().unwrap())
        .collect();
    let mut ids: Vec<u64> = atoms.iter().map(|atom| atom["id"].as_u64().unwrap()).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..atoms.len() as u64).collect::<Vec<_>>());
    for change in plan["changes"].as_array().unwrap() {
        let is_switch = change["delta"]["option"]["name"] == "early_exit";
        for atom in change["atoms"].as_array().unwrap() {
            assert_eq!(atom["requires"].as_array().unwrap().len(), usize::from(is_switch), "{change}");
        }
    }
}

#[test]
fn an_option_that_the_good_variant_lacks_comes_with_its_variant() {
    let plan = plan("moe@decode=faulty/moe{fault: scale-twice}", &[]);
    let moe = changes(&plan, "moe");
    let decode: Vec<_> = moe.iter().filter(|change| change.0 == "decode").collect();
    assert_eq!(decode.len(), 2, "{moe:?}");
    for change in decode {
        assert_eq!(change.2, "moe/cpu-stock -> faulty/moe{call: experts, fault: scale-twice}");
        assert_eq!(change.3, "faulty/moe{call: experts, fault: scale-twice}");
    }
}

#[test]
fn without_a_pair_there_is_no_hand_off_to_blame() {
    let plant = "kv_transport=faulty/kv_transport{fault: next-layer}";
    assert_eq!(changes(&plan(plant, &[]), "kv_transport").len(), 1);
    let single = plan(plant, &["--set", "engine.topology=single"]);
    assert!(changes(&single, "kv_transport").is_empty());
    assert_eq!(single["unchanged"], serde_json::json!([]));
}

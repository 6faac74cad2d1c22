//! `hotseam bench roofline`: exit codes, both forms of output, and that stdout is data.

use hotseam_tests::http::{hotseam, run};
use hotseam_tests::root;
use serde_json::Value;
use tempfile::TempDir;

const FLASH: &str = "configs/models/deepseek-v4-flash.json";

fn ask(args: &[&str]) -> (i32, String, String) {
    run(hotseam().current_dir(root()).args(["bench", "roofline"]).args(args))
}

#[track_caller]
fn answer(args: &[&str]) -> String {
    let (code, out, err) = ask(args);
    assert_eq!((code, err.as_str()), (0, ""), "{args:?}");
    out
}

#[track_caller]
fn refusal(args: &[&str]) -> String {
    let (code, out, err) = ask(args);
    assert_eq!((code, out.as_str()), (2, ""), "{args:?}: {err}");
    err
}

/// The cells of the line that begins so.
#[track_caller]
fn cells(text: &str, begin: &[&str]) -> Vec<String> {
    let lines = text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines.into_iter().find(|line| line.starts_with(begin));
    line.unwrap_or_else(|| panic!("no line {begin:?}: {text}")).into_iter().map(str::to_owned).collect()
}

#[test]
fn text_has_a_head_and_two_tables() {
    let text = answer(&[FLASH]);
    for wanted in [
        "43 layers: 2 window, 21 csa, 20 hca",
        "284.33 B parameters",
        "13.27 B active",
        "3850.25 B of KV a context token (fp8, index keys fp8), 3.21 MB fixed",
        "4300 GB/s (--bandwidth), 790 TFLOP/s (--peak)",
        "one H200 as measured",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let one = cells(&text, &["1", "4096"]);
    assert_eq!(one[one.len() - 3..], ["2.61", "383", "memory"]);
    let many = cells(&text, &["32", "4096"]);
    assert_eq!(many[many.len() - 3..], ["20.2", "1585", "memory"]);
    assert_eq!(cells(&text, &["131072"]).last().map(String::as_str), Some("arithmetic"));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    // One batch of one context has one line, and the bounds are named where they change.
    let few = answer(&[FLASH, "--batch", "2", "--context", "8192", "--prefill", "1,512", "--peak", "1"]);
    assert!(few.contains("1 TFLOP/s (--peak)"), "{few}");
    assert_eq!(cells(&few, &["2", "8192"]).last().map(String::as_str), Some("arithmetic"));
    assert!(!few.contains("4096") && cells(&few, &["512"]).len() > 5, "{few}");
}

#[test]
fn json_has_the_figures_with_their_units() {
    let args = ["--batch", "1,8", "--context", "131072", "--index-keys", "fp4", "--tp", "4"];
    let more = ["--launches", "1000", "--launch-us", "2", "--format", "json"];
    let value: Value = serde_json::from_str(&answer(&[&[FLASH], &args[..], &more[..]].concat())).unwrap();
    assert_eq!(value["kv_bytes_per_context_token"].as_f64(), Some(3514.25));
    assert_eq!((&value["machine"]["gpus"], &value["index_key_format"]), (&4.into(), &"fp4".into()));
    let (decode, prefill) = (value["decode"].as_array().unwrap(), value["prefill"].as_array().unwrap());
    assert_eq!((decode.len(), prefill.len()), (2, 1));
    let number = |row: &Value, field: &str| row[field].as_f64().unwrap_or_else(|| panic!("{field}: {row}"));
    for row in decode.iter().chain(prefill) {
        let bytes = ["weight_bytes", "kv_bytes", "activation_bytes"].map(|field| number(row, field));
        assert!((number(row, "memory_ms") - bytes.iter().sum::<f64>() / 4.3e9).abs() < 1e-6, "{row}");
        let longer = number(row, "memory_ms").max(number(row, "arithmetic_ms"));
        assert!((number(row, "floor_ms") - longer - 2.0).abs() < 1e-9, "{row}");
    }
    let rate = 8e3 / number(&decode[1], "floor_ms");
    assert!((number(&decode[1], "tokens_per_second") - rate).abs() < 1e-6);
    assert_eq!((&decode[1]["batch"], &prefill[0]["prompt_tokens"]), (&8.into(), &131_072.into()));
}

#[test]
fn a_directory_does_and_mistakes_are_named() {
    assert!(answer(&["assets/nano-v4"]).contains("floor ms"));
    for (args, wanted) in [
        (&[FLASH, "--batch", "0"][..], "--batch"),
        (&[FLASH, "--context", "4096,0"], "--context"),
        (&[FLASH, "--prefill", "0"], "--prefill"),
        (&[FLASH, "--bandwidth", "0"], "expected a number above 0"),
        (&[FLASH, "--peak", "fast"], "--peak"),
        (&[FLASH, "--index-keys", "int8"], "fp4, fp8, bf16, f32"),
        (&[FLASH, "--tp", "3"], "num_attention_heads"),
        (&[FLASH, "--launches", "9"], "--launch-us"),
        (&["nowhere"], "nowhere: No such file or directory"),
        (&["docs"], "docs/config.json"),
    ] {
        let told = refusal(args);
        assert!(told.contains(wanted), "{wanted}: {told}");
    }
    let dir = TempDir::new().unwrap();
    let own = dir.path().join("config.json");
    let flash = std::fs::read_to_string(root().join(FLASH)).unwrap();
    for (from, to, wanted) in [
        ("\"index_topk\"", "\"index_top\"", "index_topk"),
        ("\"q_lora_rank\": 1024", "\"q_lora_rank\": 0", "q_lora_rank"),
        ("\"deepseek_v4\"", "\"deepseek_v3\"", "model_type"),
    ] {
        std::fs::write(&own, flash.replacen(from, to, 1)).unwrap();
        let told = refusal(&[dir.path().to_str().unwrap()]);
        assert!(told.contains(wanted) && told.contains("config.json"), "{wanted}: {told}");
    }
}

#[test]
fn help_and_completion_know_it() {
    let help = answer(&["--help"]);
    assert!(help.contains("Example:\n  hotseam bench roofline ") && help.contains("Exit codes:"), "{help}");
    let (code, script, _) = run(hotseam().args(["completion", "bash"]));
    assert_eq!(code, 0);
    let options = script.split("hotseam__subcmd__bench__subcmd__roofline)").nth(1).unwrap_or_default();
    assert!(options.contains("--bandwidth") && options.contains("--index-keys"), "{options}");
}

//! `hotseam checkpoint`: exit codes, both forms of output, and that stdout is data.

use std::path::Path;
use std::process::Output;

use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::random::Preset;
use hotseam_tests::http::hotseam;
use hotseam_tests::root;
use serde_json::Value;
use tempfile::TempDir;

fn run(args: &[&str]) -> Output {
    hotseam().arg("checkpoint").args(args).output().expect("the command runs")
}

#[track_caller]
fn answer(args: &[&str], code: i32) -> String {
    let output = run(args);
    let talk = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{args:?}: {talk}");
    assert_eq!(code == 2, !talk.is_empty(), "{args:?} says on stderr: {talk}");
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn json(args: &[&str], code: i32) -> Value {
    let text = answer(&[args, &["--format", "json"]].concat(), code);
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[track_caller]
fn refusal(args: &[&str]) -> String {
    let output = run(args);
    assert_eq!(output.status.code(), Some(2), "{args:?}");
    assert!(output.stdout.is_empty(), "{args:?}");
    String::from_utf8(output.stderr).unwrap()
}

fn path(dir: &Path) -> &str {
    dir.to_str().unwrap()
}

#[test]
fn inspect_shows_formats_and_tensors() {
    let dir = root().join("tests/goldens/formats");
    let text = answer(&["inspect", path(&dir)], 0);
    for wanted in
        ["routed experts", "mxfp4", "nvfp4", "fp8", "layers.1.ffn.experts.1.w2.weight_scale_2", "F8_E8M0"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let value = json(&["inspect", path(&dir)], 0);
    let of = |format: &str| {
        let classes = value["classes"].as_array().unwrap().iter();
        let own = classes.filter(|c| c["class"] == "routed experts" && c["format"] == format);
        own.map(|c| c["values"].as_u64().unwrap()).sum::<u64>()
    };
    assert_eq!((of("mxfp4"), of("nvfp4")), (2 * 3 * 32 * 160, 2 * 3 * 32 * 160));
    assert!(refusal(&["inspect", "/nowhere"]).contains("config.json"));
}

#[test]
fn convert_writes_once_and_reports() {
    let work = TempDir::new().unwrap();
    let at = |name: &str| work.path().join(name);
    Preset::FlashLike.write_as(&at("in"), Form::Fp8Mxfp4).unwrap();
    let (from, to) = (at("in"), at("out"));
    let args = ["convert", path(&from), path(&to), "--to", "nvfp4"];
    let text = answer(&args, 0);
    assert!(
        text.contains("mxfp4 -> nvfp4") && text.contains("note: double quantisation of routed experts"),
        "{text}"
    );
    assert!(refusal(&args).contains("nothing is overwritten"));
    let back = at("back");
    let value = json(&["convert", path(&to), path(&back), "--to", "bf16"], 0);
    let changes = value["changes"].as_array().unwrap();
    let exact = changes.iter().find(|c| c["class"] == "attention").unwrap();
    assert_eq!((exact["max_error"].as_f64(), &exact["snr_db"]), (Some(0.0), &Value::Null));
    assert!(changes.iter().all(|c| c["double_quantisation"] == false));
    assert!(refusal(&["convert", "/nowhere", path(&at("x")), "--to", "bf16"]).contains("/nowhere"));
    let deep = at("in").join("config.json").join("out");
    let output = run(&["convert", path(&from), path(&deep), "--to", "bf16"]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn plan_says_whether_it_fits() {
    let dir = root().join("assets/nano-v4");
    let text = answer(&["plan", path(&dir), "--gpu-memory", "24GB", "--context", "4096"], 0);
    assert!(text.contains("fits") && text.contains("B a token"), "{text}");
    let args = ["plan", path(&dir), "--gpu-memory", "24GB", "--context", "4096", "--sequences", "1000000"];
    let value = json(&args, 1);
    assert_eq!((&value["fits"], value["request"]["context"].as_u64()), (&Value::Bool(false), Some(4096)));
    assert!(value["spare"].as_i64().unwrap() < 0);
    assert!(answer(&args, 1).contains("does not fit"));
    assert!(refusal(&["plan", path(&dir), "--gpus", "3"]).contains("num_attention_heads"));
    assert!(refusal(&["plan", path(&dir), "--gpu-memory", "24"]).contains("with its unit"));
}

#[test]
fn a_plan_file_has_the_options_as_keys() {
    let file = root().join("configs/plans/flash-rtxpro6000-tp4.yaml");
    let text = answer(&["plan", path(&file)], 0);
    for wanted in
        ["284.33 B parameters, 13.27 B active", "3850.25 B a token", "1 sequence of 524288 tokens: fits"]
    {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    let model = root().join("configs/models/deepseek-v4-flash.json");
    let options = ["--form", "nvfp4", "--gpus", "4", "--context", "524288"];
    let same = json(&[&["plan", path(&model)], &options[..]].concat(), 0);
    assert_eq!(json(&["plan", path(&file)], 0), same);

    let dir = TempDir::new().unwrap();
    let own = dir.path().join("plan.yaml");
    for (content, wanted) in [
        ("gpus: 4\n", "`checkpoint` is missing"),
        ("checkpoint: x\ngpu: 4\n", "--gpu"),
        ("checkpoint: x\ngpus: many\n", "many"),
        ("checkpoint: x\ngpus: [4]\n", "expected a text or a number"),
        ("- 1\n", "plan.yaml"),
        ("checkpoint: nowhere.json\n", "nowhere.json"),
    ] {
        std::fs::write(&own, content).unwrap();
        let told = refusal(&["plan", path(&own)]);
        assert!(told.contains(wanted), "{content}: {told}");
    }
    assert!(refusal(&["plan", path(&file), "--gpus", "2"]).contains("put the others there"));
}

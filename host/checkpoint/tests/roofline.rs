//! Floors of DeepSeek-V4-Flash and V4-Pro against figures worked out apart from this program, by the formulas of each part:
//! parameters by shape, 584 bytes an entry, 132 or 68 an index key, experts touched by chance.

use std::path::{Path, PathBuf};

use hotseam_checkpoint::CheckpointError;
use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::plan::roofline::{Bound, Decode, H200_BANDWIDTH, H200_PEAK, Machine};
use hotseam_checkpoint::plan::roofline::{Prefill, Request, Roofline, roofline};
use hotseam_checkpoint::plan::{KvFormat, Layers};
use serde_json::{Value, json};
use tempfile::TempDir;

const CONTEXTS: [u64; 3] = [4096, 131_072, 1_048_576];

fn flash() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../configs/models/deepseek-v4-flash.json")
}

fn flash_json() -> Value {
    serde_json::from_str(&std::fs::read_to_string(flash()).unwrap()).unwrap()
}

/// The geometry of V4-Pro: 31 layers of ratio 128 and 30 of ratio 4.
fn pro_json() -> Value {
    let ratios: Vec<u32> = (0..61).map(|layer| if layer % 2 == 0 { 128 } else { 4 }).collect();
    let own = json!({
        "hidden_size": 7168, "num_hidden_layers": 61, "num_attention_heads": 128, "q_lora_rank": 1536, "o_groups": 16,
        "o_lora_rank": 1024, "n_routed_experts": 384, "moe_intermediate_size": 3072, "index_topk": 1024,
        "compress_ratios": ratios, "num_nextn_predict_layers": 0,
    });
    changed(flash_json(), &own)
}

fn changed(mut config: Value, own: &Value) -> Value {
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    config
}

fn machine() -> Machine {
    let (bandwidth_gb_per_s, peak_tflop_per_s) = (H200_BANDWIDTH, H200_PEAK);
    Machine { gpus: 1, bandwidth_gb_per_s, peak_tflop_per_s, launches: 0, launch_us: 0.0 }
}

fn request() -> Request {
    Request {
        form: None,
        kv: KvFormat::Fp8,
        index_keys: KvFormat::Fp8,
        batches: vec![1, 32],
        contexts: CONTEXTS.to_vec(),
        prompts: CONTEXTS.to_vec(),
        machine: machine(),
    }
}

fn try_of(config: &Value, request: &Request) -> Result<Roofline, CheckpointError> {
    let dir = TempDir::new().unwrap();
    std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
    roofline(dir.path(), request)
}

fn of(config: &Value, request: &Request) -> Roofline {
    try_of(config, request).unwrap()
}

fn decode(found: &Roofline, batch: u64, context: u64) -> Decode {
    let row = found.decode.iter().find(|row| (row.batch, row.context_tokens) == (batch, context));
    *row.unwrap_or_else(|| panic!("no row of {batch} x {context}"))
}

/// That a figure is the one that is written down, to the last digit that is.
#[track_caller]
fn reads(value: f64, written: &str) {
    let digits = written.split_once('.').map_or(0, |(_, part)| part.len());
    assert_eq!(format!("{value:.digits$}"), written, "{value}");
}

/// What is written down of a model.
struct Sheet {
    layers: Layers,
    parameters: [&'static str; 2],
    /// GB of dense weights, of routed experts and of both, in a step of one token.
    weights: [&'static str; 3],
    /// Bytes a context token with index keys in fp8 and in fp4, MB fixed, GB of 1 Mi tokens.
    kv: [&'static str; 4],
    /// MB of KV that one token reads, and of them index keys, by context.
    read: [[&'static str; 2]; 3],
    /// Milliseconds and tokens a second of one sequence, by context.
    floors: [[&'static str; 2]; 3],
    /// Milliseconds, tokens a second and experts touched of 32 sequences of 4096 tokens.
    many: [&'static str; 3],
    /// GFLOP a token at 131072: with weights, of attention, of the indexer.
    flop: [&'static str; 3],
}

#[track_caller]
fn holds(config: &Value, sheet: &Sheet) {
    let found = of(config, &request());
    assert_eq!(found.layers, sheet.layers);
    reads(found.parameters as f64 / 1e9, sheet.parameters[0]);
    reads(found.active_parameters as f64 / 1e9, sheet.parameters[1]);

    let one = decode(&found, 1, 4096).step;
    let used = config["num_experts_per_tok"].as_f64().unwrap();
    assert!((one.experts_touched_per_layer - used).abs() < 1e-9);
    // All routed experts together have 17/32 of a byte a parameter; a token uses its share of them.
    let size = |field: &str| config[field].as_f64().unwrap();
    let layers = size("num_hidden_layers");
    let routed = layers * used * 3.0 * size("hidden_size") * size("moe_intermediate_size") * 17.0 / 32.0;
    reads((one.weight_bytes as f64 - routed) / 1e9, sheet.weights[0]);
    reads(routed / 1e9, sheet.weights[1]);
    reads(one.weight_bytes as f64 / 1e9, sheet.weights[2]);

    reads(found.kv_bytes_per_context_token, sheet.kv[0]);
    let fp4 = of(config, &Request { index_keys: KvFormat::Fp4, ..request() });
    reads(fp4.kv_bytes_per_context_token, sheet.kv[1]);
    let fixed = found.window_bytes_per_sequence as f64;
    reads(fixed / 1e6, sheet.kv[2]);
    reads((found.kv_bytes_per_context_token * f64::from(1 << 20) + fixed) / 1e9, sheet.kv[3]);

    for ((context, read), floor) in CONTEXTS.into_iter().zip(sheet.read).zip(sheet.floors) {
        let step = decode(&found, 1, context).step;
        reads(step.kv_bytes as f64 / 1e6, read[0]);
        reads(step.index_key_bytes as f64 / 1e6, read[1]);
        assert_eq!(step.kv_bytes, step.kv_entry_bytes + step.index_key_bytes);
        reads(step.floor_ms, floor[0]);
        reads(step.tokens_per_second, floor[1]);
        assert_eq!(step.bound, Bound::Memory);
    }
    let many = decode(&found, 32, 4096).step;
    reads(many.floor_ms, sheet.many[0]);
    reads(many.tokens_per_second, sheet.many[1]);
    reads(many.experts_touched_per_layer, sheet.many[2]);

    let long = decode(&found, 1, 131_072).step;
    for (flop, written) in [long.linear_flop, long.attention_flop, long.indexer_flop].iter().zip(sheet.flop) {
        reads(flop / 1e9, written);
    }
    let parts = long.linear_flop + long.attention_flop + long.indexer_flop;
    assert!((long.flop - parts).abs() < 1.0);
}

#[test]
fn flash_has_the_floors_of_its_sheet() {
    let sheet = Sheet {
        layers: Layers { window: 2, csa: 21, hca: 20 },
        parameters: ["284.3", "13.27"],
        weights: ["7.76", "3.45", "11.2"],
        kv: ["3850", "3514", "3.2", "4.04"],
        read: [["13", "3"], ["112", "91"], ["832", "727"]],
        floors: [["2.61", "383"], ["2.64", "379"], ["2.80", "357"]],
        many: ["20.2", "1585", "136"],
        flop: ["26.5", "4.8", "11.3"],
    };
    holds(&flash_json(), &sheet);
    // The file alone says the same as a directory with it.
    assert_eq!(roofline(&flash(), &request()).unwrap(), of(&flash_json(), &request()));
}

#[test]
fn pro_has_the_floors_of_its_sheet() {
    let sheet = Sheet {
        layers: Layers { window: 0, csa: 30, hca: 31 },
        parameters: ["1573", "48.85"],
        weights: ["26.8", "12.8", "39.7"],
        kv: ["5511", "5031", "4.6", "5.78"],
        read: [["27", "4"], ["171", "130"], ["1209", "1038"]],
        floors: [["9.2", "108"], ["9.3", "108"], ["9.5", "105"]],
        many: ["82", "389", "152"],
        flop: ["97.7", "18.4", "16.1"],
    };
    holds(&pro_json(), &sheet);
}

/// At a million tokens the index keys are 6 % of the bytes of one sequence, and 21 % of those of 32.
#[test]
fn index_keys_grow_with_the_batch() {
    let found = of(&flash_json(), &request());
    for (batch, percent) in [(1, "6"), (32, "21")] {
        let step = decode(&found, batch, 1_048_576).step;
        let bytes = step.weight_bytes + step.kv_bytes + step.activation_bytes;
        reads(100.0 * step.index_key_bytes as f64 / bytes as f64, percent);
        assert!((step.memory_ms - bytes as f64 / 4.3e9).abs() < 1e-6);
    }
}

/// Where the scan of index keys costs more products than all weights do.
#[test]
fn the_scan_overtakes_the_weights() {
    let overtaken = |rows: &dyn Fn(u64) -> (f64, f64)| {
        let mut ends: (u64, u64) = (4096, 1 << 21);
        while ends.1 - ends.0 > 4 {
            let middle = ends.0.midpoint(ends.1);
            let (linear, indexer) = rows(middle);
            if indexer > linear { ends.1 = middle } else { ends.0 = middle }
        }
        ends.1 as f64 / 1e3
    };
    let ask = |n| of(&flash_json(), &Request { contexts: vec![n], prompts: vec![n], ..request() });
    let in_decode = overtaken(&|n| {
        let Decode { step, .. } = ask(n).decode[0];
        (step.linear_flop, step.indexer_flop)
    });
    let in_prefill = overtaken(&|n| {
        let Prefill { step, .. } = ask(n).prefill[0];
        (step.linear_flop, step.indexer_flop)
    });
    assert!((305.0..315.0).contains(&in_decode), "{in_decode}");
    // Twice as far would be 617 thousand, since the average token of a prompt sees half of it. But only the last token of a
    // prompt goes through the head, which is 4 % of the active parameters: so much earlier.
    assert!((590.0..595.0).contains(&in_prefill), "{in_prefill}");
}

#[test]
fn a_prefill_is_bound_by_arithmetic_and_a_short_one_by_its_weights() {
    let found = of(&flash_json(), &Request { prompts: vec![1, 131_072], ..request() });
    let [short, long] = [found.prefill[0].step, found.prefill[1].step];
    // A prompt of one token is a decode step of one token of context, but that its entry is written, not read.
    let same = of(&flash_json(), &Request { contexts: vec![1], ..request() }).decode[0].step;
    assert_eq!((short.weight_bytes, short.flop, short.bound), (same.weight_bytes, same.flop, Bound::Memory));

    assert_eq!(long.bound, Bound::Arithmetic);
    reads(long.experts_touched_per_layer, "256");
    let (n, one) = (131_072.0, decode(&found, 1, 131_072).step);
    let head = 129_280.0 * 4096.0;
    let linear = n * one.linear_flop - 2.0 * (n - 1.0) * head;
    assert!((long.linear_flop / linear - 1.0).abs() < 1e-9);
    // Each token sees half of the prompt on average; of chosen and recent entries all, but for the first few thousand tokens.
    assert!((long.indexer_flop / (n * one.indexer_flop / 2.0) - 1.0).abs() < 1e-3);
    let seen = 21.0 * (512.0 + 128.0) + 20.0 * (131_072.0 / 2.0 / 128.0 + 128.0) + 2.0 * 128.0;
    assert!((long.attention_flop / (n * 4.0 * 64.0 * 512.0 * seen) - 1.0).abs() < 1e-2);
    assert_eq!(long.kv_bytes, (n * 3850.25) as u64 + 43 * 128 * 584);
    assert!((long.arithmetic_ms - long.flop / 790e9).abs() < 1e-6);
}

#[test]
fn a_group_splits_heads_and_experts_and_not_the_keys() {
    let one = of(&flash_json(), &request());
    let four = of(&flash_json(), &Request { machine: Machine { gpus: 4, ..machine() }, ..request() });
    let [a, b] = [&one, &four].map(|found| decode(found, 32, 131_072).step);
    assert_eq!((a.kv_bytes, a.indexer_flop), (b.kv_bytes, b.indexer_flop));
    assert_eq!(a.attention_flop, 4.0 * b.attention_flop);
    assert!((3.5..4.0).contains(&(a.weight_bytes as f64 / b.weight_bytes as f64)));
    // wq_a, wkv, compressors, indexer and routers are on every GPU: 0.84 B of 13.27 B, so 13.27 / (12.43 / 4 + 0.84).
    reads(a.linear_flop / b.linear_flop, "3.36");
    assert!(four.notes.iter().any(|note| note.contains("communication")) && one.notes.is_empty());
    let error = roofline(&flash(), &Request { machine: Machine { gpus: 3, ..machine() }, ..request() });
    assert!(error.unwrap_err().to_string().contains("num_attention_heads"));
}

#[test]
fn launches_and_speeds_count() {
    let slow = Machine { bandwidth_gb_per_s: 430.0, launches: 1000, launch_us: 2.5, ..machine() };
    let [fast, slow] = [machine(), slow].map(|machine| {
        let found = of(&flash_json(), &Request { machine, ..request() });
        decode(&found, 1, 4096).step
    });
    assert!((slow.memory_ms - 10.0 * fast.memory_ms).abs() < 1e-9 && slow.launch_ms == 2.5);
    assert_eq!(slow.floor_ms, slow.memory_ms + 2.5);
    let weak = Machine { peak_tflop_per_s: 1.0, ..machine() };
    let step = decode(&of(&flash_json(), &Request { machine: weak, ..request() }), 1, 4096).step;
    assert_eq!((step.bound, step.floor_ms), (Bound::Arithmetic, step.flop / 1e9));
}

#[test]
fn forms_contexts_and_notes_follow_the_model() {
    let small = changed(flash_json(), &json!({ "max_position_embeddings": 65_536 }));
    let asked = |contexts: &[u64]| Request { contexts: contexts.to_vec(), prompts: Vec::new(), ..request() };
    let found = of(&small, &asked(&[]));
    assert_eq!(found.prefill.iter().map(|row| row.prompt_tokens).collect::<Vec<_>>(), [4096]);
    let tiny = changed(flash_json(), &json!({ "max_position_embeddings": 512 }));
    assert_eq!(of(&tiny, &asked(&[])).decode[0].context_tokens, 512);
    let beyond = of(&tiny, &asked(&[513]));
    assert_eq!(beyond.notes, ["the model was made for 512 tokens of context"]);

    let bf16 = of(&flash_json(), &Request { form: Some(Form::Bf16), ..request() });
    assert_eq!((bf16.form, found.form), ("bf16", "as the configuration states"));
    assert!(bf16.weight_bytes > 3 * found.weight_bytes && bf16.parameters == found.parameters);
}

#[test]
fn other_models_are_refused_by_field() {
    let refused = |own: Value| try_of(&changed(flash_json(), &own), &request()).unwrap_err().to_string();
    for (own, wanted) in [
        (json!({ "compress_ratios": vec![0; 43] }), "`compress_ratios`: expected a layer of ratio 4 or 128"),
        (json!({ "compress_ratios": null }), "`compress_ratios`: expected a ratio for each layer"),
        (json!({ "model_type": "deepseek_v3" }), "`model_type`: expected \"deepseek_v4\""),
        (json!({ "hidden_size": 0 }), "`hidden_size`: expected a whole number from 1"),
        (json!({ "hiden_size": 4096 }), "is `hidden_size` meant?"),
        (
            json!({ "zzz": 1 }),
            "`zzz`: expected no such field, since this build does not know its meaning (remove it",
        ),
    ] {
        let told = refused(own);
        assert!(told.contains(wanted), "{told}");
    }
    let told = roofline(Path::new("/nowhere/config.json"), &request()).unwrap_err().to_string();
    assert!(told.contains("/nowhere/config.json") && told.contains("check the path"), "{told}");
}

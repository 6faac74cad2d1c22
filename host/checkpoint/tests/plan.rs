//! Plans for DeepSeek-V4-Flash, against published sizes and figures worked out by hand.

use std::path::PathBuf;

use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::plan::{KvFormat, Plan, Request, Spread, plan};
use hotseam_checkpoint::random::Preset;
use hotseam_checkpoint::{CheckpointError, list};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The published geometry of DeepSeek-V4-Flash.
fn flash() -> Value {
    let mut ratios = vec![0, 0];
    (2..43).for_each(|layer| ratios.push(if layer % 2 == 0 { 4 } else { 128 }));
    ratios.push(0);
    let mut config = Preset::FlashLike.config_json();
    let own = json!({
        "vocab_size": 129280, "hidden_size": 4096, "num_hidden_layers": 43, "num_attention_heads": 64, "head_dim": 512,
        "qk_rope_head_dim": 64, "q_lora_rank": 1024, "o_lora_rank": 1024, "o_groups": 8, "compress_ratios": ratios,
        "max_position_embeddings": 1048576, "index_n_heads": 64, "index_head_dim": 128, "index_topk": 512,
        "n_routed_experts": 256, "num_experts_per_tok": 6, "moe_intermediate_size": 2048, "num_hash_layers": 3,
    });
    config.as_object_mut().unwrap().extend(own.as_object().unwrap().clone());
    config
}

fn request() -> Request {
    Request {
        form: None,
        gpus: 4,
        gpu_bytes: 96_000_000_000,
        context: Some(524_288),
        sequences: 1,
        kv: KvFormat::Fp8,
        index_keys: KvFormat::Fp8,
        attention: Spread::Split,
        chunk: 2048,
        runtime_bytes: 2_500_000_000,
    }
}

struct Dir(TempDir);

impl Dir {
    fn new(config: &Value) -> Self {
        let dir = TempDir::new().unwrap();
        std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
        Self(dir)
    }

    fn config(&self) -> PathBuf {
        self.0.path().join("config.json")
    }

    fn plan(&self, request: Request) -> Plan {
        plan(&self.config(), request).unwrap()
    }
}

fn bytes(plan: &Plan, class: &str) -> (u64, u64) {
    let own = plan.weights.lines.iter().filter(|l| l.class == class);
    own.fold((0, 0), |(all, gpu), line| (all + line.bytes, gpu + line.bytes_per_gpu))
}

#[test]
fn flash_has_its_published_size() {
    let plan = Dir::new(&Form::Nvfp4.config(&flash())).plan(request());
    let billions = |n: u64| (n as f64 / 1e7).round() / 100.0;
    // 284.3 and 13.27, published as 284 and 13.
    assert!((284.2..284.4).contains(&billions(plan.weights.parameters)), "{}", plan.weights.parameters);
    assert_eq!(billions(plan.weights.active_parameters), 13.27);
    let routed = 43 * 256 * 3 * 4096 * 2048u64;
    assert_eq!(
        bytes(&plan, "routed experts"),
        (routed * 9 / 16 + 4 * 43 * 256 * 3, (routed * 9 / 16 + 4 * 43 * 256 * 3) / 4)
    );
    let head = 129_280 * 4096 * 2;
    assert_eq!((bytes(&plan, "head").0, bytes(&plan, "embedding").1), (head, head / 4));
    // wq_a and wkv are on every GPU, the heads are split.
    let attention = 43 * (1024 * 4096 + 512 * 4096 + (32768 * 1024 + 8192 * 4096 + 4096 * 8192) / 4u64);
    let scales = attention / 16384;
    assert_eq!(bytes(&plan, "attention").1, attention + scales);
}

#[test]
fn flash_keys_and_values_follow_the_formula() {
    let dir = Dir::new(&Form::Nvfp4.config(&flash()));
    let kv = dir.plan(request()).kv;
    assert_eq!((kv.entry, kv.index_key), (584, 132));
    assert_eq!((kv.per_token.c4, kv.per_token.c128, kv.per_token.index_keys), (3066.0, 91.25, 693.0));
    assert_eq!(kv.per_token.total.round(), 3850.0);
    assert_eq!(kv.per_sequence.window, 43 * 128 * 584); // 3.2 MB
    assert_eq!(kv.per_sequence.c4_states, 21 * 8 * 2048 * 4);
    assert_eq!(kv.per_sequence.index_states, 21 * 8 * 512 * 4);
    assert_eq!(kv.per_sequence.c128_states, 20 * 128 * 1024 * 4);
    let fp4 = dir.plan(Request { index_keys: KvFormat::Fp4, ..request() }).kv;
    assert_eq!((fp4.index_key, fp4.per_token.total.round()), (68, 3514.0));
    let small = dir.plan(Request { kv: KvFormat::Fp4, ..request() }).kv;
    let wide = dir.plan(Request { kv: KvFormat::Bf16, ..request() }).kv;
    assert_eq!((small.entry, wide.entry), (384, 1024));
}

#[test]
fn flash_fits_on_four_cards_of_96_gb() {
    let dir = Dir::new(&Form::Nvfp4.config(&flash()));
    let one = dir.plan(request());
    assert!(one.fits);
    assert_eq!(one.kv_needed, (524_288.0f64 * 3850.25).ceil() as u64 + one.kv.per_sequence.total);
    // All of a GPU is accounted for.
    let used = one.weights.bytes_per_gpu + one.workspace.total + one.request.runtime_bytes + one.kv_needed;
    assert_eq!(i128::from(one.spare), 96_000_000_000 - i128::from(used));
    assert_eq!(one.kv_room, 96_000_000_000 - (used - one.kv_needed));
    assert!(
        (42.0..46.0).contains(&(one.weights.bytes_per_gpu as f64 / 1e9)),
        "{}",
        one.weights.bytes_per_gpu
    );
    // As many as are said to fit do, and one more does not.
    let most = one.sequences_that_fit;
    assert!((20..26).contains(&most), "{most}");
    let with = |sequences| dir.plan(Request { sequences, ..request() });
    assert!(with(most - 1).fits && !with(most + 1).fits);
    let tokens = one.kv_tokens as f64 * one.kv.per_token.total + one.kv.per_sequence.total as f64;
    assert!(tokens <= one.kv_room as f64 && tokens + one.kv.per_token.total > one.kv_room as f64);
    // bf16 does not fit, MXFP4 is smaller than NVFP4.
    let form = |form| dir.plan(Request { form: Some(form), ..request() });
    assert!(
        !form(Form::Bf16).fits && form(Form::Bf16).kv_room == 0 && form(Form::Bf16).spare < -40_000_000_000
    );
    assert!(form(Form::Fp8Mxfp4).weights.bytes < form(Form::Nvfp4).weights.bytes);
    assert_eq!(form(Form::Nvfp4).weights, one.weights, "the configuration states the same");
}

#[test]
fn replicated_attention_spreads_sequences() {
    let dir = Dir::new(&Form::Nvfp4.config(&flash()));
    let split = dir.plan(Request { sequences: 8, ..request() });
    let spread = dir.plan(Request { sequences: 8, attention: Spread::Replicated, ..request() });
    assert_eq!((split.sequences_per_gpu, spread.sequences_per_gpu), (8, 2));
    assert_eq!(spread.kv_needed * 4, split.kv_needed);
    let (all, gpu) = bytes(&spread, "attention");
    assert_eq!(all, gpu);
    assert!(spread.sequences_that_fit > 3 * split.sequences_that_fit);
}

#[test]
fn groups_that_do_not_divide_the_model_are_refused() {
    let dir = Dir::new(&flash());
    let error = plan(&dir.config(), Request { gpus: 3, ..request() }).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Config { source, .. } if source.field == "num_attention_heads"),
        "{error}"
    );
    let error = plan(&dir.config(), Request { gpus: 16, ..request() }).unwrap_err();
    assert!(
        matches!(&error, CheckpointError::Config { source, .. } if source.field == "o_groups"),
        "{error}"
    );
}

/// The plan of a checkpoint that is there counts the bytes of its files.
#[test]
fn plans_are_as_large_as_the_files() {
    for form in Form::ALL {
        let dir = TempDir::new().unwrap();
        Preset::FlashLike.write_as(dir.path(), form).unwrap();
        let request = Request { gpus: 1, context: None, ..request() };
        let planned = plan(dir.path(), request).unwrap();
        assert_eq!(planned.request.context, Some(65_536));
        let files = |ends: &dyn Fn(&str) -> bool| -> usize {
            list(dir.path()).unwrap().iter().filter(|t| ends(&t.name)).map(|t| t.bytes).sum()
        };
        for (class, part) in [
            ("routed experts", ".experts."),
            ("shared experts", ".shared_experts."),
            ("compressor", "compressor.w"),
        ] {
            assert_eq!(bytes(&planned, class).0, files(&|name| name.contains(part)) as u64, "{form} {class}");
        }
        let attention = [".wq_a.", ".wq_b.", ".attn.wkv.", ".wo_a.", ".wo_b."];
        let own = |name: &str| attention.iter().any(|a| name.contains(a)) && !name.contains("indexer");
        assert_eq!(bytes(&planned, "attention").0, files(&own) as u64, "{form}");
        assert!(planned.notes.iter().any(|n| n.contains("the index counts")), "{:?}", planned.notes);
        let explicit = plan(dir.path(), Request { form: Some(form), ..request }).unwrap();
        assert_eq!(explicit.weights, planned.weights);
    }
}

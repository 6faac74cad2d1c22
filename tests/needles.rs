//! Needle recall equals that of transformers, prompt by prompt: the goldens hold the prompts and what was recalled.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{EngineConfig, Request};
use hotseam_tests::{Checkpoint, all, config, engine, root};
use serde::Deserialize;

#[derive(Deserialize)]
struct Golden {
    prompts: String,
    runs: Vec<Run>,
}

#[derive(Deserialize)]
struct Run {
    length: usize,
    index_topk: usize,
    recalled: usize,
    /// Depth, name, value, recalled word for word.
    probes: Vec<(f64, String, String, bool)>,
}

#[test]
fn recall_equals_transformers_probe_by_probe() {
    let dir = root().join("tests/goldens");
    let golden: Golden = serde_json::from_slice(&std::fs::read(dir.join("needles.json")).unwrap()).unwrap();
    let bytes = std::fs::read(dir.join(&golden.prompts)).unwrap();
    let tokens: Vec<u32> = bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]).into()).collect();
    let tokenizer = Tokenizer::load(&root().join("assets/nano-v4/tokenizer.json")).unwrap();
    let model = Checkpoint::Nano.model();
    let (eos, shipped) = (model.config.eos_token_id, model.config.index_topk);
    let mut at = 0;
    for run in &golden.runs {
        let sizes = EngineConfig { index_topk: Some(run.index_topk), ..config() };
        let engine = engine(Checkpoint::Nano, all("cpu-stock"), sizes);
        let mut handles = Vec::new();
        for _ in &run.probes {
            let prompt = tokens[at..at + run.length].to_vec();
            at += run.length;
            handles.push(
                engine.submit(Request { stop_tokens: vec![eos], ..Request::greedy(prompt, 24) }).unwrap(),
            );
        }
        let mut recalled = 0;
        for ((depth, name, value, want), handle) in run.probes.iter().zip(handles) {
            let said = tokenizer.decode(&handle.tokens().unwrap()).unwrap();
            let hit = said == format!("The secret word of {name} is {value}.");
            assert_eq!(hit, *want, "{} tokens, depth {depth}: `{said}` for {name}, {value}", run.length);
            recalled += usize::from(hit);
        }
        println!(
            "{} of {} at {} tokens, index_topk {}",
            recalled,
            run.probes.len(),
            run.length,
            run.index_topk
        );
        assert_eq!(recalled, run.recalled);
        // The checkpoint's number finds all; an eighth of it is too few.
        assert_eq!(run.probes.len(), 16);
        assert!(if run.index_topk == shipped { recalled == 16 } else { recalled < 10 }, "{recalled}");
    }
    assert_eq!(at, tokens.len());
}

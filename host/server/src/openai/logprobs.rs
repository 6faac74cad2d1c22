//! Log-probabilities in the two forms of OpenAI.

use hotseam_encoding::Tokenizer;
use serde_json::{Map, Value, json};

use crate::choice::Record;

/// The form of `/v1/completions`: parallel lists.
pub(crate) fn completion(records: &[Record], tokenizer: &Tokenizer) -> Value {
    let top = |record: &Record| {
        let mut alternatives = Map::new();
        for (id, logprob) in record.top.iter().copied().chain([(record.id, record.logprob)]) {
            // Two tokens can have the same text; the likelier one comes first and stays.
            alternatives.entry(label(id, tokenizer)).or_insert_with(|| number(logprob));
        }
        alternatives
    };
    json!({
        "tokens": records.iter().map(|record| label(record.id, tokenizer)).collect::<Vec<_>>(),
        "token_logprobs": records.iter().map(|record| number(record.logprob)).collect::<Vec<_>>(),
        "top_logprobs": records.iter().map(top).collect::<Vec<_>>(),
        "text_offset": records.iter().map(|record| record.offset).collect::<Vec<_>>(),
    })
}

/// The form of `/v1/chat/completions`: one object for each token.
pub(crate) fn chat(records: &[Record], tokenizer: &Tokenizer) -> Value {
    let content: Vec<Value> = records
        .iter()
        .map(|record| {
            let mut entry = entry(record.id, record.logprob, tokenizer);
            let top = record.top.iter().map(|(id, logprob)| self::entry(*id, *logprob, tokenizer));
            entry["top_logprobs"] = top.collect();
            entry
        })
        .collect();
    json!({ "content": content, "refusal": null })
}

fn entry(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Value {
    let bytes = tokenizer.bytes(id).unwrap_or_default();
    json!({ "token": String::from_utf8_lossy(bytes), "logprob": number(logprob), "bytes": bytes })
}

/// A token as text; one that is a part of a character is written `bytes:\xf0\x9f`.
fn label(id: u32, tokenizer: &Tokenizer) -> String {
    let bytes = tokenizer.bytes(id).unwrap_or_default();
    match std::str::from_utf8(bytes) {
        Ok(text) => text.to_owned(),
        Err(_) => bytes.iter().fold("bytes:".to_owned(), |label, byte| label + &format!("\\x{byte:02x}")),
    }
}

/// JSON has no infinity: an impossible token gets OpenAI's floor.
pub(crate) fn number(logprob: f32) -> Value {
    json!(if logprob.is_finite() { f64::from(logprob) } else { -9999.0 })
}

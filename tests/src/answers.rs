//! Requests in the forms of all endpoints, and what their answers say, so that answers of a router and of a worker can be
//! compared.

use crate::http::Reply;
use serde_json::{Value, json};

/// A prompt whose answer is known: `tiger`.
pub const NEEDLE: &str = "The old school stood by the river. The secret word of Lisbon is tiger. Snow fell on the hills. \
                          What is the secret word of Lisbon?";

/// A request.
#[derive(Debug, Clone)]
pub struct Case {
    /// Where it is posted.
    pub path: &'static str,
    /// What is posted.
    pub body: Value,
}

/// What an answer says of one choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Said {
    /// Its text.
    pub text: String,
    /// Why it ended; null if it does not say so.
    pub reason: Value,
    /// Tokens with their probabilities; null if there are none.
    pub logprobs: Value,
}

/// Why an answer says nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Another status than 200, and the code of the error.
    Status(u16, String),
    /// An error among the events of a stream: its code.
    Event(String),
    /// The connection broke before the answer was whole.
    Cut,
    /// Anything else, which no server may answer.
    Malformed(String),
}

/// `/v1/chat/completions` with the needle.
pub fn chat(extra: Value) -> Case {
    let body = json!({
        "model": "nano-v4", "messages": [{"role": "user", "content": NEEDLE}], "max_tokens": 12, "temperature": 0
    });
    Case { path: "/v1/chat/completions", body: with(body, extra) }
}

/// `/v1/completions` with a short prompt.
pub fn completion(extra: Value) -> Case {
    let body = json!({"model": "nano-v4", "prompt": "Once upon a time", "max_tokens": 9, "temperature": 0});
    Case { path: "/v1/completions", body: with(body, extra) }
}

/// `/generate`: `params` on top of the usual ones, `extra` beside them.
pub fn generate(params: Value, extra: Value) -> Case {
    let params = with(json!({"max_new_tokens": 9, "temperature": 0}), params);
    Case { path: "/generate", body: with(json!({ "sampling_params": params }), extra) }
}

/// An object with more fields.
///
/// # Panics
/// If either is no object.
pub fn with(mut body: Value, extra: Value) -> Value {
    body.as_object_mut().expect("an object").extend(extra.as_object().expect("an object").clone());
    body
}

impl Case {
    /// Whether its answer is a stream.
    pub fn streams(&self) -> bool {
        self.body["stream"] == true
    }

    /// What an answer says, choice by choice.
    ///
    /// # Errors
    /// Why it says nothing.
    pub fn said(&self, reply: &Reply) -> Result<Vec<Said>, Refusal> {
        if reply.status != 200 {
            let error: Value = serde_json::from_str(&reply.body).unwrap_or_default();
            let code = [&error["error"]["code"], &error["code"], &error["error"]["type"]];
            let code = code.iter().find_map(|code| code.as_str()).unwrap_or("none");
            return Err(Refusal::Status(reply.status, code.to_owned()));
        }
        let objects = match self.streams() {
            true => events(reply)?,
            false if !reply.whole => return Err(Refusal::Cut),
            false => match serde_json::from_str(&reply.body) {
                Ok(Value::Array(objects)) => objects,
                Ok(object) => vec![object],
                Err(error) => return Err(Refusal::Malformed(format!("{error}: {}", reply.body))),
            },
        };
        let mut choices: Vec<Said> = Vec::new();
        for (position, object) in objects.iter().enumerate() {
            self.note(position, object, &mut choices)
                .ok_or_else(|| Refusal::Malformed(format!("event {position}: {object}")))?;
        }
        Ok(choices)
    }

    /// Adds what one object says.
    fn note(&self, position: usize, object: &Value, choices: &mut Vec<Said>) -> Option<()> {
        let mut note = |index: usize, text: &str, whole: bool, reason: &Value, logprobs: Value| {
            let nothing = Said { text: String::new(), reason: Value::Null, logprobs: Value::Null };
            choices.resize(choices.len().max(index + 1), nothing);
            let choice = &mut choices[index];
            match whole {
                true => choice.text = text.to_owned(),
                false => choice.text += text,
            }
            if !reason.is_null() {
                choice.reason = reason.clone();
            }
            if !logprobs.is_null() {
                choice.logprobs = singles(logprobs);
            }
        };
        if self.path == "/generate" {
            let index = match self.streams() {
                true => object["index"].as_u64().unwrap_or(0) as usize,
                false => position,
            };
            let (meta, text) = (&object["meta_info"], object["text"].as_str()?);
            note(index, text, true, &meta["finish_reason"]["type"], meta["output_token_logprobs"].clone());
        }
        for choice in object["choices"].as_array().into_iter().flatten() {
            let text = ["/message/content", "/delta/content", "/text"];
            let text = text.iter().find_map(|at| choice.pointer(at)?.as_str()).unwrap_or_default();
            let index = choice["index"].as_u64()? as usize;
            note(index, text, false, &choice["finish_reason"], choice["logprobs"].clone());
        }
        Some(())
    }
}

/// Numbers as the f32 that they are: a router that joins the answers of a pair reads them and writes them anew, and its last
/// digits of an f64 differ.
fn singles(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => json!(number.as_f64().map(|number| number as f32)),
        Value::Array(items) => items.into_iter().map(singles).collect(),
        Value::Object(fields) => fields.into_iter().map(|(key, value)| (key, singles(value))).collect(),
        other => other,
    }
}

/// Events of a stream that came to its end, without the closing `[DONE]`.
fn events(reply: &Reply) -> Result<Vec<Value>, Refusal> {
    let lines: Vec<&str> =
        reply.body.lines().filter_map(|line| line.strip_prefix("data:")).map(str::trim).collect();
    let mut events = Vec::new();
    for line in lines.iter().filter(|line| **line != "[DONE]") {
        match serde_json::from_str::<Value>(line) {
            Ok(event) => events.push(event),
            // The last line of a broken stream may be half a line.
            Err(_) if !reply.whole => return Err(Refusal::Cut),
            Err(error) => return Err(Refusal::Malformed(format!("{error}: {line}"))),
        }
    }
    if let Some(error) = events.iter().find_map(|event| event.get("error").filter(|error| !error.is_null())) {
        let code = error["code"].as_str().or_else(|| error["type"].as_str()).or_else(|| error.as_str());
        return Err(Refusal::Event(code.unwrap_or("none").to_owned()));
    }
    match lines.last() {
        Some(&"[DONE]") => Ok(events),
        _ if !reply.whole => Err(Refusal::Cut),
        _ => Err(Refusal::Malformed(format!("a stream without an end: {}", reply.body))),
    }
}

//! The answer of `/generate`. A stream tells everything anew with each event, as SGLang's does.

use std::time::Instant;

use hotseam_encoding::Tokenizer;
use hotseam_engine::Request;
use serde_json::{Value, json};

use super::ask::{Ask, Logprobs};
use super::sampling::Params;
use crate::choice::{Choice, Delta, Finish, Matched, Record};
use crate::form::{About, Form, Usage};
use crate::openai::logprobs::number;

/// What SGLang says where nobody named the weights.
const WEIGHT_VERSION: &str = "default";

/// Everything about an answer that is known before the first token, and what has come since.
pub(crate) struct Shape {
    params: Vec<Params>,
    /// Choices of each prompt.
    n: usize,
    list: bool,
    logprobs: Option<Logprobs>,
    fingerprint: String,
    started: Instant,
    tokenizer: Tokenizer,
    choices: Vec<Told>,
}

/// One choice.
struct Told {
    id: String,
    /// The name that it shares with the other choices of its request.
    group: String,
    prompt_tokens: usize,
    /// First token of the prompt that is reported.
    first: Option<u32>,
    /// All that a stream has told.
    sofar: Delta,
}

impl Shape {
    pub(crate) fn new(ask: &Ask, about: About<'_>, requests: &[Request]) -> Self {
        let n = ask.n();
        let names = |index: usize| match (ask.rids.get(index / n), n) {
            (Some(names), 1) => names.clone(),
            (Some((rid, group)), _) => (format!("{rid}_{}", index % n), group.clone()),
            (None, _) if requests.len() == 1 => (about.id.to_owned(), about.id.to_owned()),
            (None, _) => (format!("{}_{index}", about.id), about.id.to_owned()),
        };
        let start = ask.logprobs.and_then(|logprobs| logprobs.start);
        let told = |(index, request): (usize, &Request)| {
            let (id, group) = names(index);
            Told {
                id,
                group,
                prompt_tokens: request.prompt.len(),
                first: start.and_then(|start| request.prompt.get(start).copied()),
                sofar: Delta::default(),
            }
        };
        let choices = requests.iter().enumerate().map(told).collect();
        Self {
            params: ask.params.clone(),
            n,
            list: ask.list,
            logprobs: ask.logprobs,
            fingerprint: about.fingerprint.to_owned(),
            started: Instant::now(),
            tokenizer: about.tokenizer.clone(),
            choices,
        }
    }

    /// The object of one choice that is known so far.
    fn object(&self, index: usize, known: &Delta) -> Value {
        let told = &self.choices[index];
        let mut meta = json!({
            "id": told.id,
            "finish_reason": known.finish.map(|finish| reason(finish, known)),
            "prompt_tokens": told.prompt_tokens,
            "completion_tokens": known.records.len(),
            "cached_tokens": 0,
            "weight_version": WEIGHT_VERSION,
            "system_fingerprint": self.fingerprint,
        });
        if known.finish.is_some() {
            meta["e2e_latency"] = self.started.elapsed().as_secs_f64().into();
        }
        if let Some(logprobs) = self.logprobs {
            let entry = |record: &Record| self.entry(record.id, Some(record.logprob), logprobs);
            let top = |record: &Record| -> Value {
                record.top.iter().map(|(id, logprob)| self.entry(*id, Some(*logprob), logprobs)).collect()
            };
            // Routers join the lists of prefill and decode by their keys, so these are there in any case. The first token of
            // the prompt that is reported has no probability, as in SGLang.
            let first = told.first.map(|id| self.entry(id, None, logprobs));
            meta["input_token_logprobs"] = first.into_iter().chain(known.prompt.iter().map(entry)).collect();
            meta["output_token_logprobs"] = known.records.iter().map(entry).collect();
            if logprobs.top > 0 {
                let first = told.first.map(|_| Value::Null);
                meta["input_top_logprobs"] = first.into_iter().chain(known.prompt.iter().map(top)).collect();
                meta["output_top_logprobs"] = known.records.iter().map(top).collect();
            }
        }
        let ids: Vec<u32> = known.records.iter().map(|record| record.id).collect();
        json!({ "text": known.text, "output_ids": ids, "meta_info": meta })
    }

    /// SGLang's triple of a token.
    fn entry(&self, id: u32, logprob: Option<f32>, logprobs: Logprobs) -> Value {
        let bytes = || self.tokenizer.bytes(id).unwrap_or_default();
        let text = logprobs.text.then(|| String::from_utf8_lossy(bytes()).into_owned());
        json!([logprob.map(number), id, text])
    }
}

fn reason(finish: Finish, known: &Delta) -> Value {
    match finish {
        Finish::Stop => {
            let matched = known.matched.as_ref().map(|matched| match matched {
                Matched::Token(id) => json!(id),
                Matched::Text(text) => json!(text),
            });
            json!({ "type": finish.name(), "matched": matched })
        }
        Finish::Length => json!({ "type": finish.name(), "length": known.records.len() }),
        Finish::Abort => json!({ "type": finish.name(), "message": "ended by /abort_request" }),
    }
}

impl Form for Shape {
    fn names(&self, index: usize) -> (String, String) {
        let told = &self.choices[index];
        (told.id.clone(), told.group.clone())
    }

    fn new_choice(&self, index: usize) -> Choice {
        Choice::new(&self.tokenizer, self.params[index / self.n].manner(&self.tokenizer))
    }

    fn whole(&self, choices: Vec<Delta>, _usage: Usage) -> Value {
        let mut objects = choices.iter().enumerate().map(|(index, known)| self.object(index, known));
        match self.list {
            true => objects.collect(),
            // One prompt with one choice has one object.
            false => objects.next().unwrap_or_default(),
        }
    }

    fn chunks(&mut self, index: usize, delta: Delta, _first: bool) -> Vec<Value> {
        let silent = delta.text.is_empty() && delta.records.is_empty() && delta.finish.is_none();
        self.choices[index].sofar.append(delta);
        if silent {
            return Vec::new();
        }
        let mut object = self.object(index, &self.choices[index].sofar);
        if self.list {
            object["index"] = index.into();
        }
        vec![object]
    }

    fn last_chunk(&self, _usage: Usage) -> Option<Value> {
        None
    }
}

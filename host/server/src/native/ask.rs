//! The body of `/generate`.

use hotseam_encoding::Tokenizer;
use hotseam_engine::{Request, Sampling};
use serde_json::Value;

use super::accepted;
use super::sampling::{DEFAULT_MAX_TOKENS, Params};
use super::shape::Shape;
use crate::backend::ModelInfo;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::form::{self, About, Form};
use crate::id;
use crate::meeting::{self, Meeting};
use crate::openai::completions::{self, Prompt};
use crate::openai::{LIVE, common};

/// Name that routers give where their client named no model.
const ANY_MODEL: &str = "unknown";

/// A parsed request.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Ask {
    prompts: Vec<Prompt>,
    /// One for each prompt, all with the same `n`.
    pub(crate) params: Vec<Params>,
    /// Whether the answer is a list whatever its length.
    pub(crate) list: bool,
    pub(crate) logprobs: Option<Logprobs>,
    stream: bool,
    assignment: String,
    /// For each prompt the client's name and what it gave, which is another thing for a batch under one name; none if it gave
    /// none.
    pub(crate) rids: Vec<(String, String)>,
    meeting: Option<Meeting>,
}

/// Which probabilities are reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Logprobs {
    /// First token of the prompt that is reported; `None` for generated tokens only.
    pub(crate) start: Option<usize>,
    /// Most likely tokens with each.
    pub(crate) top: usize,
    /// Whether tokens are shown as text too.
    pub(crate) text: bool,
}

impl Ask {
    /// Reads and checks a request body.
    pub(crate) fn parse(mut fields: Fields, model: &ModelInfo) -> Result<Self, ApiError> {
        if let Some(asked) = fields.string("model")?
            && asked != model.id
            && asked != ANY_MODEL
        {
            return Err(ApiError::unknown_model(&asked, &model.id));
        }
        let (prompts, batch) = prompts(&mut fields, model)?;
        // vLLM's router bounds prefill so; it counts more than `max_new_tokens`.
        let most = fields.size("max_tokens", 1, u32::MAX)?;
        let mut params = params(fields.take("sampling_params"), prompts.len(), model)?;
        for params in &mut params {
            params.max_tokens = most.or(params.max_tokens);
        }
        common::least(&mut fields, params.iter().filter_map(|params| params.max_tokens).max())?;
        let logprobs = logprobs(&mut fields)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let assignment = fields.string("assignment")?.unwrap_or_else(|| LIVE.to_owned());
        let rids = rids(&mut fields, prompts.len())?;
        let meeting = meeting::take(&mut fields)?;
        let own = [
            "model",
            "text",
            "input_ids",
            "max_tokens",
            "min_tokens",
            "sampling_params",
            "return_logprob",
            "logprob_start_len",
            "top_logprobs_num",
            "return_text_in_logprobs",
            "stream",
            "assignment",
            "rid",
        ];
        let known: Vec<&str> = own.into_iter().chain(meeting::FIELDS).collect();
        fields.finish(&accepted::BODY, &known)?;
        let list = batch || params.iter().any(|params| params.n > 1);
        if list && matches!(meeting, Some(Meeting::Hold)) {
            let message = "only allowed with one prompt and `n` 1: the answer of several is a list and has no place for it";
            return Err(ApiError::field("kv_transfer_params", "unsupported_parameter", message));
        }
        Ok(Self { prompts, params, list, logprobs, stream, assignment, rids, meeting })
    }

    /// Choices of each prompt.
    pub(crate) fn n(&self) -> usize {
        self.params.first().map_or(1, |params| params.n)
    }
}

impl form::Ask for Ask {
    fn assignment(&self) -> &str {
        &self.assignment
    }

    fn stream(&self) -> bool {
        self.stream
    }

    fn meeting(&self) -> Option<&Meeting> {
        self.meeting.as_ref()
    }

    fn prompts(&self) -> usize {
        self.prompts.len()
    }

    fn requests(&self, tokenizer: &Tokenizer, model: &ModelInfo) -> Result<(Vec<Request>, usize), ApiError> {
        let mut requests = Vec::new();
        let mut prompt_tokens = 0;
        for (prompt, params) in self.prompts.iter().zip(&self.params) {
            let ids = prompt.ids("text", tokenizer, model)?;
            if ids.is_empty() {
                let field = if matches!(prompt, Prompt::Text(_)) { "text" } else { "input_ids" };
                return Err(ApiError::out_of_range(field, "at least one token", "none"));
            }
            let max_tokens = common::fit(ids.len(), params.max_tokens, DEFAULT_MAX_TOKENS, model)?;
            let start = self.logprobs.and_then(|logprobs| logprobs.start);
            if let Some(start) = start.filter(|start| *start > ids.len()) {
                let expected = format!("-1, or 0 to the tokens of the prompt, {}", ids.len());
                return Err(ApiError::out_of_range("logprob_start_len", &expected, start));
            }
            prompt_tokens += ids.len();
            requests.extend((0..params.n as u64).map(|choice| Request {
                sampling: Sampling { seed: params.sampling.seed.wrapping_add(choice), ..params.sampling },
                stop_tokens: params.stop_tokens(tokenizer),
                logprobs: self.logprobs.map_or(0, |logprobs| logprobs.top),
                // The first one is reported without a probability, as SGLang does.
                prompt_logprobs: start.map(|start| start + 1),
                assignment: self.assignment.clone(),
                ..Request::greedy(ids.to_vec(), max_tokens)
            }));
        }
        Ok((requests, prompt_tokens))
    }

    fn form(&self, about: About<'_>, requests: &[Request]) -> Box<dyn Form> {
        Box::new(Shape::new(self, about, requests))
    }
}

/// The prompts, and whether they came as a batch.
fn prompts(fields: &mut Fields, model: &ModelInfo) -> Result<(Vec<Prompt>, bool), ApiError> {
    let (field, value) = match (fields.take("text"), fields.take("input_ids")) {
        (Some(_), Some(_)) => {
            let message = "only allowed without `input_ids`; give one of them";
            return Err(ApiError::field("text", "invalid_value", message));
        }
        (None, None) => return Err(ApiError::missing("text", "a prompt there or in `input_ids`")),
        (Some(value), None) => ("text", value),
        (None, Some(value)) => ("input_ids", value),
    };
    let batch =
        value.as_array().is_some_and(|items| field == "text" || items.first().is_some_and(Value::is_array));
    let prompts = completions::prompts(value, field, model)?;
    let (expected, found) = match field {
        "text" => ("a string or an array of strings", "token ids; those go to `input_ids`"),
        _ => ("an array of token ids or an array of such arrays", "text; that goes to `text`"),
    };
    if prompts.iter().any(|prompt| matches!(prompt, Prompt::Text(_)) != (field == "text")) {
        return Err(ApiError::field(field, "invalid_type", format!("expected {expected}, found {found}")));
    }
    Ok((prompts, batch))
}

/// The parameters of each prompt: one object for all, or a list of them.
fn params(value: Option<Value>, prompts: usize, model: &ModelInfo) -> Result<Vec<Params>, ApiError> {
    let items = match value {
        Some(Value::Array(items)) => items,
        one => return Ok(vec![Params::parse(one, "sampling_params", model)?; prompts]),
    };
    if items.len() != prompts {
        let expected = format!("one object, or one for each of {prompts} prompts");
        return Err(ApiError::out_of_range("sampling_params", &expected, items.len()));
    }
    let path = |index: usize| format!("sampling_params[{index}]");
    let params: Vec<Params> = items
        .into_iter()
        .enumerate()
        .map(|(index, item)| Params::parse(Some(item), &path(index), model))
        .collect::<Result<_, _>>()?;
    if let Some(index) = params.iter().position(|other| other.n != params[0].n) {
        let expected = format!("that of the first prompt, {}", params[0].n);
        return Err(ApiError::out_of_range(&format!("{}.n", path(index)), &expected, params[index].n));
    }
    Ok(params)
}

fn logprobs(fields: &mut Fields) -> Result<Option<Logprobs>, ApiError> {
    let wanted = fields.boolean("return_logprob")?.unwrap_or(false);
    let start = fields.integer("logprob_start_len", -1, i64::from(u32::MAX))?;
    let top = fields.size("top_logprobs_num", 0, 20)?.unwrap_or(0);
    let text = fields.boolean("return_text_in_logprobs")?.unwrap_or(false);
    let start = start.and_then(|start| usize::try_from(start).ok());
    Ok(wanted.then_some(Logprobs { start, top, text }))
}

/// Names of the prompts: a list as it is, one name for a batch with numbers.
fn rids(fields: &mut Fields, prompts: usize) -> Result<Vec<(String, String)>, ApiError> {
    match fields.take("rid") {
        None => Ok(Vec::new()),
        Some(Value::String(rid)) => {
            let rid = id::given(rid, "rid")?;
            match prompts {
                1 => Ok(vec![(rid.clone(), rid)]),
                _ => Ok((0..prompts).map(|index| (format!("{rid}_{index}"), rid.clone())).collect()),
            }
        }
        Some(Value::Array(items)) if items.len() == prompts => items
            .into_iter()
            .enumerate()
            .map(|(index, item)| match item {
                Value::String(rid) => id::given(rid, &format!("rid[{index}]")).map(|rid| (rid.clone(), rid)),
                other => Err(ApiError::wrong_type(&format!("rid[{index}]"), "a string", &other)),
            })
            .collect(),
        Some(Value::Array(items)) => Err(ApiError::out_of_range(
            "rid",
            &format!("one name for each of {prompts} prompts"),
            items.len(),
        )),
        Some(other) => Err(ApiError::wrong_type("rid", "a string or an array of strings", &other)),
    }
}

//! What both generating endpoints ask for, and its translation into engine requests.

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::{Request, Sampling};
use serde_json::Value;
use warp::http::StatusCode;

use crate::backend::ModelInfo;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::id;
use crate::meeting::{self, Meeting};

/// Choices per prompt, at most.
pub(crate) const MAX_N: u32 = 8;
/// Stop strings per request, at most.
const MAX_STOPS: usize = 4;
/// Assignment of requests that name none.
pub(crate) const LIVE: &str = hotseam_config::DEFAULT_ASSIGNMENT;

/// Names of the fields that both endpoints read.
const FIELDS: [&str; 13] = [
    "model",
    "rid",
    "max_tokens",
    "min_tokens",
    "temperature",
    "top_p",
    "seed",
    "n",
    "stop",
    "stream",
    "stream_options",
    "assignment",
    "ignore_eos",
];

/// Options that `/v1/completions` and `/v1/chat/completions` share.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Common {
    pub(crate) sampling: Sampling,
    pub(crate) n: usize,
    pub(crate) stop: Vec<String>,
    pub(crate) stream: bool,
    pub(crate) include_usage: bool,
    pub(crate) assignment: String,
    /// Go on after the end-of-sentence token; for measurements.
    pub(crate) ignore_eos: bool,
    /// The client's name for the answer.
    pub(crate) rid: Option<String>,
    pub(crate) meeting: Option<Meeting>,
}

/// All names of fields that an endpoint reads, which has `own` besides the common ones.
pub(crate) fn known<const N: usize>(own: [&'static str; N]) -> Vec<&'static str> {
    FIELDS.into_iter().chain(meeting::FIELDS).chain(own).collect()
}

impl Common {
    /// Reads the shared fields.
    pub(crate) fn take(fields: &mut Fields, model: &ModelInfo) -> Result<Self, ApiError> {
        let asked =
            fields.string("model")?.ok_or_else(|| ApiError::missing("model", "the name of a model"))?;
        if asked != model.id {
            return Err(ApiError::unknown_model(&asked, &model.id));
        }
        let temperature = fields.number("temperature", "0 to 2", |value| (0.0..=2.0).contains(&value))?;
        let top_p = fields.number("top_p", "above 0 and at most 1", |value| value > 0.0 && value <= 1.0)?;
        let seed = fields.integer("seed", i64::MIN, i64::MAX)?;
        let sampling = Sampling {
            temperature: temperature.unwrap_or(1.0) as f32,
            top_p: top_p.unwrap_or(1.0) as f32,
            seed: seed.map_or_else(id::random, |seed| seed as u64),
        };
        let n = fields.size("n", 1, MAX_N)?.unwrap_or(1);
        let stop = stops(fields, MAX_STOPS)?;
        let stream = fields.boolean("stream")?.unwrap_or(false);
        let include_usage = stream_options(fields, stream)?;
        let assignment = fields.string("assignment")?.unwrap_or_else(|| LIVE.to_owned());
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let rid = fields.string("rid")?.map(|rid| id::given(rid, "rid")).transpose()?;
        let meeting = meeting::take(fields)?;
        Ok(Self { sampling, n, stop, stream, include_usage, assignment, ignore_eos, rid, meeting })
    }

    /// Token ids that end an answer.
    pub(crate) fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        if self.ignore_eos { Vec::new() } else { vec![tokenizer.control(Control::Eos)] }
    }

    /// The engine requests of one prompt, `n` of them with consecutive seeds. `logprobs` is the number of most
    /// likely tokens to report with each token.
    pub(crate) fn requests<'a>(
        &'a self,
        prompt: &'a [u32],
        max_tokens: usize,
        logprobs: usize,
        tokenizer: &'a Tokenizer,
    ) -> impl Iterator<Item = Request> + 'a {
        (0..self.n as u64).map(move |choice| Request {
            sampling: Sampling { seed: self.sampling.seed.wrapping_add(choice), ..self.sampling },
            stop_tokens: self.stop_tokens(tokenizer),
            logprobs,
            assignment: self.assignment.clone(),
            ..Request::greedy(prompt.to_vec(), max_tokens)
        })
    }
}

/// Tokens to generate for a prompt of `prompt` tokens: what was asked for, or what `default` leaves of the context.
pub(crate) fn fit(
    prompt: usize,
    asked: Option<usize>,
    default: usize,
    model: &ModelInfo,
) -> Result<usize, ApiError> {
    let limit = model.max_context;
    let too_long = |detail: String| {
        let message = format!("the context length of this model is {limit} tokens, but {detail}");
        Err(ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message))
    };
    if prompt >= limit {
        return too_long(format!("the prompt has {prompt} tokens; shorten it to at most {}", limit - 1));
    }
    match asked {
        Some(asked) if prompt + asked > limit => too_long(format!(
            "{} were asked for: {prompt} of prompt and {asked} to generate; shorten one of them",
            prompt + asked
        )),
        Some(asked) => Ok(asked),
        None => Ok(default.min(limit - prompt)),
    }
}

/// Refuses a text that cannot fit, before it is encoded: encoding megabytes costs seconds and gigabytes.
pub(crate) fn fits_bytes(bytes: usize, tokenizer: &Tokenizer, model: &ModelInfo) -> Result<(), ApiError> {
    let (limit, most) = (model.max_context, model.max_context.saturating_mul(tokenizer.longest_token()));
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "the context length of this model is {limit} tokens, but the prompt has {bytes} bytes, and {most} bytes are more \
         tokens than that already; shorten it"
    );
    Err(ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message))
}

/// Reads `stop`: a string or at most `most` of them.
pub(crate) fn stops(fields: &mut Fields, most: usize) -> Result<Vec<String>, ApiError> {
    let path = fields.path("stop");
    let items = match fields.take("stop") {
        None => return Ok(Vec::new()),
        Some(Value::Array(items)) => items,
        Some(text @ Value::String(_)) => vec![text],
        Some(other) => return Err(ApiError::wrong_type(&path, "a string or an array of strings", &other)),
    };
    if items.len() > most {
        return Err(ApiError::out_of_range(&path, &format!("at most {most} strings"), items.len()));
    }
    items
        .into_iter()
        .enumerate()
        .map(|(index, item)| match item {
            Value::String(text) if !text.is_empty() => Ok(text),
            Value::String(_) => {
                Err(ApiError::out_of_range(&format!("{path}[{index}]"), "a string that is not empty", "\"\""))
            }
            other => Err(ApiError::wrong_type(&format!("{path}[{index}]"), "a string", &other)),
        })
        .collect()
}

/// Reads `min_tokens`, which asks for nothing where it is 0, or 1 of 1: vLLM's router asks prefill so.
pub(crate) fn least(fields: &mut Fields, max_tokens: Option<usize>) -> Result<(), ApiError> {
    match fields.size("min_tokens", 0, u32::MAX)? {
        None | Some(0) => Ok(()),
        Some(1) if max_tokens == Some(1) => Ok(()),
        Some(_) => {
            let message = "not implemented here; leave it out, or give 0";
            Err(ApiError::field("min_tokens", "unsupported_parameter", message))
        }
    }
}

fn stream_options(fields: &mut Fields, stream: bool) -> Result<bool, ApiError> {
    let Some(mut options) = fields.object("stream_options")? else { return Ok(false) };
    if !stream {
        let message = "only allowed together with `stream: true`";
        return Err(ApiError::field("stream_options", "invalid_value", message));
    }
    let include_usage = options.boolean("include_usage")?.unwrap_or(false);
    options.boolean("include_obfuscation")?;
    options.finish(&[], &["include_usage", "include_obfuscation"])?;
    Ok(include_usage)
}

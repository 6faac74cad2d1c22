//! `sampling_params` of `/generate`.

use hotseam_encoding::{Control, Tokenizer};
use hotseam_engine::Sampling;
use serde_json::Value;

use super::accepted;
use crate::backend::ModelInfo;
use crate::choice::Manner;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::id;
use crate::openai::{common, completions};

/// Stop strings, at most, as in SGLang.
const MAX_STOPS: usize = 32;
/// Tokens generated when the request does not say, as in SGLang.
pub(crate) const DEFAULT_MAX_TOKENS: usize = 128;

/// How one prompt is answered.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Params {
    pub(crate) sampling: Sampling,
    pub(crate) max_tokens: Option<usize>,
    pub(crate) n: usize,
    stops: Vec<String>,
    stop_tokens: Vec<u32>,
    ignore_eos: bool,
}

impl Params {
    /// Reads an object that stands at `path`; `None` for all defaults.
    pub(crate) fn parse(value: Option<Value>, path: &str, model: &ModelInfo) -> Result<Self, ApiError> {
        let mut fields = Fields::nested(value.unwrap_or_else(|| Value::Object(Default::default())), path)?;
        let temperature =
            fields.number("temperature", "0 to 100", |value| (0.0..=100.0).contains(&value))?.unwrap_or(1.0);
        let top_p = fields.number("top_p", "above 0 and at most 1", |value| value > 0.0 && value <= 1.0)?;
        let seed = fields.integer("sampling_seed", i64::MIN, i64::MAX)?;
        let max_tokens = fields.size("max_new_tokens", 1, u32::MAX)?;
        let n = fields.size("n", 1, common::MAX_N)?.unwrap_or(1);
        let stops = common::stops(&mut fields, MAX_STOPS)?;
        let ids_path = fields.path("stop_token_ids");
        let ids = fields.array("stop_token_ids")?.unwrap_or_default();
        if ids.len() > MAX_STOPS {
            return Err(ApiError::out_of_range(&ids_path, &format!("at most {MAX_STOPS} ids"), ids.len()));
        }
        let stop_tokens = completions::ids(ids, &ids_path, model)?;
        let ignore_eos = fields.boolean("ignore_eos")?.unwrap_or(false);
        let known = [
            "temperature",
            "top_p",
            "sampling_seed",
            "max_new_tokens",
            "n",
            "stop",
            "stop_token_ids",
            "ignore_eos",
        ];
        fields.finish(&accepted::SAMPLING, &known)?;
        let sampling = Sampling {
            temperature: temperature as f32,
            top_p: top_p.unwrap_or(1.0) as f32,
            seed: seed.map_or_else(id::random, |seed| seed as u64),
        };
        Ok(Self { sampling, max_tokens, n, stops, stop_tokens, ignore_eos })
    }

    /// Token ids that end an answer.
    pub(crate) fn stop_tokens(&self, tokenizer: &Tokenizer) -> Vec<u32> {
        let eos = (!self.ignore_eos).then(|| tokenizer.control(Control::Eos));
        self.stop_tokens.iter().copied().chain(eos).collect()
    }

    /// How its tokens become text: every token is shown, as SGLang does.
    pub(crate) fn manner(&self, tokenizer: &Tokenizer) -> Manner {
        Manner {
            stops: self.stops.clone(),
            stop_tokens: self.stop_tokens(tokenizer),
            thinking: false,
            every_token: true,
        }
    }
}

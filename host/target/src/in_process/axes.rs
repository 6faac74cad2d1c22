//! Settings that can be changed without a patch: the answer to a failing good end may be one of them.

use hotseam_engine::{Device, EngineConfig, Topology};
use hotseam_model::ModelConfig;
use hotseam_slots::{Op, Phase, Rule, Seam};
use serde_json::Value;

use crate::planning::{Resolved, Site};
use crate::{Axis, TOPOLOGY, TargetError};

/// Names of the axes.
const INDEX_TOPK: &str = "index_topk";
const KEYS: &str = "keys";
const CHUNK: &str = "chunk";
const MAX_SEQS: &str = "max_seqs";
const PREFIX_CACHE: &str = "prefix_cache";
const AMX: &str = "amx";

/// Option of indexer variants that sets the format of index keys, and its values, the most exact first.
const KEY_FORMATS: [&str; 3] = ["f32", "bf16", "fp8"];
/// Bytes of the prefix cache when it is switched on.
const CACHE_BYTES: usize = 256 << 20;

/// Other values of what an engine was measured with.
#[derive(Debug, Clone)]
pub(super) struct Setting {
    pub(super) sizes: EngineConfig,
    /// Format of index keys.
    pub(super) keys: Option<String>,
}

/// The axes of an engine whose good end is `good`.
pub(super) fn axes(site: &dyn Site, sizes: &EngineConfig, model: &ModelConfig, good: &Resolved) -> Vec<Axis> {
    let axis = |name: &str, now: String, values: Vec<String>| Axis { name: name.to_owned(), now, values };
    let mut axes = Vec::new();
    let topk = sizes.index_topk.unwrap_or(model.index_topk);
    axes.push(axis(INDEX_TOPK, topk.to_string(), numbers(&larger_topk(topk, model.index_topk))));
    if let Some((now, values)) = key_formats(site, good) {
        axes.push(axis(KEYS, now, values));
    }
    // All of the prompt at once, and pieces that end in the middle of everything.
    let mut chunks = vec![sizes.max_context.min(65536), (sizes.chunk / 4).max(1)];
    chunks.retain(|chunk| *chunk != sizes.chunk);
    axes.push(axis(CHUNK, sizes.chunk.to_string(), numbers(&chunks)));
    let batch = if sizes.max_seqs > 1 { 1 } else { 4 };
    axes.push(axis(MAX_SEQS, sizes.max_seqs.to_string(), numbers(&[batch])));
    let (on, off) = ("on".to_owned(), "off".to_owned());
    let cached = sizes.prefix_cache_bytes > 0;
    let (now, other) = if cached { (on, off) } else { (off, on) };
    axes.push(axis(PREFIX_CACHE, now, vec![other]));
    // A pair needs a transport, which a rule must name, and which moves host memory.
    let others = match (sizes.topology, sizes.device) {
        (Topology::Paired, _) => vec![Topology::Single.to_string()],
        (Topology::Single, Device::Cpu) => vec![Topology::Paired.to_string()],
        (Topology::Single, Device::Cuda(_)) => Vec::new(),
    };
    axes.push(axis(TOPOLOGY, sizes.topology.to_string(), others));
    if sizes.amx {
        axes.push(axis(AMX, "on".to_owned(), vec!["off".to_owned()]));
    }
    axes.retain(|axis| !axis.values.is_empty());
    axes
}

/// Doublings up to the checkpoint's own number; beyond it, twice and four times.
fn larger_topk(now: usize, own: usize) -> Vec<usize> {
    if now >= own {
        return vec![now.saturating_mul(2), now.saturating_mul(4)];
    }
    let mut values: Vec<usize> = std::iter::successors(Some(now * 2), |value| Some(value * 2))
        .take_while(|value| *value < own)
        .collect();
    values.push(own);
    values
}

/// The format of index keys, and the others that every variant takes.
fn key_formats(site: &dyn Site, good: &Resolved) -> Option<(String, Vec<String>)> {
    let selects = good.cells.iter().filter(|served| {
        let id = served.cell.id;
        (id.seam, id.op, id.phase) == (Seam::Indexer, Op::Select, Some(Phase::Decode))
    });
    let mut specs: Vec<_> = selects.map(|served| &served.by.spec).collect();
    specs.dedup();
    let now = specs.first()?.options().get(KEYS)?.as_str()?.to_owned();
    let others = KEY_FORMATS.into_iter().filter(|format| *format != now);
    let taken = |format: &&str| {
        let value = Value::String((*format).to_owned());
        specs.iter().all(|spec| site.accepts(&spec.name, KEYS, &value).unwrap_or(false))
    };
    let values: Vec<String> = others.filter(taken).map(str::to_owned).collect();
    Some((now, values))
}

/// `sizes` with the settings made.
///
/// # Errors
/// [`TargetError::Setup`] naming an axis or value that is none.
pub(super) fn apply(settings: &[(String, String)], sizes: &EngineConfig) -> Result<Setting, TargetError> {
    let mut setting = Setting { sizes: sizes.clone(), keys: None };
    for (name, value) in settings {
        let bad = |expected: &str| {
            Err(TargetError::Setup(format!("axis {name} cannot be `{value}`, expected {expected}")))
        };
        let number = value.parse::<usize>().ok().filter(|number| *number > 0);
        match (name.as_str(), number) {
            (INDEX_TOPK, Some(topk)) => setting.sizes.index_topk = Some(topk),
            (CHUNK, Some(chunk)) => setting.sizes.chunk = chunk,
            (MAX_SEQS, Some(seqs)) => setting.sizes.max_seqs = seqs,
            (INDEX_TOPK | CHUNK | MAX_SEQS, None) => return bad("a number of at least 1"),
            (KEYS, _) if KEY_FORMATS.contains(&value.as_str()) => setting.keys = Some(value.clone()),
            (KEYS, _) => return bad("f32, bf16 or fp8"),
            (PREFIX_CACHE, _) => {
                setting.sizes.prefix_cache_bytes = match value.as_str() {
                    "on" => CACHE_BYTES,
                    "off" => 0,
                    _ => return bad("on or off"),
                }
            }
            (TOPOLOGY, _) => match Topology::ALL.iter().find(|topology| topology.name() == value) {
                Some(topology) => setting.sizes.topology = *topology,
                None => return bad("single or paired"),
            },
            (AMX, _) => match value.as_str() {
                "on" => setting.sizes.amx = true,
                "off" => setting.sizes.amx = false,
                _ => return bad("on or off"),
            },
            _ => {
                let known = [INDEX_TOPK, KEYS, CHUNK, MAX_SEQS, PREFIX_CACHE, TOPOLOGY, AMX].join(", ");
                return Err(TargetError::Setup(format!("there is no axis `{name}`; there are: {known}")));
            }
        }
    }
    // Pages follow from the sizes, unless the file gave them for the old ones.
    if setting.sizes.max_seqs > sizes.max_seqs {
        setting.sizes.pages = None;
    }
    Ok(setting)
}

/// `rules` with the format of index keys set in every indexer variant.
///
/// # Errors
/// [`TargetError::Setup`] if a rule cannot be remade.
pub(super) fn with_keys(rules: Vec<Rule>, keys: Option<&String>) -> Result<Vec<Rule>, TargetError> {
    let Some(keys) = keys else { return Ok(rules) };
    let remade = rules.into_iter().map(|rule| match rule.variant() {
        Some(variant) if rule.select().seam == Seam::Indexer => {
            let variant = variant.with_option(KEYS, Some(Value::String(keys.clone())));
            Rule::new(rule.select().clone(), Some(variant)).map_err(TargetError::Setup)
        }
        _ => Ok(rule),
    });
    remade.collect()
}

fn numbers(values: &[usize]) -> Vec<String> {
    values.iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topk_grows_to_the_checkpoints_own_number_and_then_beyond() {
        assert_eq!(larger_topk(16, 128), [32, 64, 128]);
        assert_eq!(larger_topk(48, 128), [96, 128]);
        assert_eq!(larger_topk(127, 128), [128]);
        assert_eq!(larger_topk(128, 128), [256, 512]);
    }

    #[test]
    fn settings_change_only_what_they_name() {
        let sizes = EngineConfig { pages: Some(7), ..EngineConfig::default() };
        let set = |pairs: &[(&str, &str)]| {
            let pairs: Vec<(String, String)> =
                pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            apply(&pairs, &sizes)
        };
        let found =
            set(&[("index_topk", "64"), ("prefix_cache", "off"), ("topology", "paired"), ("keys", "f32")]);
        let found = found.unwrap();
        assert_eq!(
            (found.sizes.index_topk, found.sizes.prefix_cache_bytes, found.sizes.topology, found.sizes.chunk),
            (Some(64), 0, Topology::Paired, sizes.chunk)
        );
        assert_eq!((found.keys.as_deref(), found.sizes.pages), (Some("f32"), Some(7)));
        assert_eq!(set(&[("max_seqs", "9")]).unwrap().sizes.pages, None);
        for (name, value, part) in [
            ("index_topk", "0", "expected a number of at least 1"),
            ("index_topk", "many", "cannot be `many`"),
            ("topology", "triple", "expected single or paired"),
            ("keys", "int4", "expected f32, bf16 or fp8"),
            ("kv", "f32", "there is no axis `kv`; there are: index_topk"),
        ] {
            let error = set(&[(name, value)]).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        }
    }
}

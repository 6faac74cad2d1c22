//! The sections of the configuration file.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

use crate::admin::AdminTcpSection;
use crate::assignments::Assignments;
use crate::disaggregation::{DisaggregationSection, Role};
use crate::document::{Fault, FieldPath, Step, quoted};
use crate::engine::{EngineSection, Topology};
use crate::error::ConfigError;
use crate::names;
use crate::oracle::{NoiseKind, Oracle, OracleKind};
use crate::origin::Origin;
use crate::plugins::PluginsSection;
use crate::target::TargetSection;

/// A whole configuration. Once it is loaded, its paths are absolute.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys model, server, engine, ...")]
pub struct Config {
    /// The checkpoint.
    pub model: ModelSection,
    /// Where to listen.
    #[serde(default)]
    pub server: ServerSection,
    /// Sizes of the engine.
    #[serde(default)]
    pub engine: EngineSection,
    /// Prefill and decode in different workers.
    #[serde(default)]
    pub disaggregation: DisaggregationSection,
    /// Where plugin files are found, and what is asked of them.
    #[serde(default)]
    pub plugins: PluginsSection,
    /// Which variant each cell uses, by name of the assignment; `live` must be among them.
    pub assignments: Assignments,
    /// Defaults of `hotseam needle`.
    #[serde(default)]
    pub needle: NeedleSection,
    /// What `hotseam bisect run` compares, if the file is meant for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bisect: Option<BisectSection>,
    #[serde(skip)]
    pub(crate) origin: Origin,
}

/// Section `model`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys path and memory")]
pub struct ModelSection {
    /// Checkpoint directory with `config.json`, `tokenizer.json` and safetensors shards.
    pub path: PathBuf,
    /// Where the weights are while the server runs.
    #[serde(default)]
    pub memory: WeightMemory,
}

/// Where weights are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum WeightMemory {
    /// Mapped from the files: a fast start, and memory that the system can take back.
    #[default]
    Mapped,
    /// Copied into memory of the process, in huge pages where the system has them.
    Copied,
}

/// Section `server`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping with the keys listen, admin, ...")]
pub struct ServerSection {
    /// Address of the public listener. Port 0 takes a free one.
    #[serde(deserialize_with = "address")]
    #[schemars(extend("pattern" = ADDRESS_PATTERN))]
    pub listen: SocketAddr,
    /// Unix socket of the admin endpoints; `null` lets the server choose one from the port.
    pub admin: Option<PathBuf>,
    /// A second door to the admin endpoints, on the loopback and with tokens; `null` for none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub admin_tcp: Option<AdminTcpSection>,
    /// File of the audit log, one JSON line an event; `null` for `audit.jsonl` in
    /// `plugins.state_dir`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub audit: Option<PathBuf>,
}

impl Default for ServerSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8000)),
            admin: None,
            admin_tcp: None,
            audit: None,
        }
    }
}

/// Section `needle`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, expecting = "a mapping with the keys haystack, lengths, probes, seed")]
pub struct NeedleSection {
    /// Text files that needles are hidden in, and that the KL oracle reads.
    pub haystack: Vec<PathBuf>,
    /// Prompt lengths in tokens.
    #[serde(deserialize_with = "lengths")]
    #[schemars(length(min = 1), inner(range(min = 1)))]
    pub lengths: Vec<usize>,
    /// Needle positions per length, spread evenly.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub probes: usize,
    /// Seed of names, values and passages.
    pub seed: u64,
}

impl Default for NeedleSection {
    fn default() -> Self {
        Self { haystack: Vec::new(), lengths: vec![512, 1024, 2048], probes: 16, seed: 1 }
    }
}

/// Section `bisect`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys good, bad, oracle, ...")]
pub struct BisectSection {
    /// Assignment that works.
    pub good: String,
    /// Assignment that fails.
    pub bad: String,
    /// What tells them apart.
    pub oracle: Oracle,
    /// Oracle runs allowed, those that verify both ends included; `null` for 20, or 200 if
    /// the oracle's answers are draws.
    #[serde(default, deserialize_with = "some_positive", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1))]
    pub budget_runs: Option<usize>,
    /// Whether the good end runs at topology `single` and the bad end at `paired`, so that the hand-off is one of the changes; both
    /// ends may then be one assignment. `engine.topology` is that of the bad end.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub single_to_paired: bool,
    /// Running servers to bisect; `null` bisects an engine in this process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<TargetSection>,
}

/// Oracle runs for one culprit among 64 changes if a run is a verdict, with some to spare.
const BUDGET: usize = 20;
/// As [`BUDGET`], if runs are draws: each question is asked several times.
const BUDGET_OF_DRAWS: usize = 200;

impl BisectSection {
    /// Oracle runs allowed: those that the file says, or 20, or 200 if the oracle's answers are draws.
    pub fn budget(&self) -> usize {
        self.budget_runs.unwrap_or(match self.oracle.noise() {
            NoiseKind::Exact => BUDGET,
            NoiseKind::Counted => BUDGET_OF_DRAWS,
        })
    }
}

impl Config {
    /// `message` about the field at `field`, such as `assignments.live[0].use`, with its position in the file or the
    /// override that set it: for what only a reader of the values can know.
    pub fn error_at(&self, field: &str, message: impl Into<String>) -> ConfigError {
        self.origin.error_at(field, message.into())
    }

    /// Refuses names of assignments that do not exist.
    pub(crate) fn check_references(&self) -> Result<(), Fault> {
        self.assignments.check()?;
        if self.disaggregation.role != Role::Single && self.engine.topology != Topology::Paired {
            return Err(Fault {
                path: FieldPath(["disaggregation", "role"].map(|key| Step::Key(key.to_owned())).to_vec()),
                message: "this role hands KV over, and `engine.topology` is single".to_owned(),
                hint: Some("set `engine.topology: paired`".to_owned()),
                at_key: false,
            });
        }
        self.disaggregation.check_group().map_err(|(field, message, hint)| Fault {
            path: FieldPath(["disaggregation", field].map(|key| Step::Key(key.to_owned())).to_vec()),
            message,
            hint: Some(hint.to_owned()),
            at_key: false,
        })?;
        let Some(bisect) = &self.bisect else { return Ok(()) };
        self.check_sizes(bisect)?;
        self.check_hand_off(bisect)?;
        for (field, name) in [("good", &bisect.good), ("bad", &bisect.bad)] {
            if !self.assignments.contains(name) {
                let known: Vec<&str> = self.assignments.iter().map(|(known, _)| known).collect();
                return Err(Fault {
                    path: FieldPath(vec![Step::Key("bisect".to_owned()), Step::Key(field.to_owned())]),
                    message: format!("unknown assignment `{name}`"),
                    hint: Some(names::hint(name, &known)),
                    at_key: false,
                });
            }
        }
        Ok(())
    }

    /// Refuses questions about hand-offs to an engine that hands nothing over.
    fn check_hand_off(&self, bisect: &BisectSection) -> Result<(), Fault> {
        if let Some(target) = &bisect.target {
            let keys =
                |field: &str| ["bisect", "target", field].map(|key| Step::Key(key.to_owned())).to_vec();
            if let Some((field, message, hint)) = target.fault() {
                let path = FieldPath(keys(field));
                return Err(Fault { path, message, hint: Some(hint.to_owned()), at_key: false });
            }
            if bisect.single_to_paired && target.single.is_none() {
                let message = "missing field `single`, the worker of the good end".to_owned();
                let hint = Some("name a worker of role single beside the pair".to_owned());
                return Err(Fault { path: FieldPath(keys("single")), message, hint, at_key: false });
            }
            return Ok(());
        }
        if self.engine.topology == Topology::Paired {
            return Ok(());
        }
        let fault = |keys: &[&str], what: &str| {
            Err(Fault {
                path: FieldPath(keys.iter().map(|key| Step::Key((*key).to_owned())).collect()),
                message: format!("{what}, and `engine.topology` is single"),
                hint: Some("set `engine.topology: paired`".to_owned()),
                at_key: false,
            })
        };
        if bisect.single_to_paired {
            return fault(&["bisect", "single_to_paired"], "the bad end hands KV over");
        }
        match bisect.oracle.kind {
            OracleKind::Audit(_) => fault(&["bisect", "oracle", "kind"], "an audit needs a hand-off"),
            _ => Ok(()),
        }
    }

    /// Refuses an oracle whose prompts the engine cannot hold.
    fn check_sizes(&self, bisect: &BisectSection) -> Result<(), Fault> {
        /// Needle positions per length, at most.
        const DEPTHS: usize = 10_000;
        let context = self.engine.max_context;
        let (field, found, most) = match &bisect.oracle.kind {
            OracleKind::Needle(needle) if needle.depths > DEPTHS => ("depths", needle.depths, DEPTHS),
            OracleKind::Needle(needle) => {
                ("lengths", needle.lengths.iter().copied().max().unwrap_or(0), context)
            }
            OracleKind::Perplexity(text) => {
                ("lengths", text.lengths.iter().copied().max().unwrap_or(0), context)
            }
            OracleKind::Kl(kl) => ("tokens", kl.tokens, context),
            OracleKind::Repeat(repeat) => ("tokens", repeat.tokens, context),
            OracleKind::Audit(audit) => {
                ("lengths", audit.lengths.iter().copied().max().unwrap_or(0), context)
            }
            OracleKind::Exact(_) | OracleKind::Command(_) => return Ok(()),
        };
        if found <= most {
            return Ok(());
        }
        let hint = (field != "depths")
            .then(|| format!("`engine.max_context` is {context}; raise it or ask for less"));
        Err(Fault {
            path: FieldPath(["bisect", "oracle", field].map(|key| Step::Key(key.to_owned())).to_vec()),
            message: format!("expected at most {most}, found {found}"),
            hint,
            at_key: false,
        })
    }

    /// Makes every path absolute; `base` gives the directory that a field's relative path stands in.
    pub(crate) fn resolve_paths<'a>(&mut self, base: impl Fn(&str) -> &'a Path) {
        let mut join = |field: &str, path: &mut PathBuf| *path = clean(&base(field).join(&*path));
        join("model.path", &mut self.model.path);
        if let Some(admin) = &mut self.server.admin {
            join("server.admin", admin);
        }
        if let Some(audit) = &mut self.server.audit {
            join("server.audit", audit);
        }
        for (name, file) in self.server.admin_tcp.iter_mut().flat_map(|tcp| &mut tcp.tokens) {
            join(&format!("server.admin_tcp.tokens.{}", quoted(name)), file);
        }
        self.plugins.resolve_paths(&mut join);
        let bisect = self.bisect.as_mut();
        if let Some(BisectSection { oracle: Oracle { kind: OracleKind::Kl(kl), .. }, .. }) = bisect
            && let Some(file) = &mut kl.baseline
        {
            join("bisect.oracle.baseline", file);
        }
        if let Some(target) = self.bisect.as_mut().and_then(|bisect| bisect.target.as_mut()) {
            target.resolve_paths(&mut join);
        }
        for (index, file) in self.needle.haystack.iter_mut().enumerate() {
            join(&format!("needle.haystack[{index}]"), file);
        }
    }
}

/// `path` without `.` parts, and without `dir/..` pairs as long as `dir` is no symbolic link.
fn clean(path: &Path) -> PathBuf {
    let mut result = PathBuf::new();
    for part in path.components() {
        match part {
            std::path::Component::CurDir => {}
            std::path::Component::ParentDir if result.is_dir() && !result.is_symlink() => {
                result.pop();
            }
            other => result.push(other),
        }
    }
    result
}

/// As near as a pattern comes to what [`address`] accepts.
pub(crate) const ADDRESS_PATTERN: &str = "^([0-9.]+|\\[[0-9A-Fa-f:.%]+\\]):[0-9]{1,5}$";

/// An address and a port.
pub(crate) fn address<'de, D: Deserializer<'de>>(deserializer: D) -> Result<SocketAddr, D::Error> {
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(|_| {
        D::Error::custom(format_args!(
            "expected an IP address and a port, such as 127.0.0.1:8000, found `{text}`"
        ))
    })
}

pub(crate) fn positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
    match usize::deserialize(deserializer)? {
        0 => Err(D::Error::custom("expected a number of at least 1, found 0")),
        value => Ok(value),
    }
}

pub(crate) fn some_positive<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<usize>, D::Error> {
    match Option::<usize>::deserialize(deserializer)? {
        Some(0) => Err(D::Error::custom("expected null or a number of at least 1, found 0")),
        value => Ok(value),
    }
}

pub(crate) fn lengths<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let lengths = Vec::<usize>::deserialize(deserializer)?;
    if lengths.is_empty() || lengths.contains(&0) {
        return Err(D::Error::custom("expected a list of at least one length, each at least 1"));
    }
    Ok(lengths)
}

/// A finite number above 0.
pub(crate) fn positive_number<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    let value = f64::deserialize(deserializer)?;
    if !value.is_finite() || value <= 0.0 {
        return Err(D::Error::custom(format_args!("expected a finite number above 0, found {value}")));
    }
    Ok(value)
}

/// A time in seconds, of a week at most.
pub(crate) fn seconds<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    const WEEK: f64 = 7.0 * 86_400.0;
    let value = positive_number(deserializer)?;
    if value > WEEK {
        return Err(D::Error::custom(format_args!("expected at most {WEEK} seconds, found {value}")));
    }
    Ok(value)
}

pub(crate) fn some_positive_number<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        Some(value) if !value.is_finite() || value <= 0.0 => {
            Err(D::Error::custom(format_args!("expected null or a finite number above 0, found {value}")))
        }
        value => Ok(value),
    }
}

/// A share of a whole, 0 to 1.
pub(crate) fn some_share<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
    match Option::<f64>::deserialize(deserializer)? {
        Some(value) if !(0.0..=1.0).contains(&value) => {
            Err(D::Error::custom(format_args!("expected null or a number from 0 to 1, found {value}")))
        }
        value => Ok(value),
    }
}

/// A list that is not empty.
pub(crate) fn some_items<'de, T: Deserialize<'de>, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Vec<T>, D::Error> {
    let items = Vec::deserialize(deserializer)?;
    if items.is_empty() {
        return Err(D::Error::custom("expected a list of at least one item, found none"));
    }
    Ok(items)
}

//! Section `plugins`: where plugin files are, and what is asked of them before their code runs.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::schema::{positive, seconds};

/// Section `plugins`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping with the keys dirs, policy, keys, probe, state_dir"
)]
pub struct PluginsSection {
    /// Directories searched in this order; empty means the directory of the executable.
    pub dirs: Vec<PathBuf>,
    /// What a plugin file must bring along.
    pub policy: PluginPolicy,
    /// Public keys whose signatures count, as `hotseam plugin sign --new-key` writes them.
    pub keys: Vec<PathBuf>,
    /// How plugins are tried in a child process before their code runs in the server.
    pub probe: ProbeSection,
    /// Directory of what is remembered of plugins: verdicts of the probe, hashes in quarantine. It must be writable by
    /// this user alone. `null` takes `hotseam` in `$XDG_STATE_HOME` or `~/.local/state`.
    pub state_dir: Option<PathBuf>,
}

/// What a plugin file must bring along. Each policy asks for what the one before asks for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum PluginPolicy {
    /// A place in a plugin directory, an owner and a mode that nobody else can change it. A sidecar that is there must
    /// hold.
    #[default]
    Open,
    /// A sidecar with its hash (`hotseam plugin sign` writes it).
    Manifest,
    /// A signature of the sidecar by one of `keys`.
    Signed,
}

/// Section `plugins.probe`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(
    default,
    deny_unknown_fields,
    expecting = "a mapping with the keys enabled, timeout_seconds, memory_mb"
)]
pub struct ProbeSection {
    /// Whether plugins are probed. Without it a plugin that crashes while it is loaded takes the server along.
    pub enabled: bool,
    /// Time for one plugin.
    #[serde(deserialize_with = "seconds")]
    #[schemars(extend("exclusiveMinimum" = 0, "maximum" = 604_800))]
    pub timeout_seconds: f64,
    /// Address space of the child, in MiB; a plugin that needs CUDA is not held to it, as drivers reserve it without end.
    #[serde(deserialize_with = "positive")]
    #[schemars(range(min = 1))]
    pub memory_mb: usize,
}

impl Default for ProbeSection {
    fn default() -> Self {
        Self { enabled: true, timeout_seconds: 60.0, memory_mb: 4096 }
    }
}

impl PluginsSection {
    /// Makes every path absolute.
    pub(crate) fn resolve_paths(&mut self, join: &mut impl FnMut(&str, &mut PathBuf)) {
        for (list, files) in [("dirs", &mut self.dirs), ("keys", &mut self.keys)] {
            for (index, path) in files.iter_mut().enumerate() {
                join(&format!("plugins.{list}[{index}]"), path);
            }
        }
        if let Some(dir) = &mut self.state_dir {
            join("plugins.state_dir", dir);
        }
    }

    /// The directory of what is remembered of plugins: the one that the file names, or this user's.
    pub fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(user_state_dir)
    }
}

/// `hotseam` in this user's directory of state (<https://specifications.freedesktop.org/basedir-spec>); `None` if neither
/// `XDG_STATE_HOME` nor `HOME` is an absolute path.
pub fn user_state_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base =
        absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(Path::new(".local/state"))))?;
    Some(base.join("hotseam"))
}

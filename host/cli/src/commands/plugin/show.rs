//! `hotseam plugin list` and `inspect`.

use std::fmt::Write as _;

use hotseam_loader::probe::Verdict;
use hotseam_loader::{Description, LoadError, Loader, Mirror, Quarantined, Sidecars};
use serde::Serialize;
use serde_json::Value;

use super::files;
use crate::args::{Format, PluginFiles};
use crate::failure::Failure;
use crate::terminal;

/// One plugin file, and what is known of it.
#[derive(Serialize)]
struct Shown {
    name: String,
    state: State,
    /// Absent if the plugin was refused.
    #[serde(flatten)]
    known: Option<Known>,
    error: Option<Refusal>,
}

#[derive(Serialize)]
struct Known {
    path: String,
    size: u64,
    sha256: String,
    #[serde(flatten)]
    mirror: Mirror,
    sidecar: bool,
    /// Id of the trusted key that signed the sidecar.
    signer: Option<String>,
    verdict: Option<Verdict>,
}

#[derive(Serialize)]
struct Refusal {
    code: u16,
    message: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Usable,
    Refused,
    Quarantined,
}

#[derive(Serialize)]
struct Listing {
    plugins: Vec<Shown>,
    quarantine: Vec<InQuarantine>,
}

#[derive(Serialize)]
struct InQuarantine {
    #[serde(flatten)]
    entry: Quarantined,
    file: Option<String>,
}

/// Lists the plugins that can be found.
pub(super) fn list(files: &PluginFiles, format: Format) -> Result<u8, Failure> {
    let loader = files::loader(files)?;
    let plugins: Vec<Shown> = loader.names().into_iter().map(|name| look(&loader, name)).collect();
    let quarantine = loader
        .quarantined()
        .into_iter()
        .map(|entry| InQuarantine { file: entry.file.as_ref().map(|f| f.display().to_string()), entry })
        .collect();
    let listing = Listing { plugins, quarantine };
    match format {
        Format::Json => terminal::json(&listing)?,
        Format::Text => terminal::data(&listing.text())?,
    }
    if listing.plugins.is_empty() {
        terminal::talk("no plugins found; name their directory with --dir");
    }
    Ok(0)
}

fn look(loader: &Loader, name: String) -> Shown {
    match loader.describe(&name, Sidecars::Check) {
        Ok(found) => Shown { name, state: State::Usable, known: Some(found.into()), error: None },
        Err(error) => {
            let quarantined = matches!(error, LoadError::Crashed { .. } | LoadError::Quarantined { .. });
            Shown {
                name,
                state: if quarantined { State::Quarantined } else { State::Refused },
                known: None,
                error: Some(Refusal { code: error.code(), message: error.to_string() }),
            }
        }
    }
}

impl From<Description> for Known {
    fn from(found: Description) -> Self {
        Self {
            path: found.path.display().to_string(),
            size: found.size,
            sha256: found.sha256,
            mirror: found.mirror,
            sidecar: found.sidecar,
            signer: found.signer,
            verdict: found.verdict,
        }
    }
}

impl Listing {
    fn text(&self) -> String {
        let width = self.plugins.iter().map(|plugin| plugin.name.len()).max().unwrap_or(0);
        let mut text = String::new();
        for plugin in &self.plugins {
            let _ = match (&plugin.known, &plugin.error) {
                (Some(known), _) => writeln!(
                    text,
                    "{:<width$}  {}  {}",
                    plugin.name,
                    &known.sha256[..12],
                    known.mirror.manifest.description
                ),
                (None, error) => {
                    let message = error.as_ref().map(|e| e.message.as_str()).unwrap_or_default();
                    writeln!(text, "{:<width$}  refused       {message}", plugin.name)
                }
            };
        }
        for InQuarantine { entry, file } in &self.quarantine {
            let _ = writeln!(
                text,
                "quarantine    {}  {} {}\n              lift it: {}",
                &entry.sha256.get(..12).unwrap_or(&entry.sha256),
                entry.name,
                entry.reason,
                file.as_ref().map_or_else(|| "start again".to_owned(), |file| format!("rm {file}"))
            );
        }
        text
    }
}

/// Shows one plugin.
pub(super) fn inspect(name: &str, files: &PluginFiles, format: Format) -> Result<u8, Failure> {
    let loader = files::loader(files)?;
    let found = loader.describe(name, Sidecars::Check).map_err(Failure::usage)?;
    let known = Known::from(found);
    match format {
        Format::Json => {
            let name = known.mirror.manifest.name.clone();
            terminal::json(&Shown { name, state: State::Usable, known: Some(known), error: None })?;
        }
        Format::Text => terminal::data(&known.text())?,
    }
    Ok(0)
}

impl Known {
    fn text(&self) -> String {
        let (mirror, manifest) = (&self.mirror, &self.mirror.manifest);
        let mut text = format!("{} {}\n  {}\n", manifest.name, manifest.version, manifest.description);
        let mut line = |label: &str, value: String| {
            let _ = writeln!(text, "  {label:<9} {value}");
        };
        line("file", self.path.clone());
        line("sha256", self.sha256.clone());
        line(
            "kind",
            format!("{}, contract {}, host services {}", mirror.kind, mirror.contract, mirror.host_services),
        );
        line(
            "sidecar",
            match (self.sidecar, &self.signer) {
                (false, _) => "none".to_owned(),
                (true, None) => "fits, not signed by a trusted key".to_owned(),
                (true, Some(key)) => format!("fits, signed by key {key}"),
            },
        );
        line("probe", self.verdict.as_ref().map_or_else(|| "none".to_owned(), verdict));
        line("device", manifest.device.name().to_owned());
        if let Some(base) = &manifest.base {
            line("base", base.clone());
        }
        if !manifest.requires.cpu.is_empty() {
            line("cpu", manifest.requires.cpu.join(", "));
        }
        if !manifest.requires.libs.is_empty() {
            line("libraries", manifest.requires.libs.join(", "));
        }
        if let Some(cuda) = &manifest.requires.cuda {
            line("cuda", cuda.to_string());
        }
        for (name, option) in &manifest.options {
            let values: Vec<String> = option.values.iter().map(plain).collect();
            let kind = if values.is_empty() { option.kind.name().to_owned() } else { values.join(" | ") };
            let default = plain(&option.default);
            line("option", format!("{name}: {kind}, default {default}\n            {}", option.help));
        }
        text
    }
}

fn verdict(verdict: &Verdict) -> String {
    let said = match (&verdict.create_error, &verdict.conformance) {
        (Some(error), _) => format!("no instance with the default options: {error}"),
        (None, None) => "an instance was made".to_owned(),
        (None, Some(found)) if found.failed == 0 => {
            format!("{} quick cases of conformance passed", found.cases)
        }
        (None, Some(found)) => format!(
            "{} of {} quick cases of conformance failed: {}",
            found.failed,
            found.cases,
            found.first.as_deref().unwrap_or_default()
        ),
    };
    format!("survived in {} ms; {said}", verdict.milliseconds)
}

fn plain(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

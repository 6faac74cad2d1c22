//! A plan in a file: the options of `hotseam checkpoint plan` as keys of a YAML map.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use serde_yaml::{Mapping, Value};

use crate::args::PlanArgs;
use crate::failure::Failure;

/// The key that names the checkpoint, from the directory of the file on.
const CHECKPOINT: &str = "checkpoint";

/// The arguments in the plan file that is given; `None` where something else is given.
pub(super) fn read(given: &PlanArgs) -> Result<Option<PlanArgs>, Failure> {
    let path = given.path.as_path();
    if !path.extension().is_some_and(|name| name == "yaml" || name == "yml") {
        return Ok(None);
    }
    let mut plain = PlanArgs::parse([path.into()]).map_err(Failure::usage)?;
    plain.format = given.format;
    if plain != *given {
        let error = anyhow!("{}: a plan file has all options in it; put the others there", path.display());
        return Err(Failure::usage(error));
    }
    let mut planned = parse(path).map_err(Failure::usage)?;
    planned.format = given.format;
    Ok(Some(planned))
}

fn parse(path: &Path) -> anyhow::Result<PlanArgs> {
    let named = || path.display().to_string();
    let text = std::fs::read_to_string(path).with_context(named)?;
    let map: Mapping = serde_yaml::from_str(&text).with_context(named)?;
    let words = words(path, &map).with_context(named)?;
    // The first line of clap's text says what is wrong; the rest is about a command line.
    PlanArgs::parse(words).map_err(|error| {
        let text = error.to_string();
        anyhow!(
            "{}: {}",
            path.display(),
            text.lines().next().unwrap_or_default().trim_start_matches("error: ")
        )
    })
}

fn words(path: &Path, map: &Mapping) -> anyhow::Result<Vec<OsString>> {
    let mut words = Vec::new();
    let mut checkpoint = None;
    for (key, value) in map {
        let key = key.as_str().ok_or_else(|| anyhow!("expected names of options as keys, found {key:?}"))?;
        let value = match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            other => return Err(anyhow!("{key}: expected a text or a number, found {other:?}")),
        };
        if key == CHECKPOINT {
            let near = path.parent().unwrap_or(Path::new(""));
            checkpoint = Some(near.join(PathBuf::from(value)));
        } else {
            words.extend([format!("--{}", key.replace('_', "-")).into(), value.into()]);
        }
    }
    let checkpoint =
        checkpoint.ok_or_else(|| anyhow!("`{CHECKPOINT}` is missing: a directory or a config.json"))?;
    words.push(checkpoint.into());
    Ok(words)
}

//! What a search is made of: kept in its log, so that it can be made again.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use hotseam_config::{BisectSection, Config};
use hotseam_slots::Rule;
use serde::{Deserialize, Serialize};

use crate::failure::Failure;
use crate::host;

/// Bytes of a weight file that are hashed at each end; all of a large checkpoint would take minutes.
const ENDS_OF_WEIGHTS: u64 = 64 * 1024;

/// How a search was called.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Invocation {
    /// The configuration file, absolute.
    config: PathBuf,
    /// Directory that paths in `--set` are relative to.
    directory: PathBuf,
    set: Vec<String>,
    plant: Vec<String>,
}

/// A configuration with both ends resolved.
pub(super) struct Ends {
    pub(super) config: Config,
    pub(super) section: BisectSection,
    pub(super) good: Vec<Rule>,
    pub(super) bad: Vec<Rule>,
}

impl Invocation {
    pub(super) fn new(config: &Path, set: &[String], plant: &[String]) -> anyhow::Result<Self> {
        let absolute =
            std::path::absolute(config).with_context(|| format!("cannot find {}", config.display()))?;
        Ok(Self {
            config: absolute,
            directory: std::env::current_dir().context("cannot find the current directory")?,
            set: set.to_vec(),
            plant: plant.to_vec(),
        })
    }

    /// The configuration file.
    pub(super) fn config(&self) -> &Path {
        &self.config
    }

    /// Reads the configuration. Paths of `--set` are taken from where the search was first called.
    pub(super) fn load(&self) -> Result<Ends, Failure> {
        if !self.set.is_empty() && std::env::current_dir().ok().as_ref() != Some(&self.directory) {
            std::env::set_current_dir(&self.directory)
                .with_context(|| format!("the search was called in {}", self.directory.display()))
                .map_err(Failure::usage)?;
        }
        let config = host::load_config(&self.config, &self.set)?;
        let section = config.bisect.clone().ok_or_else(|| {
            let text = "has no `bisect` section: add one with good, bad and oracle";
            Failure::usage(anyhow!("{} {text}", self.config.display()))
        })?;
        let good = host::named(&config, &section.good)?;
        let bad = plant(host::named(&config, &section.bad)?, &self.plant).map_err(Failure::usage)?;
        Ok(Ends { config, section, good, bad })
    }

    /// The command line that makes the search again.
    pub(super) fn command(&self) -> String {
        let here = std::env::current_dir().ok();
        let config = here.and_then(|here| self.config.strip_prefix(here).ok()).unwrap_or(&self.config);
        let mut words = vec!["hotseam bisect run".to_owned(), quote(&config.display().to_string())];
        words.extend(self.set.iter().map(|set| format!("--set {}", quote(set))));
        words.extend(self.plant.iter().map(|plant| format!("--plant {}", quote(plant))));
        words.join(" ")
    }
}

/// A word as a shell takes it.
fn quote(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// What answers depend on, by name.
pub(super) fn facts(ends: &Ends, plugins: &[(String, String)]) -> anyhow::Result<BTreeMap<String, String>> {
    let Ends { config, section, good, bad } = ends;
    let rules = |rules: &[Rule]| {
        let lines: Vec<String> =
            rules.iter().map(serde_json::to_string).collect::<Result<_, _>>().unwrap_or_default();
        lines.join(" ")
    };
    let mut facts = BTreeMap::from([
        ("good end".to_owned(), rules(good)),
        ("bad end".to_owned(), rules(bad)),
        ("oracle".to_owned(), serde_json::to_string(&section.oracle)?),
        ("engine".to_owned(), serde_json::to_string(&config.engine)?),
        ("needle seed".to_owned(), config.needle.seed.to_string()),
    ]);
    // Running servers have their checkpoint on their own machine.
    if section.target.is_none() {
        facts.insert("model".to_owned(), model(&config.model.path)?);
    }
    for (index, text) in config.needle.haystack.iter().enumerate() {
        let bytes = std::fs::read(text).with_context(|| format!("cannot read {}", text.display()))?;
        facts.insert(format!("haystack {index}"), sha256(&[&bytes]));
    }
    for (name, hash) in plugins {
        facts.insert(format!("plugin {name}"), hash.chars().take(16).collect());
    }
    Ok(facts)
}

/// Name and hash of a checkpoint: its configuration, its tokenizer, and of each weight file the size and both ends.
fn model(dir: &Path) -> anyhow::Result<String> {
    let cannot = || format!("cannot read the checkpoint {}", dir.display());
    let mut names: Vec<PathBuf> = std::fs::read_dir(dir)
        .with_context(cannot)?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter(|path| {
            path.is_file() && path.extension().is_some_and(|end| end == "json" || end == "safetensors")
        })
        .collect();
    names.sort();
    let mut parts: Vec<Vec<u8>> = Vec::new();
    for path in names {
        let mut file = File::open(&path).with_context(cannot)?;
        let size = file.metadata().with_context(cannot)?.len();
        parts.push(path.file_name().unwrap_or_default().to_string_lossy().into_owned().into_bytes());
        parts.push(size.to_le_bytes().to_vec());
        let whole = path.extension().is_some_and(|end| end == "json") || size <= 2 * ENDS_OF_WEIGHTS;
        let mut bytes = Vec::new();
        if whole {
            file.read_to_end(&mut bytes).with_context(cannot)?;
        } else {
            (&mut file).take(ENDS_OF_WEIGHTS).read_to_end(&mut bytes).with_context(cannot)?;
            file.seek(SeekFrom::Start(size - ENDS_OF_WEIGHTS)).with_context(cannot)?;
            file.read_to_end(&mut bytes).with_context(cannot)?;
        }
        parts.push(bytes);
    }
    let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
    let name = dir.file_name().unwrap_or_default().to_string_lossy();
    Ok(format!("{name}, {}", sha256(&parts)))
}

/// The first half of the hash, for comparison and for people.
fn sha256(parts: &[&[u8]]) -> String {
    use sha2::Digest as _;
    let mut hash = sha2::Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    let hex: String = hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("sha256 {hex}")
}

/// The bad end with `plants` in place of its rules that use `faulty/` plugins; without plants as it stands.
pub(crate) fn plant(mut rules: Vec<Rule>, plants: &[String]) -> anyhow::Result<Vec<Rule>> {
    if plants.is_empty() {
        return Ok(rules);
    }
    rules.retain(|rule| !rule.variant().is_some_and(|variant| variant.name.starts_with("faulty/")));
    for text in plants.iter().filter(|text| *text != "none") {
        // The selector may hold `=` itself (layers=2-4), the variant's name begins after the last one before `{`.
        let head = text.find('{').unwrap_or(text.len());
        let at = text[..head].rfind('=');
        let (select, variant) = at.map(|at| (&text[..at], &text[at + 1..])).ok_or_else(|| {
            anyhow!("--plant `{text}`: expected SELECTOR=VARIANT, such as moe=faulty/moe{{fault: scale-twice}}, or `none`")
        })?;
        rules.push(host::parse_rule(select, Some(variant)).with_context(|| format!("--plant `{text}`"))?);
    }
    Ok(rules)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(select: &str, variant: &str) -> Rule {
        host::parse_rule(select, Some(variant)).unwrap()
    }

    fn bad() -> Vec<Rule> {
        vec![
            rule("moe", "moe/cpu-fused-scale"),
            rule("indexer@decode", "faulty/indexer{fault: one-page, keys: bf16}"),
        ]
    }

    #[test]
    fn planting_replaces_faulty_rules() {
        assert_eq!(plant(bad(), &[]).unwrap(), bad());
        assert_eq!(plant(bad(), &["none".into()]).unwrap(), bad()[..1]);
        let planted =
            plant(bad(), &["attention@decode:layers=2-4=faulty/attention{fault: half-scale}".into()])
                .unwrap();
        assert_eq!(
            planted,
            [bad()[0].clone(), rule("attention@decode:layers=2-4", "faulty/attention{fault: half-scale}")]
        );
        let path = plant(bad(), &["moe=./x.so".into()]).unwrap();
        assert_eq!(path[1], rule("moe", "./x.so"));
    }

    #[test]
    fn a_bad_plant_says_what_is_expected() {
        for (text, part) in
            [("moe", "expected SELECTOR=VARIANT"), ("mo=faulty/moe", "--plant `mo=faulty/moe`")]
        {
            let error = format!("{:#}", plant(bad(), &[text.to_owned()]).unwrap_err());
            assert!(error.contains(part), "{error}");
        }
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quote("configs/a.yaml"), "configs/a.yaml");
        assert_eq!(quote("moe=faulty/moe{fault: x}"), "'moe=faulty/moe{fault: x}'");
        assert_eq!(quote("it's"), "'it'\\''s'");
    }
}

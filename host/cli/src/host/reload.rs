//! The configuration file of a running server, read again.

use hotseam_config::Config;
use hotseam_server::admin::{Reload, Reloaded};
use serde_json::Value;

use crate::args::ConfigFile;

/// Sections that a server does not read, or that a reload applies.
const NOT_IN_USE: [&str; 3] = ["assignments", "needle", "bisect"];

/// Reads a file again with the changes that the server was started with.
pub(crate) struct ConfigSource {
    pub(crate) file: ConfigFile,
    /// The configuration that the server was started with.
    pub(crate) in_use: Config,
}

impl Reload for ConfigSource {
    fn read(&self) -> Result<Reloaded, String> {
        let config = super::config(&self.file).map_err(|failure| failure.chain())?;
        let names: Vec<String> = config.assignments.iter().map(|(name, _)| name.to_owned()).collect();
        let rules = |name: String| {
            let rules = super::named(&config, &name).map_err(|failure| failure.chain())?;
            Ok((name, rules))
        };
        Ok(Reloaded {
            file: self.file.config.display().to_string(),
            assignments: names.into_iter().map(rules).collect::<Result<_, String>>()?,
            needs_restart: differing(&self.in_use, &config)?,
        })
    }
}

/// Fields that differ, outside the sections that do not matter here.
fn differing(old: &Config, new: &Config) -> Result<Vec<String>, String> {
    let tree = |config| serde_json::to_value(config).map_err(|error| error.to_string());
    let (mut old, mut new) = (tree(old)?, tree(new)?);
    for tree in [&mut old, &mut new] {
        if let Value::Object(sections) = tree {
            sections.retain(|name, _| !NOT_IN_USE.contains(&name.as_str()));
        }
    }
    let mut found = Vec::new();
    compare("", &old, &new, &mut found);
    Ok(found)
}

fn compare(path: &str, old: &Value, new: &Value, found: &mut Vec<String>) {
    match (old, new) {
        (Value::Object(a), Value::Object(b)) => {
            let added = b.keys().filter(|key| !a.contains_key(*key));
            for key in a.keys().chain(added) {
                let below = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                compare(
                    &below,
                    a.get(key).unwrap_or(&Value::Null),
                    b.get(key).unwrap_or(&Value::Null),
                    found,
                );
            }
        }
        _ if old != new => found.push(path.to_owned()),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_need_a_restart_are_named() {
        let read = |sets: &[&str]| {
            let sets: Vec<String> = sets.iter().map(|set| (*set).to_owned()).collect();
            let text = "{model: {path: /m}, assignments: {live: []}}";
            hotseam_config::parse(text, "x.yaml", std::path::Path::new("/"), &sets).unwrap()
        };
        let differs = |sets: &[&str]| differing(&read(&[]), &read(sets)).unwrap();
        assert_eq!(differs(&[]), [""; 0]);
        assert_eq!(differs(&["assignments.other=[]", "needle.probes=3"]), [""; 0]);
        assert_eq!(
            differs(&["engine.chunk=64", "server.admin=/a.sock", "plugins.dirs=[/p]"]),
            ["server.admin", "engine.chunk", "plugins.dirs"]
        );
    }
}

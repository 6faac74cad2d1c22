//! `hotseam plugin new`: a crate to start a variant from.

mod sdk;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow};
use hotseam_slots::Seam;
use serde::Serialize;

use crate::args::{Format, PluginNewArgs};
use crate::failure::Failure;
use crate::terminal;
use sdk::Sdk;

/// Longest name of a variant; file names have room for the rest.
const LONGEST: usize = 64;

/// What was written, and what it builds.
#[derive(Serialize)]
struct Made {
    variant: String,
    #[serde(rename = "crate")]
    package: String,
    dir: PathBuf,
    files: Vec<PathBuf>,
    /// What `cargo build --release` leaves, below the target directory.
    library: PathBuf,
    /// What the crate links: a directory of Hotseam, or a version.
    sdk: String,
}

/// Writes the crate.
///
/// # Errors
/// Usage for a name, seam, description or directory that cannot be; otherwise what failed while writing.
pub(super) fn run(args: &PluginNewArgs) -> Result<u8, Failure> {
    let seam = seam(&args.seam).map_err(Failure::usage)?;
    let name = checked_name(&args.name).map_err(Failure::usage)?;
    let variant = format!("{seam}/{name}");
    let description = match &args.description {
        Some(text) => checked_description(text).map_err(Failure::usage)?.to_owned(),
        None => format!("{name}, a variant of the {seam} seam"),
    };
    let sdk = Sdk::find(args.sdk.as_deref()).map_err(Failure::usage)?;
    let dir = args.path.clone().unwrap_or_else(|| PathBuf::from(name));
    vacant(&dir).map_err(Failure::usage)?;

    let package = format!("hotseam-{}-{name}", seam.name().replace('_', "-"));
    let library = hotseam_loader::file_name(&variant)
        .ok_or_else(|| Failure::usage(anyhow!("`{variant}` is no name of a variant")))?;
    let dependency = sdk.dependency();
    let fill = |text: &str| {
        [
            ("{{name}}", name),
            ("{{description}}", description.as_str()),
            ("{{crate}}", package.as_str()),
            ("{{library}}", library.as_str()),
            ("{{sdk}}", dependency.as_str()),
        ]
        .iter()
        .fold(text.to_owned(), |text, (key, value)| text.replace(key, value))
    };
    let mut files = vec![
        (PathBuf::from("Cargo.toml"), fill(include_str!("template/crate.toml"))),
        (PathBuf::from(".gitignore"), "/target\n".to_owned()),
        (Path::new("src").join("lib.rs"), fill(source(seam))),
    ];
    // The versions that this SDK is tested with.
    files.extend(sdk.lock().map(|lock| (PathBuf::from("Cargo.lock"), lock)));
    for (file, text) in &files {
        write(&dir.join(file), text)?;
    }
    let made = Made {
        variant,
        package,
        files: files.into_iter().map(|(file, _)| file).collect(),
        library: Path::new("target/release").join(library),
        sdk: sdk.to_string(),
        dir,
    };
    match args.format {
        Format::Json => terminal::json(&made)?,
        Format::Text => terminal::data(&text(&made))?,
    }
    Ok(0)
}

fn text(made: &Made) -> String {
    let dir = made.dir.display();
    let release = made.dir.join("target/release");
    let release = release.display();
    let stock =
        crate::host::plugin_dirs(&[]).ok().and_then(|dirs| dirs.into_iter().next()).unwrap_or_default();
    format!(
        "{variant}: crate {package} in {dir}, built against {sdk}\n\n\
         next:\n  \
         cargo build --release --manifest-path {dir}/Cargo.toml\n  \
         hotseam plugin check {variant} --dir {release} --dir {stock}\n  \
         hotseam swap {seam} {variant}        # a server whose plugins.dirs has {release}\n",
        variant = made.variant,
        package = made.package,
        sdk = made.sdk,
        stock = stock.display(),
        seam = made.variant.split('/').next().unwrap_or_default(),
    )
}

fn seam(name: &str) -> anyhow::Result<Seam> {
    Seam::ALL.iter().copied().find(|seam| seam.name() == name).ok_or_else(|| {
        let known: Vec<&str> = Seam::ALL.iter().map(|seam| seam.name()).collect();
        anyhow!("seam `{name}` is not known, expected one of {}", known.join(", "))
    })
}

/// Cargo and the loader agree on names of lower-case letters, digits and single dashes.
fn checked_name(name: &str) -> anyhow::Result<&str> {
    let words = || name.split('-');
    let plain =
        |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit());
    match name.len() <= LONGEST && words().all(plain) {
        true => Ok(name),
        false => Err(anyhow!(
            "name `{name}`: expected at most {LONGEST} lower-case letters and digits, in words joined by single dashes, \
             such as my-kernel"
        )),
    }
}

/// The text goes into a Rust string, into JSON and into TOML as it stands.
fn checked_description(text: &str) -> anyhow::Result<&str> {
    match text.chars().find(|c| c.is_control() || ['"', '\\', '{', '}'].contains(c)) {
        None if !text.trim().is_empty() => Ok(text),
        None => Err(anyhow!("the description is empty")),
        Some(c) => Err(anyhow!(
            "the description has {c:?}: expected one line without quotes, backslashes and braces"
        )),
    }
}

fn source(seam: Seam) -> &'static str {
    match seam {
        Seam::Attention => include_str!("template/attention.rs"),
        Seam::Indexer => include_str!("template/indexer.rs"),
        Seam::Moe => include_str!("template/moe.rs"),
        Seam::Mhc => include_str!("template/mhc.rs"),
        Seam::KvTransport => include_str!("template/kv_transport.rs"),
    }
}

/// Nothing is ever overwritten.
fn vacant(dir: &Path) -> anyhow::Result<()> {
    match fs::read_dir(dir).map(|mut entries| entries.next().is_none()) {
        Ok(true) => Ok(()),
        Ok(false) => Err(anyhow!("{} is not empty; give another directory with --path", dir.display())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(anyhow!(error).context(format!("{} cannot be used", dir.display()))),
    }
}

/// Writes a new file and the directories above it.
fn write(path: &Path, text: &str) -> anyhow::Result<()> {
    let made = || {
        path.parent().map_or(Ok(()), fs::create_dir_all)?;
        fs::OpenOptions::new().write(true).create_new(true).open(path)?.write_all(text.as_bytes())
    };
    made().with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_cargo_and_the_loader_agree_on() {
        for good in ["a", "my-kernel", "fp8-2", "x86"] {
            assert_eq!(checked_name(good).unwrap(), good);
        }
        let long = "a".repeat(LONGEST + 1);
        for bad in ["", "-a", "a-", "a--b", "A", "a_b", "a/b", "../a", "a b", "a.b", "ü", &long] {
            let message = checked_name(bad).unwrap_err().to_string();
            assert!(message.contains("such as my-kernel"), "{message}");
        }
    }

    #[test]
    fn descriptions_are_literals() {
        assert_eq!(checked_description("Half the keys, 2x").unwrap(), "Half the keys, 2x");
        for bad in ["", " ", "a\"b", "a\\b", "a\nb", "{{name}}"] {
            assert!(checked_description(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn an_unknown_seam_is_answered_with_the_known_ones() {
        let message = seam("atention").unwrap_err().to_string();
        assert!(message.contains("attention, indexer, moe, mhc, kv_transport"), "{message}");
    }

    #[test]
    fn every_placeholder_is_filled() {
        let known = ["name", "description", "crate", "library", "sdk"];
        let texts = Seam::ALL.iter().map(|seam| source(*seam)).chain([include_str!("template/crate.toml")]);
        for text in texts {
            for part in text.split("{{").skip(1) {
                let key = part.split("}}").next().unwrap();
                assert!(known.contains(&key), "{{{{{key}}}}}");
            }
        }
    }
}

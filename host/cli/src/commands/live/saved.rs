//! `hotseam slots save` and `hotseam slots load`.

use std::collections::{BTreeMap, btree_map::Entry};
use std::fs;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, anyhow};
use hotseam_config::cut_quotations;
use hotseam_server::admin::{DefineRequest, SlotsView, VariantRequest, VariantView};
use hotseam_slots::Rule;
use hyper::Method;
use serde::{Deserialize, Serialize};

use super::{body, door, short, swap};
use crate::admin::{Door, ask};
use crate::args::{AdminArgs, Format, LoadArgs};
use crate::failure::Failure;
use crate::terminal;

/// Number of the file's form.
const FORM: u32 = 1;

/// What `slots save` writes.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a mapping with the keys form, model, assignments, hashes")]
struct Saved {
    /// Number of this form.
    form: u32,
    /// Name of the model that was served.
    model: String,
    /// Rules of every assignment.
    assignments: BTreeMap<String, Vec<Rule>>,
    /// Hash of code and options of every variant in the rules.
    hashes: BTreeMap<String, String>,
}

/// Writes the assignments of a server into a file.
pub(super) fn save(file: &Path, args: &AdminArgs) -> Result<u8, Failure> {
    let door = door(args)?;
    let view: SlotsView = ask(&door, Method::GET, "/slots", None)?;
    let assignments: BTreeMap<String, Vec<Rule>> =
        view.assignments.into_iter().map(|(name, assignment)| (name, assignment.rules)).collect();
    let hashes = hashes(&door, assignments.values().flatten())?;
    let saved = Saved { form: FORM, model: view.model, assignments, hashes };
    write(file, &saved)
        .with_context(|| format!("cannot write {}", file.display()))
        .map_err(Failure::usage)?;
    match args.format {
        Format::Json => terminal::json(&saved)?,
        Format::Text => {
            let names: Vec<&str> = saved.assignments.keys().map(String::as_str).collect();
            let variants = saved.hashes.len();
            terminal::data(&format!("{}: {}; {variants} variants", file.display(), names.join(", ")))?;
        }
    }
    Ok(0)
}

/// Whole or not at all.
fn write(file: &Path, saved: &Saved) -> anyhow::Result<()> {
    let text = format!("# Saved by `hotseam slots save`.\n{}", serde_yaml::to_string(saved)?);
    let mut name = file.file_name().ok_or_else(|| anyhow!("it is no file name"))?.to_owned();
    name.push(".part");
    let part = file.with_file_name(name);
    let mut out = fs::File::create(&part)?;
    out.write_all(text.as_bytes())?;
    out.sync_all()?;
    Ok(fs::rename(&part, file)?)
}

/// Hash of every variant in the rules, as the server has it now.
fn hashes<'a>(
    door: &Door,
    rules: impl Iterator<Item = &'a Rule>,
) -> Result<BTreeMap<String, String>, Failure> {
    let mut hashes = BTreeMap::new();
    for variant in rules.filter_map(Rule::variant) {
        if let Entry::Vacant(unasked) = hashes.entry(variant.to_string()) {
            let request = VariantRequest { variant: variant.clone() };
            let view: VariantView = ask(door, Method::POST, "/variant", body(&request)?)?;
            unasked.insert(view.hash);
        }
    }
    Ok(hashes)
}

/// Brings a saved assignment back.
pub(super) fn load(args: &LoadArgs) -> Result<u8, Failure> {
    let (file, name) = (args.file.display(), &args.assignment.name);
    let text = fs::read_to_string(&args.file).with_context(|| format!("cannot read {file}"));
    let saved: Saved = serde_yaml::from_str(&text.map_err(Failure::usage)?)
        .map_err(|error| anyhow!(cut_quotations(&error.to_string())))
        .with_context(|| format!("{file} is not what `slots save` writes"))
        .map_err(Failure::usage)?;
    if saved.form != FORM {
        let text = format!("{file}: form {}, this program reads form {FORM}", saved.form);
        return Err(Failure::usage(anyhow!(text)));
    }
    let Some(rules) = saved.assignments.get(name) else {
        let known: Vec<&str> = saved.assignments.keys().map(String::as_str).collect();
        let text = format!("{file} has no assignment `{name}`; it has: {}", known.join(", "));
        return Err(Failure::usage(anyhow!(text)));
    };
    let door = door(&args.server)?;
    if !args.any_hash {
        same_code(&door, rules, &saved)?;
    }
    let view: SlotsView = ask(&door, Method::GET, "/slots", None)?;
    if view.assignments.contains_key(name) {
        let request = hotseam_server::admin::SwapRequest {
            rules: Some(rules.clone()),
            assignment: Some(name.clone()),
            ..swap::asked(&args.how)
        };
        return swap::send(&door, &request, args.server.format);
    }
    if args.how.dry_run {
        terminal::data(&format!("{name}: would be new"))?;
        return Ok(0);
    }
    let request = DefineRequest { extends: None, rules: rules.clone() };
    let path = format!("/assignments/{name}");
    let defined: hotseam_server::admin::AssignmentView = ask(&door, Method::PUT, &path, body(&request)?)?;
    match args.server.format {
        Format::Json => terminal::json(&defined)?,
        Format::Text => terminal::data(&format!("{name}: new, {}", short(&defined.digest.to_string())))?,
    }
    Ok(0)
}

/// Refuses code that is not what was saved.
fn same_code(door: &Door, rules: &[Rule], saved: &Saved) -> Result<(), Failure> {
    for (variant, found) in hashes(door, rules.iter())? {
        let expected = saved.hashes.get(&variant);
        if expected != Some(&found) {
            let expected = expected.map_or("none", |hash| short(hash));
            return Err(Failure::usage(anyhow!(
                "variant `{variant}` is not what was saved: expected {expected}, found {}. Put the old plugin file \
                 back, or load the new code with --any-hash",
                short(&found)
            )));
        }
    }
    Ok(())
}

//! A file that says that a swap is being tried, so that the next start knows what a crash is to be blamed on.

use crate::rule::Rule;
use crate::swap::{Newcomer, SwapPlan};
use hotseam_loader::Loader;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// A swap that was committed and not yet kept. Written before the commit, removed after probation or a rollback: found
/// at a start, it says that the process died in between.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SwapMarker {
    /// Number of the swap.
    pub id: u64,
    /// The server that made it, as [`SwapMarker::path`] has it.
    pub owner: String,
    /// Process that made it.
    pub pid: u32,
    /// When that process started, in the kernel's count: another process may get its number later.
    pub started: u64,
    /// Milliseconds since 1970.
    pub at_ms: u64,
    /// Who asked for it.
    pub who: String,
    /// The assignment.
    pub assignment: String,
    /// Rules before the swap: what the next start is to use.
    pub rules_before: Vec<Rule>,
    /// Rules after it.
    pub rules_after: Vec<Rule>,
    /// The generations that it brought in: who is to blame.
    pub newcomers: Vec<Newcomer>,
    /// Hashes of plugin files that served before too, and so are not put into quarantine.
    pub spared: Vec<String>,
}

impl SwapMarker {
    /// The marker of a plan that is about to be committed.
    pub fn new(id: u64, owner: &str, who: &str, at_ms: u64, plan: &SwapPlan) -> Self {
        Self {
            id,
            owner: owner.to_owned(),
            pid: std::process::id(),
            started: started(std::process::id()).unwrap_or_default(),
            at_ms,
            who: who.to_owned(),
            assignment: plan.assignment.clone(),
            rules_before: plan.rules_before.clone(),
            rules_after: plan.rules_after.clone(),
            newcomers: plan.newcomers.clone(),
            spared: plan
                .from()
                .generations()
                .iter()
                .map(|g| g.instance.plugin().sha256().to_owned())
                .collect(),
        }
    }

    /// Writes the marker into the state directory, so that it outlasts a crash of the machine too.
    ///
    /// # Errors
    /// If the file cannot be written; the swap must then not be committed.
    pub fn write(&self, state_dir: &Path) -> io::Result<()> {
        fs::create_dir_all(state_dir)?;
        let path = Self::path(state_dir, &self.owner);
        let part = path.with_extension("part");
        let mut file = File::create(&part)?;
        file.write_all(&serde_json::to_vec_pretty(self)?)?;
        file.sync_all()?;
        fs::rename(&part, &path)?;
        File::open(state_dir)?.sync_all()
    }

    /// Removes the marker, if there is one.
    ///
    /// # Errors
    /// If the file is there and stays.
    pub fn clear(state_dir: &Path, owner: &str) -> io::Result<()> {
        match fs::remove_file(Self::path(state_dir, owner)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => File::open(state_dir).and_then(|dir| dir.sync_all()).or(Ok(())),
        }
    }

    /// The marker that a process left which died; `None` as a rule. The file stays until [`SwapMarker::clear`].
    ///
    /// # Errors
    /// If there is a file that cannot be read.
    pub fn find(state_dir: &Path, owner: &str) -> io::Result<Option<Self>> {
        let bytes = match fs::read(Self::path(state_dir, owner)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            bytes => bytes?,
        };
        let marker: Self = serde_json::from_slice(&bytes)?;
        // A server that runs beside this one may be in probation.
        let alive = started(marker.pid) == Some(marker.started);
        Ok((!alive).then_some(marker))
    }

    /// At a start: looks for the marker of a process that died, puts the plugin files that it blames into quarantine, and
    /// removes it. The caller tells people [`SwapMarker::notice`] and starts the assignment with
    /// [`SwapMarker::rules_before`].
    ///
    /// # Errors
    /// If the marker cannot be read or removed, or a file cannot be put into quarantine.
    pub fn recover(loader: &Loader, owner: &str) -> io::Result<Option<Self>> {
        let Some(dir) = loader.state_dir() else { return Ok(None) };
        let Some(marker) = Self::find(dir, owner)? else { return Ok(None) };
        let reason = format!(
            "the process died while swap {} of assignment `{}` was on probation",
            marker.id, marker.assignment
        );
        for blamed in marker.newcomers.iter().filter(|n| !marker.spared.contains(&n.plugin)) {
            loader.quarantine(&blamed.variant.name, &blamed.plugin, &reason).map_err(io::Error::other)?;
        }
        Self::clear(dir, owner)?;
        Ok(Some(marker))
    }

    /// Where the marker of `owner` lies, which is what tells servers apart that share a state directory: the address that
    /// they listen at.
    pub fn path(state_dir: &Path, owner: &str) -> PathBuf {
        let plain = |c: char| if c.is_ascii_alphanumeric() || c == '.' { c } else { '-' };
        state_dir.join(format!("swap-in-progress-{}.json", owner.chars().map(plain).collect::<String>()))
    }

    /// What to tell people at the start after the crash.
    pub fn notice(&self) -> String {
        let name = |n: &Newcomer| {
            let fate =
                if self.spared.contains(&n.plugin) { "its file served before too" } else { "in quarantine" };
            format!("{} ({}, {fate})", n.variant, n.plugin.get(..12).unwrap_or(&n.plugin))
        };
        let culprits: Vec<String> = self.newcomers.iter().map(name).collect();
        format!(
            "the last process (pid {}) died while swap {} of assignment `{}` was on probation. Blamed: {}. The assignment \
             starts with its previous variants; the swap was asked for by {}.",
            self.pid,
            self.id,
            self.assignment,
            culprits.join(", "),
            self.who
        )
    }
}

/// When a process started, in ticks since the machine did; `None` if none of this number runs.
fn started(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("stat")).ok()?;
    // The name of the program, in brackets, may hold anything; after it come the state and, as the 20th, the start.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    let start = fields.nth(18)?.parse().ok()?;
    (!matches!(state, "Z" | "X")).then_some(start)
}

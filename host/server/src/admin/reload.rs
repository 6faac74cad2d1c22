//! `POST /reload` and SIGHUP: the assignments as the configuration file has them now.

use std::collections::BTreeSet;
use std::sync::{Mutex, PoisonError};

use hotseam_slots::{Change, KvPolicy, Rule, SwapPolicy};
use serde_json::json;
use warp::http::StatusCode;

use super::actions::{Admin, api_error, merged};
use super::who::Who;
use super::wire::{AssignmentReload, ReloadAnswer, ReloadRequest, SwapAnswer, Wait};
use crate::error::ApiError;
use crate::openai::LIVE;

/// What a configuration file says now.
#[derive(Debug, Clone, PartialEq)]
pub struct Reloaded {
    /// The file.
    pub file: String,
    /// Rules of every assignment, those that it extends in front.
    pub assignments: Vec<(String, Vec<Rule>)>,
    /// Fields outside the assignments that differ from those in use.
    pub needs_restart: Vec<String>,
}

/// Reads the configuration file again.
pub trait Reload: Send + Sync {
    /// What it says now.
    ///
    /// # Errors
    /// What is wrong with it, with its place.
    fn read(&self) -> Result<Reloaded, String>;
}

/// A file, and which assignments came from it.
pub(super) struct FromFile {
    source: Box<dyn Reload>,
    /// Held while a reload runs, so that two do not mix.
    names: Mutex<BTreeSet<String>>,
}

impl FromFile {
    pub(super) fn new(source: Box<dyn Reload>, names: impl IntoIterator<Item = String>) -> Self {
        Self { source, names: Mutex::new(names.into_iter().collect()) }
    }
}

impl Admin {
    /// Makes the assignments as the file has them: the difference is planned whole, so that a file with a mistake changes
    /// nothing, and then swapped in, one assignment after the other. Assignments that others have defined stay.
    ///
    /// # Errors
    /// What is wrong with the file or one of its assignments; nothing has changed then.
    pub fn reload(&self, who: &Who, request: &ReloadRequest) -> Result<ReloadAnswer, ApiError> {
        let Some(from_file) = &self.from_file else {
            let message = "this server was not started from a configuration file";
            return Err(ApiError::new(StatusCode::CONFLICT, "no_configuration_file", message));
        };
        let mut names = from_file.names.lock().unwrap_or_else(PoisonError::into_inner);
        let fields = json!({ "action": "reload", "dry_run": request.dry_run });
        self.note(who, merged(&fields, json!({ "stage": "asked" })))?;
        let result = self.reloaded(who, request, from_file.source.as_ref(), &mut names);
        let done = result.as_ref().map_or(json!({}), |answer| {
            let outcomes: Vec<_> = answer.assignments.iter().map(AssignmentReload::summary).collect();
            json!({ "file": answer.file, "assignments": outcomes })
        });
        self.note_end(who, fields, &result, done);
        result
    }

    fn reloaded(
        &self,
        who: &Who,
        request: &ReloadRequest,
        source: &dyn Reload,
        names: &mut BTreeSet<String>,
    ) -> Result<ReloadAnswer, ApiError> {
        let dry_run = request.dry_run;
        let Reloaded { file, assignments, needs_restart } = source.read().map_err(|message| {
            ApiError::new(StatusCode::UNPROCESSABLE_ENTITY, "invalid_configuration", message)
        })?;
        let slots = self.engine.slots();
        let mut planned = Vec::new();
        for (name, rules) in &assignments {
            let known = slots.snapshot(name).is_some();
            let change = Change::Replace(rules.clone());
            planned.push(match known {
                true => Some(self.plan(name, &change)?),
                // Built under no name: wrong rules are found now.
                false => slots.diff(rules, rules).map(|_| None).map_err(|error| api_error(&error))?,
            });
        }
        let now: BTreeSet<String> = assignments.iter().map(|(name, _)| name.clone()).collect();
        let gone: Vec<String> = names.difference(&now).filter(|name| *name != LIVE).cloned().collect();
        let mut done = Vec::new();
        for ((name, rules), plan) in assignments.into_iter().zip(planned) {
            done.push(match plan {
                None if dry_run => AssignmentReload::Defined { assignment: name },
                None => match self.define_rules(who, &name, rules) {
                    Ok(_) => AssignmentReload::Defined { assignment: name },
                    Err(error) => failed(name, error),
                },
                Some(plan) if plan.changes.is_empty() => AssignmentReload::Unchanged { assignment: name },
                Some(plan) if dry_run => AssignmentReload::Swapped(plan),
                Some(_) => match self.swap_in(who, &name, Change::Replace(rules), request.kv) {
                    Ok(answer) => AssignmentReload::Swapped(answer),
                    Err(error) => failed(name, error),
                },
            });
        }
        for name in gone.into_iter().filter(|name| slots.snapshot(name).is_some()) {
            let removed = if dry_run { Ok(()) } else { self.remove(who, &name) };
            done.push(match removed {
                Ok(()) => AssignmentReload::Removed { assignment: name },
                Err(error) => failed(name, error),
            });
        }
        if !dry_run {
            *names = now;
        }
        Ok(ReloadAnswer { file, dry_run, assignments: done, needs_restart })
    }

    /// Swaps, after the probation of the swap before it.
    fn swap_in(&self, who: &Who, name: &str, change: Change, kv: KvPolicy) -> Result<SwapAnswer, ApiError> {
        let policy = SwapPolicy { kv, ..SwapPolicy::default() };
        loop {
            if let Some(running) = self.engine.swaps().running() {
                self.engine.swaps().wait(running.id);
            }
            match self.change(who, name, change.clone(), policy, Wait::Commit) {
                // Somebody else was quicker.
                Err(error) if error.code.as_deref() == Some("E-PLUG-401") => {}
                done => return done,
            }
        }
    }
}

fn failed(assignment: String, error: ApiError) -> AssignmentReload {
    let code = error.code.unwrap_or_default();
    AssignmentReload::Refused { assignment, code, message: error.message }
}

//! What the admin endpoints do. All of it may block: plugins are loaded and checked here.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use hotseam_config::valid_assignment_name;
use hotseam_engine::{Engine, KvMap};
use hotseam_slots::{CellId, CellView, Class, Layout, Rule, SlotsError, Snapshot, VariantSpec};
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use warp::http::StatusCode;

use super::audit::Audit;
use super::reload::{FromFile, Reload};
use super::who::Who;
use crate::admin::wire::{
    AssignmentView, CellLine, DefineRequest, SlotsView, StatsView, SwapsView, TraceLine, TraceView,
    VariantRequest, VariantView,
};
use crate::error::ApiError;
use crate::openai::LIVE;

/// Clients that may listen to events at one time.
const LISTENERS: usize = 16;

/// The engine under administration, the name of its model, and what goes with them.
pub struct Admin {
    pub(super) engine: Engine,
    pub(super) model: String,
    pub(super) audit: Option<Arc<Audit>>,
    pub(super) from_file: Option<FromFile>,
    listeners: Arc<Semaphore>,
    stopping: AtomicBool,
}

impl Admin {
    /// Administers `engine`, which serves `model`.
    pub fn new(engine: Engine, model: String) -> Self {
        let listeners = Arc::new(Semaphore::new(LISTENERS));
        Self { engine, model, audit: None, from_file: None, listeners, stopping: AtomicBool::new(false) }
    }

    /// Writes every change into `audit`, and refuses changes that cannot be written down. The engine must be shut down
    /// in the end: the log listens to it until then.
    ///
    /// # Errors
    /// If no thread can be started.
    pub fn with_audit(mut self, audit: Audit) -> std::io::Result<Self> {
        let audit = Arc::new(audit);
        audit.follow(&self.engine)?;
        audit.ask_for_peers(&self.engine);
        self.audit = Some(audit);
        Ok(self)
    }

    /// Reloads assignments from `source`, which the assignments `names` came from.
    pub fn with_reload(mut self, source: Box<dyn Reload>, names: impl IntoIterator<Item = String>) -> Self {
        self.from_file = Some(FromFile::new(source, names));
        self
    }

    /// Ends streams of events.
    pub(super) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    pub(super) fn listeners(&self) -> Arc<Semaphore> {
        self.listeners.clone()
    }

    /// Writes down what `who` is about to do.
    pub(super) fn note(&self, who: &Who, fields: Value) -> Result<(), ApiError> {
        let mut line = json!({ "who": who.to_string() });
        merge(&mut line, fields);
        self.audit.as_ref().map_or(Ok(()), |audit| audit.ask(line))
    }

    /// Writes down how it went.
    pub(super) fn note_end<T>(&self, who: &Who, fields: Value, result: &Result<T, ApiError>, done: Value) {
        let Some(audit) = &self.audit else { return };
        let mut line = json!({ "who": who.to_string() });
        merge(&mut line, fields);
        match result {
            Ok(_) => merge(&mut line, json!({ "stage": "done" })),
            Err(error) => {
                merge(&mut line, json!({ "stage": "refused", "code": error.code, "message": error.message }))
            }
        }
        merge(&mut line, done);
        audit.done(line);
    }

    pub(crate) fn slots(&self) -> SlotsView {
        let slots = self.engine.slots();
        let classes = self.classes();
        let views = slots.names().into_iter().filter_map(|name| {
            // An assignment removed meanwhile has no view.
            let view = view(&*slots.snapshot(&name)?, slots.rules(&name)?, &classes);
            Some((name, view))
        });
        let swaps = self.engine.swaps();
        SlotsView {
            model: self.model.clone(),
            assignments: views.collect(),
            loaded: slots.registry().loaded(),
            available: slots.registry().loader().names(),
            group: swaps.group(),
            running: swaps.running(),
            last: swaps.records().into_iter().rev().find(|record| record.end.is_some()),
        }
    }

    pub(crate) fn swaps(&self) -> SwapsView {
        SwapsView { swaps: self.engine.swaps().records() }
    }

    pub(crate) fn trace(&self, assignment: &str) -> Result<TraceView, ApiError> {
        let snapshot = self.snapshot(assignment)?;
        let classes = self.classes();
        snapshot.count_elsewhere();
        let cells = snapshot
            .cells()
            .map(|cell| TraceLine { line: line(&cell, &classes), calls: cell.calls, rows: cell.rows })
            .collect();
        Ok(TraceView {
            assignment: assignment.to_owned(),
            digest: snapshot.digest(),
            step: self.engine.stats().step,
            cells,
            origins: self.engine.origins(assignment),
        })
    }

    /// What the last audited hand-off brought; `None` if none was audited.
    pub(crate) fn kv_map(&self) -> Option<KvMap> {
        self.engine.kv_map()
    }

    pub(crate) fn stats(&self) -> StatsView {
        let stats = self.engine.stats();
        StatsView {
            model: self.model.clone(),
            step: stats.step,
            running: stats.running,
            waiting: stats.waiting,
            free_pages: stats.free_pages,
            total_pages: stats.total_pages,
            prompt_tokens: stats.prompt_tokens,
            generated_tokens: stats.generated_tokens,
            retired_snapshots: self.engine.slots().reap(),
            guard: self.engine.guard(),
        }
    }

    pub(crate) fn define(
        &self,
        who: &Who,
        name: &str,
        request: DefineRequest,
    ) -> Result<AssignmentView, ApiError> {
        if !valid_assignment_name(name) {
            let message = "an assignment name is 1 to 64 letters, digits, `-`, `_` or `.`";
            return Err(ApiError::new(StatusCode::BAD_REQUEST, "invalid_assignment_name", message));
        }
        let slots = self.engine.slots();
        let mut rules = match &request.extends {
            Some(parent) => slots.rules(parent).ok_or_else(|| self.unknown(parent))?,
            None => Vec::new(),
        };
        rules.extend(request.rules);
        let cells = self.define_rules(who, name, rules.clone())?;
        Ok(view(&cells, rules, &self.classes()))
    }

    pub(super) fn define_rules(
        &self,
        who: &Who,
        name: &str,
        rules: Vec<Rule>,
    ) -> Result<Arc<Snapshot>, ApiError> {
        let fields = json!({ "action": "define", "assignment": name });
        self.note(who, merged(&fields, json!({ "stage": "asked", "rules": rules })))?;
        let defined = self.engine.slots().define(name, rules).map_err(|error| api_error(&error));
        let done = defined.as_ref().map_or(
            json!({}),
            |cells| json!({ "digest": cells.digest().to_string(), "hashes": hashes(cells) }),
        );
        self.note_end(who, fields, &defined, done);
        defined
    }

    /// What a variant is. Its code is loaded for that, so it is written down.
    pub(crate) fn variant(&self, who: &Who, request: VariantRequest) -> Result<VariantView, ApiError> {
        let fields = json!({ "action": "load", "variant": request.variant.to_string() });
        self.note(who, merged(&fields, json!({ "stage": "asked" })))?;
        let registry = self.engine.slots().registry();
        let loaded = registry.generation(&request.variant).map_err(|error| api_error(&error));
        let done =
            loaded.as_ref().map_or(json!({}), |generation| json!({ "hashes": [generation.hash.as_str()] }));
        self.note_end(who, fields, &loaded, done);
        let generation = loaded?;
        let options = generation.instance.options().clone();
        Ok(VariantView {
            variant: VariantSpec::new(generation.spec.name.clone(), options),
            plugin: generation.instance.plugin().sha256().to_owned(),
            hash: generation.hash.clone(),
            layout: Layout::of(&generation).to_string(),
        })
    }

    pub(crate) fn remove(&self, who: &Who, name: &str) -> Result<(), ApiError> {
        let fields = json!({ "action": "remove", "assignment": name });
        self.note(who, merged(&fields, json!({ "stage": "asked" })))?;
        let result = if name == LIVE {
            let message = format!("`{LIVE}` serves requests that name no assignment, so it stays");
            Err(ApiError::new(StatusCode::CONFLICT, "assignment_in_use", message))
        } else if self.engine.slots().remove(name) {
            Ok(())
        } else {
            Err(self.unknown(name))
        };
        self.note_end(who, fields, &result, json!({}));
        result
    }

    fn classes(&self) -> Classes {
        let cells = self.engine.slots().registry().geometry().cells();
        cells.into_iter().filter_map(|cell| Some((cell.id, cell.class?))).collect()
    }

    fn snapshot(&self, name: &str) -> Result<Arc<Snapshot>, ApiError> {
        self.engine.slots().snapshot(name).ok_or_else(|| self.unknown(name))
    }

    pub(super) fn unknown(&self, name: &str) -> ApiError {
        let known = self.engine.slots().names().join(", ");
        let message = format!("there is no assignment `{name}`; there are: {known}");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_assignment", message)
    }
}

/// Class of every cell that has one.
type Classes = HashMap<CellId, Class>;

fn view(snapshot: &Snapshot, rules: Vec<Rule>, classes: &Classes) -> AssignmentView {
    AssignmentView {
        digest: snapshot.digest(),
        prefill_digest: snapshot.prefill_digest(),
        rules,
        cells: snapshot.cells().map(|cell| line(&cell, classes)).collect(),
    }
}

fn line(cell: &CellView<'_>, classes: &Classes) -> CellLine {
    CellLine {
        cell: cell.cell,
        class: classes.get(&cell.cell).copied(),
        selector: cell.cell.to_string(),
        variant: cell.generation.spec.clone(),
        hash: cell.generation.hash.clone(),
        generation: cell.generation.id,
    }
}

/// Hashes of the generations of a table, each once.
fn hashes(snapshot: &Snapshot) -> Vec<String> {
    snapshot.generations().iter().map(|generation| generation.hash.clone()).collect()
}

fn merge(line: &mut Value, fields: Value) {
    if let (Value::Object(line), Value::Object(fields)) = (line, fields) {
        line.extend(fields);
    }
}

pub(super) fn merged(fields: &Value, more: Value) -> Value {
    let mut line = fields.clone();
    merge(&mut line, more);
    line
}

/// A refused change as a response; the `E-PLUG` number decides the status.
pub(super) fn api_error(error: &SlotsError) -> ApiError {
    let word = match error {
        SlotsError::UnknownAssignment { .. } => "unknown_assignment",
        SlotsError::NothingToRollBack { .. } => "nothing_to_roll_back",
        SlotsError::Changed { .. } => "changed_meanwhile",
        _ => "invalid_assignment",
    };
    refused(error.code(), word, error.to_string())
}

/// A refusal by its `E-PLUG` number, or by `word` where it has none.
pub(super) fn refused(number: Option<u16>, word: &str, message: String) -> ApiError {
    let status = match (number, word) {
        (Some(100), _) | (None, "unknown_assignment") => StatusCode::NOT_FOUND,
        (Some(101 | 103), _) => StatusCode::FORBIDDEN,
        (Some(102 | 401 | 402 | 405), _) | (None, "nothing_to_roll_back" | "changed_meanwhile") => {
            StatusCode::CONFLICT
        }
        (Some(106 | 404), _) | (None, "stopped") => StatusCode::SERVICE_UNAVAILABLE,
        (Some(305), _) => StatusCode::INTERNAL_SERVER_ERROR,
        (Some(403), _) => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let code = number.map_or_else(|| word.to_owned(), |number| format!("E-PLUG-{number}"));
    ApiError::new(status, &code, message)
}

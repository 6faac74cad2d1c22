//! What the admin endpoints do. All of it may block: plugins are loaded and checked here.

use std::collections::HashMap;

use hotseam_config::valid_assignment_name;
use hotseam_engine::Engine;
use hotseam_slots::{
    CellChange, CellId, CellView, Class, Layout, LayoutPolicy, Rule, Seam, SlotsError, Snapshot, VariantSpec,
};
use warp::http::StatusCode;

use crate::admin::wire::{
    AssignmentView, CellLine, DefineRequest, RollbackRequest, SlotsView, StatsView, SwapAnswer, SwapRequest,
    TraceLine, TraceView, VariantRequest, VariantView,
};
use crate::error::ApiError;
use crate::openai::LIVE;

/// The engine under administration and the name of its model.
pub(crate) struct Admin {
    pub(crate) engine: Engine,
    pub(crate) model: String,
}

impl Admin {
    pub(crate) fn slots(&self) -> SlotsView {
        let slots = self.engine.slots();
        let classes = self.classes();
        let views = slots.names().into_iter().filter_map(|name| {
            // An assignment removed meanwhile has no view.
            let view = view(&*slots.snapshot(&name)?, slots.rules(&name)?, &classes);
            Some((name, view))
        });
        SlotsView {
            model: self.model.clone(),
            assignments: views.collect(),
            loaded: slots.registry().loaded(),
            available: slots.registry().loader().names(),
        }
    }

    pub(crate) fn swap(&self, request: SwapRequest) -> Result<SwapAnswer, ApiError> {
        let assignment = request.assignment.unwrap_or_else(|| LIVE.to_owned());
        let rule = Rule::new(request.select, request.variant).map_err(bad_rule)?;
        if request.dry_run {
            return self.rehearse(assignment, rule);
        }
        let report = self
            .engine
            .slots()
            .swap(&assignment, rule, LayoutPolicy::Refuse)
            .map_err(|error| api_error(&error))?;
        Ok(self.answer(assignment, report.changes))
    }

    pub(crate) fn rollback(&self, request: RollbackRequest) -> Result<SwapAnswer, ApiError> {
        let assignment = request.assignment.unwrap_or_else(|| LIVE.to_owned());
        let report = self.engine.slots().rollback(&assignment).map_err(|error| api_error(&error))?;
        Ok(self.answer(assignment, report.changes))
    }

    pub(crate) fn trace(&self, assignment: &str) -> Result<TraceView, ApiError> {
        let snapshot = self.snapshot(assignment)?;
        let classes = self.classes();
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

    pub(crate) fn define(&self, name: &str, request: DefineRequest) -> Result<AssignmentView, ApiError> {
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
        let snapshot = slots.define(name, rules.clone()).map_err(|error| api_error(&error))?;
        Ok(view(&snapshot, rules, &self.classes()))
    }

    pub(crate) fn variant(&self, request: VariantRequest) -> Result<VariantView, ApiError> {
        let registry = self.engine.slots().registry();
        let generation = registry.generation(&request.variant).map_err(|error| api_error(&error))?;
        let options = generation.instance.options().clone();
        Ok(VariantView {
            variant: VariantSpec::new(generation.spec.name.clone(), options),
            plugin: generation.instance.plugin().sha256().to_owned(),
            hash: generation.hash.clone(),
            layout: Layout::of(&generation).to_string(),
        })
    }

    pub(crate) fn remove(&self, name: &str) -> Result<(), ApiError> {
        if name == LIVE {
            let message = format!("`{LIVE}` serves requests that name no assignment, so it stays");
            return Err(ApiError::new(StatusCode::CONFLICT, "assignment_in_use", message));
        }
        if self.engine.slots().remove(name) { Ok(()) } else { Err(self.unknown(name)) }
    }

    fn classes(&self) -> Classes {
        let cells = self.engine.slots().registry().geometry().cells();
        cells.into_iter().filter_map(|cell| Some((cell.id, cell.class?))).collect()
    }

    fn snapshot(&self, name: &str) -> Result<std::sync::Arc<Snapshot>, ApiError> {
        self.engine.slots().snapshot(name).ok_or_else(|| self.unknown(name))
    }

    fn unknown(&self, name: &str) -> ApiError {
        let known = self.engine.slots().names().join(", ");
        let message = format!("there is no assignment `{name}`; there are: {known}");
        ApiError::new(StatusCode::NOT_FOUND, "unknown_assignment", message)
    }

    fn answer(&self, assignment: String, changes: Vec<CellChange>) -> SwapAnswer {
        let step = self.engine.stats().step;
        SwapAnswer { assignment, dry_run: false, step, changes, layout_changes: Vec::new() }
    }

    /// What `rule` would change.
    fn rehearse(&self, assignment: String, rule: Rule) -> Result<SwapAnswer, ApiError> {
        let slots = self.engine.slots();
        let before = slots.rules(&assignment).ok_or_else(|| self.unknown(&assignment))?;
        let mut after = before.clone();
        after.push(rule);
        let changes = slots.diff(&before, &after).map_err(|error| api_error(&error))?;
        let mut layout_changes: Vec<CellId> = Vec::new();
        for change in &changes {
            // The other seams leave no entries in the pools.
            if !matches!(change.cell.seam, Seam::Attention | Seam::Indexer) {
                continue;
            }
            let layout =
                |variant| slots.registry().generation(variant).map(|generation| Layout::of(&generation));
            let from = layout(&change.from.variant).map_err(|error| api_error(&error))?;
            let to = layout(&change.to.variant).map_err(|error| api_error(&error))?;
            if from != to {
                layout_changes.push(change.cell);
            }
        }
        Ok(SwapAnswer { dry_run: true, layout_changes, ..self.answer(assignment, changes) })
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

fn bad_rule(message: String) -> ApiError {
    ApiError::new(StatusCode::BAD_REQUEST, "invalid_rule", message)
}

/// A refused change as a response; the `E-PLUG` number decides the status.
fn api_error(error: &SlotsError) -> ApiError {
    let status = match (error.code(), error) {
        (Some(100), _) | (None, SlotsError::UnknownAssignment { .. }) => StatusCode::NOT_FOUND,
        (Some(101), _) => StatusCode::FORBIDDEN,
        (Some(102 | 402), _) | (None, SlotsError::NothingToRollBack { .. }) => StatusCode::CONFLICT,
        _ => StatusCode::UNPROCESSABLE_ENTITY,
    };
    let code = match (error.code(), error) {
        (Some(number), _) => format!("E-PLUG-{number}"),
        (None, SlotsError::UnknownAssignment { .. }) => "unknown_assignment".to_owned(),
        (None, SlotsError::NothingToRollBack { .. }) => "nothing_to_roll_back".to_owned(),
        (None, _) => "invalid_assignment".to_owned(),
    };
    ApiError::new(status, &code, error.to_string())
}

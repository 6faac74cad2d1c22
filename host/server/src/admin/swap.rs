//! Changes of assignments through the engine's swap protocol.

use std::cell::Cell;

use hotseam_engine::SwapError;
use hotseam_slots::{Change, SwapEvent, SwapPlan, SwapPolicy, SwapStage};
use serde_json::json;

use super::actions::{Admin, api_error, merged, refused};
use super::events::until;
use super::who::Who;
use super::wire::{RollbackRequest, SwapAnswer, SwapRequest, Wait};
use crate::error::ApiError;
use crate::openai::LIVE;
use warp::http::StatusCode;

impl Admin {
    pub(crate) fn swap(&self, who: &Who, request: SwapRequest) -> Result<SwapAnswer, ApiError> {
        let change = request
            .change()
            .map_err(|message| ApiError::new(StatusCode::BAD_REQUEST, "invalid_rule", message))?;
        let assignment = request.assignment.as_deref().unwrap_or(LIVE);
        if request.dry_run {
            return self.rehearse(who, assignment, &change);
        }
        self.change(who, assignment, change, request.policy, request.wait)
    }

    /// Takes the last change back: at once if it is still in its probation, as a swap if that is over.
    pub(crate) fn rollback(&self, who: &Who, request: RollbackRequest) -> Result<SwapAnswer, ApiError> {
        let assignment = request.assignment.as_deref().unwrap_or(LIVE);
        if request.dry_run {
            return self.rehearse(who, assignment, &Change::Back);
        }
        let plan = self.engine.swaps().plan(assignment, &Change::Back);
        let committed = self.engine.swaps().running().filter(|running| running.assignment == assignment);
        if let (Ok(plan), Some(running)) = (&plan, committed) {
            self.note(
                who,
                json!({ "action": "rollback", "stage": "asked", "assignment": assignment, "swap": running.id }),
            )?;
            let taken = self.engine.swaps().take_back(assignment, &who.to_string());
            if let Some(record) = taken.and_then(|id| self.engine.swaps().wait(id)) {
                return Ok(self.answer(plan, false, Some(record.id), record.end));
            }
        }
        let (kv, without_absent) = (request.kv, request.without_absent);
        let policy = SwapPolicy { kv, without_absent, ..SwapPolicy::default() };
        self.change(who, assignment, Change::Back, policy, Wait::Commit)
    }

    /// What `change` would change. Its code is loaded for that, so it is written down.
    fn rehearse(&self, who: &Who, assignment: &str, change: &Change) -> Result<SwapAnswer, ApiError> {
        let fields = json!({ "action": "plan", "assignment": assignment, "change": change.to_string() });
        self.note(who, merged(&fields, json!({ "stage": "asked" })))?;
        let plan = self.plan(assignment, change);
        let done = plan.as_ref().map_or(json!({}), |plan| {
            let hashes: Vec<_> = plan.newcomers.iter().map(|newcomer| newcomer.hash.as_str()).collect();
            json!({ "hashes": hashes })
        });
        self.note_end(who, fields, &plan, done);
        plan
    }

    pub(super) fn plan(&self, assignment: &str, change: &Change) -> Result<SwapAnswer, ApiError> {
        let plan = self.engine.swaps().plan(assignment, change).map_err(|error| api_error(&error))?;
        Ok(self.answer(&plan, true, None, None))
    }

    /// Changes an assignment and waits as far as `wait` says.
    pub(super) fn change(
        &self,
        who: &Who,
        assignment: &str,
        change: Change,
        policy: SwapPolicy,
        wait: Wait,
    ) -> Result<SwapAnswer, ApiError> {
        let swaps = self.engine.swaps();
        self.note(
            who,
            json!({
                "action": "swap", "stage": "asked", "assignment": assignment, "change": change.to_string(),
                "policy": policy,
            }),
        )?;
        let committed = Cell::new(None);
        let result = (|| {
            // Planned here first: what is wrong with the request is its answer, and no swap of its own.
            let plan = swaps.plan(assignment, &change).map_err(|error| api_error(&error))?;
            if plan.changes.is_empty() {
                return Ok((plan, None, Some(SwapStage::AlreadyActive)));
            }
            let events = swaps.subscribe();
            let request = hotseam_slots::SwapRequest {
                assignment: assignment.to_owned(),
                change,
                policy,
                who: who.to_string(),
            };
            let id = swaps.begin(request).map_err(|error| match error {
                SwapError::Busy { .. } => refused(error.code(), "busy", error.to_string()),
                SwapError::Stopped => refused(error.code(), "stopped", error.to_string()),
            })?;
            if wait == Wait::Begin {
                return Ok((plan, Some(id), None));
            }
            let enough = |stage: &SwapStage| {
                stage.is_end() || (wait == Wait::Commit && matches!(stage, SwapStage::Committed { .. }))
            };
            let alive = || self.engine.is_running();
            let seen = |event: &SwapEvent| {
                if matches!(event.stage, SwapStage::Committed { .. }) {
                    committed.set(Some(event.step));
                }
                enough(&event.stage)
            };
            let event = until(&events, id, alive, seen).ok_or_else(|| {
                refused(None, "stopped", "the engine stopped before the swap was done".to_owned())
            })?;
            match event.stage {
                SwapStage::Refused { code, message } => Err(refused(code, "swap_refused", message)),
                stage => Ok((plan, Some(id), Some(stage))),
            }
        })();
        // Stages of a swap that has a number are written down as they come.
        if !matches!(&result, Ok((_, Some(_), _))) {
            let fields = json!({ "action": "swap", "assignment": assignment });
            self.note_end(who, fields, &result, json!({}));
        }
        let (plan, id, stage) = result?;
        let answer = self.answer(&plan, false, id, stage);
        Ok(SwapAnswer { step: committed.get().unwrap_or(answer.step), ..answer })
    }

    fn answer(
        &self,
        plan: &SwapPlan,
        dry_run: bool,
        swap: Option<u64>,
        stage: Option<SwapStage>,
    ) -> SwapAnswer {
        SwapAnswer {
            swap,
            assignment: plan.assignment.clone(),
            dry_run,
            step: self.engine.stats().step,
            changes: plan.changes.clone(),
            layouts: plan.layouts.clone(),
            newcomers: plan.newcomers.clone(),
            stage,
        }
    }
}

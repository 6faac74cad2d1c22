//! Cheap evidence about changes, before the oracle is asked: lockstep shadow and repeats.

use hotseam_config::AuditOracle;
use hotseam_encoding::Tokenizer;
use hotseam_engine::Engine;
use hotseam_evidence::compare::{self, Weighed, Workload};
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::kv_map::{self, Audited};
use hotseam_evidence::{EvidenceError, RequestFailure, determinism};
use hotseam_slots::CellId;

use super::launch::Launch;
use crate::judge::Audits as _;
use crate::{Evidence, Handoff, Suspicion};

/// Prefill chunks of the request on which evidence is taken: a fault of the second and later chunks is seen too.
const CHUNKS: usize = 3;
/// Tokens of it that are forced through decode.
pub(super) const DECODE: usize = 8;

/// Tokens of the request on which evidence is taken.
pub(super) fn tokens(engine: &Engine) -> usize {
    let config = engine.config();
    let whole = config.chunk.saturating_mul(CHUNKS) + DECODE;
    // One token more is fed as what the last row is held against.
    whole.min(config.max_context.saturating_sub(DECODE + 1)).max(2 * DECODE)
}

/// Weighs changes, each given by its cells, by a request of `passage` under two defined assignments.
pub(super) fn suspicions(
    engine: &Engine,
    good: &str,
    bad: &str,
    passage: &Passage,
    changes: &[Vec<CellId>],
) -> Result<Vec<Suspicion>, EvidenceError> {
    let workload = Workload::passage(passage);
    let compared = compare::compare(engine, good, bad, &workload, Box::new(|_| {}))?;
    let shadow = compare::suspicions(&compared, changes);
    let cells: Vec<CellId> = changes.iter().flatten().copied().collect();
    let repeated = determinism::repeat(engine, good, bad, &cells, &workload, determinism::REPEATS)?;
    let repeats = repeated.suspicions(changes);
    let named = |step, found: Vec<Option<Weighed>>| {
        let each = found.into_iter().enumerate();
        each.filter_map(move |(change, weighed)| {
            let Weighed { weight, evidence } = weighed?;
            Some(Suspicion { change, weight, evidence, step })
        })
    };
    Ok(named(Evidence::E2, repeats).chain(named(Evidence::E3, shadow)).collect())
}

/// Audits hand-offs of a defined assignment, over prompts that leave no component out. `None` if nothing was handed over.
pub(super) fn handoff(
    launch: &Launch,
    name: &str,
    tokenizer: &Tokenizer,
    haystack: &Haystack,
) -> Result<Option<Handoff>, EvidenceError> {
    let most = launch.sizes().max_context.saturating_sub(DECODE).max(1);
    let lengths: Vec<usize> =
        AuditOracle::default().lengths.iter().map(|length| (*length).min(most)).collect();
    let mut sum = Handoff::default();
    for prompt in kv_map::prompts(tokenizer, haystack, &lengths) {
        match launch.audit(name, &prompt)? {
            Audited::Map(map) => sum.add(&map),
            Audited::Failed(RequestFailure { code, message }) => {
                return Err(EvidenceError::Request { code, message });
            }
            Audited::Nothing => return Ok(None),
        }
    }
    Ok(Some(sum))
}

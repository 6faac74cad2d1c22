//! `hotseam swap` and `hotseam rollback`.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use hotseam_server::admin::{RollbackRequest, SwapAnswer, SwapRequest, Wait};
use hotseam_slots::{CheckDepth, KvPolicy, Probation, SwapEvent, SwapPolicy, SwapStage};
use hyper::Method;

use super::{body, door, plan, stage};
use crate::admin::{Door, ask, follow};
use crate::args::{Check, Format, Kv, RollbackArgs, SwapArgs, SwapHow};
use crate::failure::Failure;
use crate::host;
use crate::terminal;

/// Gives cells to a variant.
pub(crate) fn swap(args: &SwapArgs) -> Result<u8, Failure> {
    let rule = host::parse_rule(&args.selector, args.variant.as_deref()).map_err(Failure::usage)?;
    let request = SwapRequest {
        select: Some(rule.select().clone()),
        variant: rule.variant().cloned(),
        assignment: Some(args.assignment.name.clone()),
        ..asked(&args.how)
    };
    send(&door(&args.server)?, &request, args.server.format)
}

/// The part of a request that says how careful the swap is.
pub(super) fn asked(how: &SwapHow) -> SwapRequest {
    let policy = SwapPolicy {
        kv: kv_policy(how.kv),
        conformance: match how.check {
            Check::Off => CheckDepth::Off,
            Check::Quick => CheckDepth::Quick,
            Check::Full => CheckDepth::Full,
        },
        shadow_steps: how.shadow,
        probation: Probation { steps: how.probation, ..Probation::default() },
        without_absent: how.without_absent,
        ..SwapPolicy::default()
    };
    let wait = match (how.wait, how.no_wait) {
        (true, _) => Wait::End,
        (_, true) => Wait::Begin,
        _ => Wait::Commit,
    };
    SwapRequest { dry_run: how.dry_run, policy, wait, ..SwapRequest::default() }
}

/// What becomes of sequences in flight, as the server knows it.
pub(super) fn kv_policy(kv: Kv) -> KvPolicy {
    match kv {
        Kv::Refuse => KvPolicy::Refuse,
        Kv::Drain => KvPolicy::Drain,
        Kv::Recompute => KvPolicy::Recompute,
    }
}

/// Whether the swap of a plan would be refused, which is told.
pub(super) fn refusable(plan: &SwapAnswer, kv: KvPolicy) -> bool {
    let refused = plan.dry_run && !plan.layouts.is_empty() && kv == KvPolicy::Refuse;
    if refused {
        terminal::talk(&format!(
            "{}: it would be refused (E-PLUG-402): a KV layout changes; choose --kv drain or --kv recompute",
            plan.assignment
        ));
    }
    refused
}

/// Sends a swap, tells its stages on stderr as they come, and prints what came of it.
pub(super) fn send(door: &Door, request: &SwapRequest, format: Format) -> Result<u8, Failure> {
    let sent = body(request)?;
    let ask = || ask::<SwapAnswer>(door, Method::POST, "/swap", sent);
    let quiet = request.dry_run || request.wait == Wait::Begin;
    let answer = if quiet { ask()? } else { telling(door, request.assignment.as_deref(), ask)? };
    print(&answer, format)?;
    let failed =
        refusable(&answer, request.policy.kv) || matches!(answer.stage, Some(SwapStage::RolledBack { .. }));
    Ok(u8::from(failed))
}

/// Longest that stages are waited for once a swap was answered.
const GRACE: Duration = Duration::from_millis(500);
/// Without a stage for so long none is on its way.
const SILENCE: Duration = Duration::from_millis(100);

/// Does `work` while the stages of the assignment's swaps are told on stderr.
pub(super) fn telling<T>(
    door: &Door,
    assignment: Option<&str>,
    work: impl FnOnce() -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (ready, begun) = mpsc::channel();
    let (done, told) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let listener = std::thread::spawn({
        let (door, done, told) = (door.clone(), done.clone(), told.clone());
        let assignment = assignment.map(str::to_owned);
        move || {
            let listened = follow(&door, "/events", |name, data| {
                if name == "state" {
                    // The other side may be gone already.
                    let _ = ready.send(());
                }
                let event = serde_json::from_str::<SwapEvent>(data).ok().filter(|_| name == "swap");
                // Without events the swap goes on all the same.
                let Some(event) =
                    event.filter(|e| assignment.as_ref().is_none_or(|name| *name == e.assignment))
                else {
                    return ControlFlow::Continue(());
                };
                if done.load(Ordering::Relaxed) {
                    return ControlFlow::Break(Ok(()));
                }
                terminal::talk(&stage::event(&event));
                told.fetch_add(1, Ordering::Relaxed);
                ControlFlow::Continue(())
            });
            if let Err(error) = listened {
                tracing::debug!(%error, "no progress can be shown");
            }
        }
    });
    // A server that is not there is `work`'s to tell.
    let _ = begun.recv_timeout(Duration::from_secs(5));
    let result = work();
    // The last stages are on their way, one close behind the other; nobody waits for more than those.
    let (grace, mut last) = (Instant::now(), (told.load(Ordering::Relaxed), Instant::now()));
    while !listener.is_finished() && grace.elapsed() < GRACE && last.1.elapsed() < SILENCE {
        std::thread::sleep(Duration::from_millis(5));
        let now = told.load(Ordering::Relaxed);
        if now != last.0 {
            last = (now, Instant::now());
        }
    }
    done.store(true, Ordering::Relaxed);
    result
}

/// Undoes the last swap.
pub(crate) fn rollback(args: &RollbackArgs) -> Result<u8, Failure> {
    let (name, kv) = (&args.assignment.name, kv_policy(args.kv));
    let request = RollbackRequest {
        assignment: Some(name.clone()),
        dry_run: args.dry_run,
        kv,
        without_absent: args.without_absent,
    };
    let door = door(&args.server)?;
    let sent = body(&request)?;
    let ask = || ask::<SwapAnswer>(&door, Method::POST, "/rollback", sent);
    let answer = if args.dry_run { ask()? } else { telling(&door, Some(name), ask)? };
    print(&answer, args.server.format)?;
    Ok(u8::from(refusable(&answer, kv)))
}

fn print(answer: &SwapAnswer, format: Format) -> Result<(), Failure> {
    match format {
        Format::Json => terminal::json(answer)?,
        Format::Text => terminal::data(&plan::describe(answer))?,
    }
    Ok(())
}

//! Runs cases against a subject.

use crate::batch::Rows;
use crate::bench::Bench;
use crate::buffer::{Buffer, Role};
use crate::compare::Judge;
use crate::device::{Failed, LOOK_CLOSER};
use crate::report::{CaseResult, Coordinate, Report};
use crate::{DeviceMemory, Level, Op, Subject, cases};
use hotseam_abi as abi;
use hotseam_abi::StepCtx;
use hotseam_cuda::CudaError;
use hotseam_sdk::Result;
use std::time::Instant;

/// One call of one op: inputs, outputs, and what is known of the right answer.
pub(crate) trait Case: Clone {
    fn op(&self) -> Op;
    /// Phase, sequences, shapes, and what is special.
    fn title(&self) -> String;
    fn rows(&self) -> &Rows;
    /// Layer number and class of the call.
    fn layer(&self) -> (u32, u32);
    /// Calls the subject's function, which is there.
    fn call(&mut self, subject: &Subject<'_>, ctx: &StepCtx) -> i32;
    /// Fills the outputs with what a variant of these capabilities must give.
    fn truth(&mut self, capabilities: u64) -> Result<()>;
    /// All memory that the call may see.
    fn buffers(&self) -> Vec<&Buffer>;
    /// Those of [`Case::buffers`] that the call may write.
    fn outputs(&mut self) -> Vec<&mut Buffer>;
    /// Writes the addresses that stand in buffers; called whenever buffers have got or lost a place on a device.
    fn readdress(&mut self) {}
    /// Compares outputs; `self` is the case before the call.
    fn judge(&self, want: &Self, got: &Self, judge: &mut Judge);
    /// The row as a batch of its own, where that makes sense.
    fn alone(&self, row: usize) -> Option<Self>;
    /// Whether `alone` holds the bits that this batch has for the row.
    fn same_row(&self, row: usize, alone: &Self) -> bool {
        let pairs = self.buffers().into_iter().zip(alone.buffers());
        pairs.filter(|(b, _)| b.role == Role::Output && b.row_words > 0).all(|(batch, alone)| {
            batch.words()[row * batch.row_words..(row + 1) * batch.row_words]
                == alone.words()[..alone.row_words]
        })
    }
}

/// Runs cases one after the other and keeps the results.
pub(crate) struct Runner<'a> {
    pub(crate) subject: &'a Subject<'a>,
    pub(crate) level: Level,
    report: Report,
    /// Set once the instance panicked; the contract forbids to use it again.
    panicked: bool,
    /// Set once the driver failed: everything on the device fails from then on.
    broken: bool,
    /// Set if cases are timed and not judged.
    bench: Option<Bench<'a>>,
}

/// Checks every op that the subject serves, in every phase it serves.
pub fn check(subject: &Subject<'_>, level: Level) -> Report {
    let report = Report { variant: subject.variant.to_owned(), cases: Vec::new(), batch_invariant: true };
    let mut runner = Runner { subject, level, report, panicked: false, broken: false, bench: None };
    match subject.device.map_or(Ok(()), DeviceMemory::make_current) {
        Ok(()) => cases::run_all(&mut runner),
        Err(error) => {
            let served = Op::ALL.into_iter().filter(|op| op.served_by(subject));
            served.for_each(|op| runner.fail(op, "device", error.to_string()));
        }
    }
    runner.report
}

/// Runs every case through `bench`, which is given back.
pub(crate) fn time<'a>(subject: &'a Subject<'a>, bench: Bench<'a>) -> Option<Bench<'a>> {
    let report = Report { variant: String::new(), cases: Vec::new(), batch_invariant: true };
    let mut runner =
        Runner { subject, level: Level::Full, report, panicked: false, broken: false, bench: Some(bench) };
    cases::run_all(&mut runner);
    runner.bench
}

impl Runner<'_> {
    /// Adds the result of a case that was run elsewhere.
    pub(crate) fn push(&mut self, result: CaseResult) {
        self.report.cases.push(result);
    }

    /// Adds a failure of an op as a whole.
    pub(crate) fn fail(&mut self, op: Op, case: &str, message: String) {
        let mut judge = Judge::new(op, self.subject.info.layout);
        judge.fail(message);
        self.push(judge.finish(case.to_owned()));
    }

    /// Equal calls of a case. On a device an order of sums that is not fixed shows in few of many.
    fn equal_calls(&self) -> usize {
        match (self.subject.device, self.level) {
            (None, _) => 2,
            (Some(_), Level::Quick) => 3,
            (Some(_), Level::Full) => 20,
        }
    }

    /// Runs a case several times, and some of its rows alone.
    pub(crate) fn run<C: Case>(&mut self, case: C) {
        if let Some(bench) = &mut self.bench {
            return bench.run(self.subject, &case);
        }
        let mut judge = Judge::new(case.op(), self.subject.info.layout);
        if let Err(message) = self.run_judged(&case, &mut judge) {
            judge.fail(message);
        }
        self.push(judge.finish(case.title()));
    }

    fn run_judged<C: Case>(&mut self, case: &C, judge: &mut Judge) -> std::result::Result<(), String> {
        let mut want = case.clone();
        want.truth(self.subject.info.capabilities).map_err(|e| format!("truth cannot answer: {e}"))?;
        let mut got = case.clone();
        self.call(&mut got)?;
        intact(case, &got)?;
        case.judge(&want, &got, judge);

        for number in 2..=self.equal_calls() {
            let mut again = case.clone();
            self.call(&mut again).map_err(|e| match number {
                2 => format!("the second of two equal calls {e}"),
                _ => format!("equal call number {number} {e}"),
            })?;
            if !repeats(&got, &again, judge) {
                break;
            }
        }

        let live = case.rows().live();
        let full = [live.first(), live.get(live.len() / 2), live.last()];
        for row in full.into_iter().skip(if self.level == Level::Full { 0 } else { 2 }).flatten() {
            let Some(mut alone) = case.alone(*row) else { continue };
            self.call(&mut alone).map_err(|e| format!("row {row} alone {e}"))?;
            self.report.batch_invariant &= got.same_row(*row, &alone);
        }
        Ok(())
    }

    fn call<C: Case>(&mut self, case: &mut C) -> std::result::Result<(), String> {
        if self.panicked {
            return Err("was not run: the instance panicked before, and must not be used again".into());
        }
        if self.broken {
            return Err("was not run: the device failed before".into());
        }
        let (code, _) = call(self.subject, case).map_err(|failed| {
            self.broken |= matches!(failed, Failed::Driver(CudaError::Call { .. }));
            failed.to_string()
        })?;
        self.outcome(code)
    }

    /// Turns a return code into a message.
    pub(crate) fn outcome(&mut self, code: i32) -> std::result::Result<(), String> {
        let what = match code {
            abi::OK => return Ok(()),
            abi::ERR_PANIC => "ERR_PANIC".to_owned(),
            abi::ERR_ARGUMENT => "ERR_ARGUMENT".to_owned(),
            abi::ERR_UNSUPPORTED => "ERR_UNSUPPORTED".to_owned(),
            abi::ERR_INTERNAL => "ERR_INTERNAL".to_owned(),
            other => format!("code {other}"),
        };
        self.panicked |= code == abi::ERR_PANIC;
        let text = (self.subject.take_error)();
        Err(match self.subject.device {
            Some(_) if code == abi::ERR_INTERNAL => format!("returned {what}: {text}. {LOOK_CLOSER}"),
            _ => format!("returned {what}: {text}"),
        })
    }
}

/// Calls the subject with a case, on its device if it has one; the code, and how long the call and what it enqueued took,
/// in seconds.
pub(crate) fn call<C: Case>(subject: &Subject<'_>, case: &mut C) -> std::result::Result<(i32, f64), Failed> {
    let (layer, class) = case.layer();
    let ctx = context(subject, case.rows().phase, layer, class);
    match subject.device {
        Some(memory) => memory.run(case, ctx, |case, ctx| case.call(subject, ctx)),
        None => {
            let started = Instant::now();
            let code = case.call(subject, &ctx);
            Ok((code, started.elapsed().as_secs_f64()))
        }
    }
}

/// The context of a call.
pub(crate) fn context(subject: &Subject<'_>, phase: u32, layer: u32, layer_class: u32) -> StepCtx {
    StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase,
        layer,
        layer_class,
        rank: 0,
        world: 1,
        step: 1,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: subject.host,
    }
}

/// Guards whole, inputs unchanged.
fn intact<C: Case>(before: &C, after: &C) -> std::result::Result<(), String> {
    for (before, after) in before.buffers().into_iter().zip(after.buffers()) {
        let (name, words) = (after.name, after.words().len());
        if let Some(at) = after.damage() {
            return Err(format!("wrote outside `{name}`: word {at} of {words}"));
        }
        if after.role == Role::Input && before.words() != after.words() {
            let at = before.words().iter().zip(after.words()).position(|(a, b)| a != b).unwrap_or(0);
            return Err(format!("changed its input `{name}`: word {at} of {words}"));
        }
    }
    Ok(())
}

/// Equal calls give equal bits; padded rows are nobody's. Returns whether they do.
fn repeats<C: Case>(first: &C, second: &C, judge: &mut Judge) -> bool {
    for (a, b) in first.buffers().into_iter().zip(second.buffers()) {
        let live = |i: usize| a.row_words == 0 || first.rows().position(i / a.row_words).is_some();
        let pairs = a.words().iter().zip(b.words()).enumerate();
        if let Some((i, (x, y))) = pairs.filter(|(i, _)| live(*i)).find(|(_, (x, y))| x != y) {
            let at = match a.row_words {
                0 => Coordinate::new(a.name, i, &[("word", usize::MAX)]),
                n => Coordinate::new(a.name, i, &[("row", usize::MAX), ("word", n)]),
            };
            let message = format!("two equal calls differ at {at}: bits {x:#010x}, then {y:#010x}");
            judge.fail_at(at, f64::from(f32::from_bits(*y)), f64::from(f32::from_bits(*x)), message);
            return false;
        }
    }
    true
}

//! A search that is killed anywhere and resumed is the same search; so is one that is replayed.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::rc::Rc;

use hotseam_bisect::log::{Cache, Header, Journal, Line, Log, LogError, Recorded, Recorder, listing};
use hotseam_bisect::{Event, Observer, Options, Report, run};
use hotseam_target::simulated::{Condition, Fault, Mishap, Random, Settings, Simulated, flash, flat};
use hotseam_target::{
    Arm, Axis, Conformance, Counts, Noise, Outcome, Plan, Suspicion, Target, TargetError, Verdict,
};
use serde_json::json;

/// Draws that depend on the number of the run and on nothing that a dead process knew.
struct Drawn {
    inner: Simulated,
    fault: Fault,
    rates: [f64; 2],
    seed: u64,
    number: Rc<Cell<usize>>,
}

/// Tells [`Drawn`] the number of the run.
struct Numbers(Rc<Cell<usize>>);

impl Observer for Numbers {
    fn event(&mut self, event: &Event<'_>) {
        if let Event::Start { number, .. } = event {
            self.0.set(*number);
        }
    }
}

impl Target for Drawn {
    fn plan(&self) -> &Plan {
        self.inner.plan()
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        self.inner.digest(arm)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let mut random = Random::new(self.seed.wrapping_mul(1000) + self.number.get() as u64);
        let rate = self.rates[usize::from(self.fault.shows(arm, &Settings::new()))];
        let fail = (0..8).map(|_| u32::from(random.unit() < rate)).sum();
        let mut outcome = self.inner.measure(arm)?;
        outcome.counts = Counts { fail, total: 8 };
        outcome.verdict = if fail > 2 { Verdict::Bad } else { Verdict::Good };
        outcome.metric = 1.0 - f64::from(fail) / 8.0;
        // Not a number that a decimal of few digits holds.
        outcome.seconds = random.unit() / 3.0;
        Ok(outcome)
    }

    fn not_run(&self) -> Arm {
        self.inner.not_run()
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        self.inner.conformance(variant)
    }

    fn oracle(&self) -> String {
        self.inner.oracle()
    }

    fn noise(&self) -> Noise {
        Noise::Counted
    }

    fn suspicions(&mut self) -> Result<Vec<Suspicion>, TargetError> {
        self.inner.suspicions()
    }

    fn axes(&self) -> Vec<Axis> {
        self.inner.axes()
    }
}

fn header(target: &dyn Target, options: &Options) -> Header {
    let facts =
        BTreeMap::from([("model".to_owned(), "nano".to_owned()), ("oracle".to_owned(), "needle".to_owned())]);
    Header::of(target, "1.2.3", facts, json!({"config": "x.yaml"}), serde_json::to_value(options).unwrap())
}

/// A whole search with its log.
fn search(target: &mut dyn Target, options: &Options, number: &Rc<Cell<usize>>) -> (Report, Vec<u8>) {
    let mut bytes = Vec::new();
    let header = header(target, options);
    let journal = Journal::new(&mut bytes);
    journal.write(&[Line::Header(Box::new(header.clone()))]);
    let mut recorder = Recorder::new(target, header, journal.clone(), Recorded::default());
    let mut observer = (Numbers(number.clone()), journal.clone());
    let report = run(&mut recorder, options, &mut observer);
    journal.write(&[Line::Done { verdict: report.verdict.as_str().to_owned() }]);
    assert!(journal.take_error().is_none());
    drop((recorder, observer, journal));
    (report, bytes)
}

/// What `hotseam bisect resume` does with a log.
fn resume(
    target: &mut dyn Target,
    options: &Options,
    bytes: &[u8],
    number: &Rc<Cell<usize>>,
) -> (Report, Vec<u8>) {
    let log = Log::read(bytes).unwrap();
    assert_eq!(log.header.differences(&header(target, options)), [""; 0]);
    let mut bytes = bytes[..log.whole].to_vec();
    let journal = Journal::after(&log.lines, &mut bytes);
    journal.write(&[Line::Resume { options: serde_json::to_value(options).unwrap() }]);
    let mut recorder = Recorder::new(target, log.header.clone(), journal.clone(), log.recorded(false));
    let mut observer = (Numbers(number.clone()), journal.clone());
    let report = run(&mut recorder, options, &mut observer);
    journal.write(&[Line::Done { verdict: report.verdict.as_str().to_owned() }]);
    drop((recorder, observer, journal));
    (report, bytes)
}

fn replay(bytes: &[u8], options: &Options) -> Result<Report, String> {
    let log = Log::read(bytes).unwrap();
    let mut recorder = Recorder::replay(&log);
    let mut observer = recorder.journal();
    let report = run(&mut recorder, options, &mut observer);
    match recorder.missing() {
        Some(what) => Err(what.to_owned()),
        None => Ok(report),
    }
}

/// Makes the target anew, as a new process does.
type Make<'a> = &'a dyn Fn(&Rc<Cell<usize>>) -> Box<dyn Target>;

/// Kills the search at every record and at `more` further bytes, resumes it, and kills the resumed one again.
fn kill_everywhere(make: Make<'_>, options: &Options, more: usize) -> Report {
    let number = Rc::new(Cell::new(0));
    let (whole, bytes) = search(&mut *make(&number), options, &number);
    assert_eq!(replay(&bytes, options).unwrap(), whole);
    let ends: Vec<usize> =
        bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1).collect();
    assert!(ends.len() > 20, "{} lines", ends.len());
    let (mut random, mut twice) = (Random::new(4), 0);
    let inside = (0..more).map(|_| ends[0] + random.below(bytes.len() - ends[0]));
    for cut in ends.iter().copied().chain(inside).collect::<Vec<_>>() {
        let (report, longer) = resume(&mut *make(&number), options, &bytes[..cut], &number);
        assert!(report == whole, "killed at byte {cut}");
        assert!(replay(&longer, options).unwrap() == whole, "killed at byte {cut}, then replayed");
        // Killed again, somewhere in what the second process wrote. Twice in the same run would be a crash.
        let again = (cut + random.below(longer.len() - cut + 1)).min(longer.len());
        if Log::read(&longer[..again]).unwrap().recorded(false).crashed() == 0 {
            let (report, _) = resume(&mut *make(&number), options, &longer[..again], &number);
            assert!(report == whole, "killed at bytes {cut} and {again}");
            twice += 1;
        }
    }
    assert!(twice > 20, "{twice}");
    // A log that ends in its first line is no log.
    for cut in [0, 1, ends[0] / 2, ends[0] - 1] {
        assert!(matches!(Log::read(&bytes[..cut]), Err(LogError::Empty)), "cut at {cut}");
    }
    whole
}

#[test]
fn killed_anywhere_an_exact_search_ends_alike() {
    let make = |_: &Rc<Cell<usize>>| -> Box<dyn Target> {
        Box::new(
            Simulated::new(flash(), Fault::any([40])).not_called(200..230).fails_conformance("indexer/x"),
        )
    };
    let report = kill_everywhere(&make, &Options { budget_runs: 60, ..Options::default() }, 40);
    assert_eq!((report.verdict.as_str(), report.culprits.len()), ("found", 1));
}

#[test]
fn killed_anywhere_a_search_in_parallel_ends_alike() {
    let make =
        |_: &Rc<Cell<usize>>| -> Box<dyn Target> { Box::new(Simulated::new(flat(64), Fault::all([9, 50]))) };
    let report = kill_everywhere(&make, &Options { budget_runs: 80, jobs: 4, ..Options::default() }, 40);
    assert_eq!(report.verdict.as_str(), "found");
}

#[test]
fn killed_anywhere_a_noisy_search_ends_alike() {
    let make = |number: &Rc<Cell<usize>>| -> Box<dyn Target> {
        let fault = Fault::any([5]);
        let inner = Simulated::new(flat(16), fault.clone()).one_launch();
        Box::new(Drawn { inner, fault, rates: [0.05, 0.6], seed: 3, number: number.clone() })
    };
    let report = kill_everywhere(&make, &Options { budget_runs: 200, ..Options::default() }, 30);
    assert_eq!(report.verdict.as_str(), "found");
    assert!(report.trials.iter().any(|trial| trial.after.posterior.is_some()));
}

#[test]
fn killed_anywhere_a_search_for_settings_ends_alike() {
    let make = |_: &Rc<Cell<usize>>| -> Box<dyn Target> {
        let fault = Fault::Always.when(Condition::Below("index_topk".into(), 300));
        Box::new(Simulated::new(flat(4), fault).axis("index_topk", "128", &["256", "512"]))
    };
    let number = Rc::new(Cell::new(0));
    let options = Options { budget_runs: 40, ..Options::default() };
    let (whole, bytes) = search(&mut *make(&number), &options, &number);
    for cut in bytes.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at + 1) {
        assert_eq!(resume(&mut *make(&number), &options, &bytes[..cut], &number).0, whole, "{cut}");
    }
    assert_eq!(replay(&bytes, &options).unwrap(), whole);
}

/// Cuts a log behind the `start` line of run `number`.
fn cut_in_run(bytes: &[u8], number: usize) -> Vec<u8> {
    let mut out = Vec::new();
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        out.extend_from_slice(line);
        if let Ok(Line::Start(start)) = serde_json::from_slice::<Line>(line)
            && start.number == number
        {
            return out;
        }
    }
    panic!("no run {number}");
}

#[test]
fn a_run_that_crashed_twice_is_not_tried_again() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let make = || Simulated::new(flat(32), Fault::any([20]));
    let (whole, bytes) = search(&mut make(), &options, &number);
    let crashed = 4;
    let arm = whole.trials[crashed - 1].arm.clone();

    let once = cut_in_run(&bytes, crashed);
    let mut target = make();
    let (report, longer) = resume(&mut target, &options, &once, &number);
    assert_eq!(report, whole);
    assert!(target.measured().contains(&arm), "one crash is tried again");

    // The resumed search dies in the same run.
    let twice = {
        let mut rest = once.clone();
        rest.extend(cut_in_run(&longer[once.len()..], crashed));
        rest
    };
    assert!(listing(&Log::read(&twice).unwrap()).contains("crashed"));
    let mut target = make();
    let (report, longer) = resume(&mut target, &options, &twice, &number);
    let skipped = &report.trials[crashed - 1];
    assert_eq!(
        (skipped.outcome.verdict, skipped.outcome.summary.as_str()),
        (Verdict::Skip, "crashed the host twice")
    );
    assert!(!target.measured().contains(&arm));
    assert_eq!(replay(&longer, &options).unwrap(), report);
}

#[test]
fn of_a_batch_only_the_run_that_crashes_is_skipped() {
    let options = Options { budget_runs: 80, jobs: 4, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let make = || Simulated::new(flat(64), Fault::any([50]));
    let (whole, bytes) = search(&mut make(), &options, &number);
    // Four starts of one batch, then the end of the program; then again, of the first of them.
    let batch: Vec<usize> = (3..7).collect();
    let first = cut_in_run(&bytes, batch[3]);
    let (report, longer) = resume(&mut make(), &options, &first, &number);
    assert!(report == whole);
    let mut twice = first.clone();
    twice.extend(cut_in_run(&longer[first.len()..], batch[0]));
    let (report, _) = resume(&mut make(), &options, &twice, &number);
    let crashed: Vec<usize> =
        report.trials.iter().filter(|t| t.outcome.signature == "crash").map(|t| t.number).collect();
    assert_eq!(crashed, [batch[0]]);
}

#[test]
fn undo_asks_again() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let make = || Simulated::new(flat(32), Fault::any([20]));
    let (whole, bytes) = search(&mut make(), &options, &number);
    for undone in [1, 2, 5, whole.runs] {
        let log = Log::read(&bytes).unwrap();
        let line = log.undo((undone < whole.runs).then_some(undone)).unwrap();
        assert_eq!(line, Line::Undo { number: undone });
        let mut bytes = bytes.clone();
        Journal::after(&log.lines, &mut bytes).write(&[line]);
        let log = Log::read(&bytes).unwrap();
        assert_eq!(log.verdict(), None);
        assert!(listing(&log).contains("(undone)"));
        let mut target = make();
        let (report, _) = resume(&mut target, &options, &bytes, &number);
        assert_eq!(report, whole);
        // The good end comes again before any other run, for the bar.
        let arm = &whole.trials[undone - 1].arm;
        let expected: Vec<Arm> =
            if arm.is_empty() { vec![arm.clone()] } else { vec![Arm::new(), arm.clone()] };
        assert_eq!(target.measured(), expected, "run {undone}");
        // What was undone stays undone.
        assert!(replay(&bytes, &options).unwrap_err().starts_with(&format!("run {undone} (")));
    }
    let error = Log::read(&bytes).unwrap().undo(Some(99)).unwrap_err().to_string();
    assert_eq!(error, format!("the log has no run 99 to undo; it has 1-{}", whole.runs));
}

#[test]
fn an_undone_answer_may_lead_elsewhere() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let (whole, mut bytes) = search(&mut Simulated::new(flat(32), Fault::any([20])), &options, &number);
    let log = Log::read(&bytes).unwrap();
    Journal::after(&log.lines, &mut bytes).write(&[Line::Undo { number: 2 }]);
    let mut healthy = Simulated::new(flat(32), Fault::any([]));
    let (report, longer) = resume(&mut healthy, &options, &bytes, &number);
    assert_eq!(report.verdict.as_str(), "ends_agree_by_oracle");
    assert_ne!(report, whole);
    assert_eq!(replay(&longer, &options).unwrap(), report);
}

#[test]
fn a_replay_says_what_it_lacks() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let (whole, bytes) = search(&mut Simulated::new(flat(32), Fault::any([20])), &options, &number);
    let cut = cut_in_run(&bytes, 3);
    assert_eq!(replay(&cut, &options).unwrap_err(), format!("run 3 ({})", whole.trials[2].why));
    // Other bounds may ask for more than there is.
    let wider = Options { max_set: 2, strategy: hotseam_bisect::Strategy::Bayes, ..options };
    assert!(replay(&bytes, &wider).is_err());
}

#[test]
fn an_oracle_that_broke_is_asked_again_and_a_hang_is_not() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let plan = flat(32);
    let guilty = Fault::any([20]);
    let mut broken = Simulated::new(plan.clone(), guilty.clone()).mishap(Fault::any([10]), Mishap::Oracle);
    let (report, bytes) = search(&mut broken, &options, &number);
    assert_eq!(report.verdict.as_str(), "oracle_broken");
    assert_eq!(replay(&bytes, &options).unwrap(), report);
    let (report, longer) =
        resume(&mut Simulated::new(plan.clone(), guilty.clone()), &options, &bytes, &number);
    assert_eq!(report.verdict.as_str(), "found");
    assert_eq!(replay(&longer, &options).unwrap(), report);

    let hanging = || Simulated::new(plan.clone(), guilty.clone()).mishap(Fault::all([20, 21]), Mishap::Hang);
    let (report, bytes) = search(&mut hanging(), &options, &number);
    let mut again = hanging();
    assert_eq!(resume(&mut again, &options, &bytes, &number).0, report);
    assert!(again.measured().is_empty());
}

#[test]
fn another_configuration_is_named() {
    let options = Options::default();
    let target = Simulated::new(flat(8), Fault::any([2]));
    let was = header(&target, &options);
    assert!(was.differences(&was).is_empty());
    let mut now = header(&Simulated::new(flat(9), Fault::any([2])), &options);
    now.facts.insert("model".to_owned(), "flash".to_owned());
    now.facts.insert("plugin moe/x".to_owned(), "abc".to_owned());
    assert_eq!(
        was.differences(&now),
        ["model: was `nano`, is `flash`", "plugin moe/x: was not there, is `abc`", "changes: were 8, are 9",]
    );
    let mut other = was.clone();
    other.identity = "other".to_owned();
    assert_eq!(was.differences(&other).len(), 1);
}

#[test]
fn damage_is_told_from_a_torn_end() {
    let options = Options { budget_runs: 60, ..Options::default() };
    let number = Rc::new(Cell::new(0));
    let (_, bytes) = search(&mut Simulated::new(flat(8), Fault::any([2])), &options, &number);
    let text = String::from_utf8(bytes.clone()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    lines[3] = "{\"event\": \"start\"";
    let error = Log::read((lines.join("\n") + "\n").as_bytes()).unwrap_err();
    assert!(matches!(error, LogError::Damaged { line: 4, .. }), "{error}");
    // A crash may leave zeros in place of the last line.
    let mut torn = bytes.clone();
    torn.extend([0; 40]);
    assert_eq!(Log::read(&torn).unwrap().whole, bytes.len());
    torn.push(b'\n');
    assert_eq!(Log::read(&torn).unwrap().whole, bytes.len());
    let newer = text.replacen("\"format\":1", "\"format\":7", 1);
    assert!(matches!(Log::read(newer.as_bytes()), Err(LogError::Format { found: 7 })));
    assert!(matches!(Log::read(lines[1].as_bytes()), Err(LogError::Empty)));
}

#[test]
fn a_cache_answers_for_exact_oracles_only() {
    let dir = tempfile::tempdir().unwrap();
    let options = Options { budget_runs: 60, ..Options::default() };
    let cached = |target: &mut dyn Target| {
        let header = header(target, &options);
        let recorder = Recorder::new(target, header, Journal::silent(), Recorded::default());
        run(&mut recorder.share(Cache::open(dir.path().to_owned()).unwrap()), &options, &mut ())
    };
    let make = || Simulated::new(flat(32), Fault::any([20])).not_called([3, 4]);
    let (mut first, mut second) = (make(), make());
    let report = cached(&mut first);
    assert_eq!(cached(&mut second), report);
    assert_eq!((first.measured().len(), second.measured().len()), (report.runs, 0));
    // A question that is new needs the bar.
    std::fs::remove_file(std::fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path()).unwrap();
    let mut third = make();
    assert_eq!(cached(&mut third), report);
    assert_eq!(third.measured()[0], Arm::new());

    let noisy = || {
        let rates = hotseam_target::simulated::Rates::new(0.0, 1.0);
        Simulated::new(flat(4), Fault::any([2])).noisy(rates, 1).one_launch()
    };
    let (mut first, mut second) = (noisy(), noisy());
    assert_eq!(cached(&mut first), cached(&mut second));
    assert_eq!(first.measured().len(), second.measured().len());
}

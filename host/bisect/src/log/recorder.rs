//! Stands between a search and its target, and answers from the log what the log knows.

use hotseam_target::{Arm, Axis, Conformance, Handoff, Noise, Outcome, Plan, Suspicion, Target, TargetError};

use super::cache::{Cache, Kept};
use super::journal::{Announced, Journal};
use super::key;
use super::line::{Answer, Begun, Failed, Header, Line};
use super::reader::{Log, Recorded, Taken, crashed_twice};

/// A target that records, resumes or replays another one.
pub struct Recorder<'a> {
    /// Absent in a replay.
    target: Option<&'a mut dyn Target>,
    header: Header,
    journal: Journal<'a>,
    recorded: Recorded,
    cache: Option<Cache>,
    /// Id of the launch as the search knows it.
    launch: u64,
    /// Added to the ids of the target's launches: those of the log came before.
    launch_offset: u64,
    /// The good end was answered from the log or a cache, so the target has no bar yet.
    bar_missing: bool,
    missing: Option<String>,
}

impl<'a> Recorder<'a> {
    /// Records `target`, answering from `recorded` first.
    pub fn new(target: &'a mut dyn Target, header: Header, journal: Journal<'a>, recorded: Recorded) -> Self {
        // A resumed search runs in a launch of its own, and draws of one launch may belong together. A target that
        // knows of one launch only is taken at its word.
        let one = recorded.last_launch() == 0 || header.noise == Noise::Exact;
        let launch_offset = if one { 0 } else { recorded.last_launch() + 1 };
        Self {
            target: Some(target),
            header,
            journal,
            recorded,
            cache: None,
            launch: 0,
            launch_offset,
            bar_missing: false,
            missing: None,
        }
    }

    /// Answers from `log` alone. What it does not hold is an error; see [`Recorder::missing`].
    pub fn replay(log: &Log) -> Self {
        Self {
            target: None,
            header: log.header.clone(),
            journal: Journal::silent(),
            recorded: log.recorded(true),
            cache: None,
            launch: 0,
            launch_offset: 0,
            bar_missing: false,
            missing: None,
        }
    }

    /// Uses answers of other searches too, and leaves them its own. Draws are never shared.
    pub fn share(mut self, cache: Cache) -> Self {
        self.cache = (self.header.noise == Noise::Exact).then_some(cache);
        self
    }

    /// The journal, to observe the search with.
    pub fn journal(&self) -> Journal<'a> {
        self.journal.clone()
    }

    /// What a replay was asked for that the log does not hold.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    fn lack(&mut self, what: String) -> TargetError {
        let error = TargetError::Setup(format!("the log holds no answer for {what}"));
        self.missing.get_or_insert(what);
        error
    }

    /// Gives a target that has not measured the good end yet its bar.
    fn set_bar(&mut self) -> Result<(), TargetError> {
        if !std::mem::take(&mut self.bar_missing) {
            return Ok(());
        }
        let Some(target) = &mut self.target else { return Ok(()) };
        let result = target.measure(&Arm::new());
        self.journal.write(&[Line::Bar { answer: answer(&result) }]);
        result.map(drop)
    }

    /// Asks for several arms at once.
    fn ask(&mut self, arms: &[Arm], axes: &[(String, String)]) -> Vec<Result<Outcome, TargetError>> {
        let mut answers: Vec<Option<Result<Outcome, TargetError>>> = Vec::new();
        let mut live: Vec<Question> = Vec::new();
        for (index, arm) in arms.iter().enumerate() {
            let announced = self.journal.next();
            let found = match self.digest(arm) {
                Err(error) => Some(Err(error)),
                Ok(digest) => {
                    let question = Question::new(self, index, announced, arm, axes, &digest);
                    let found = self.known(&question);
                    if found.is_none() {
                        live.push(question);
                    }
                    found
                }
            };
            if arm.is_empty() && axes.is_empty() && found.as_ref().is_some_and(Result::is_ok) {
                self.bar_missing = self.target.is_some();
            }
            answers.push(found);
        }
        // What may have taken the program down is run alone, so that a second crash has one suspect.
        let (doubtful, harmless): (Vec<_>, Vec<_>) =
            live.into_iter().partition(|question| self.recorded.crashed_once(&question.begun.key));
        let batches = doubtful.into_iter().map(|one| vec![one]).chain([harmless]);
        for batch in batches.filter(|batch| !batch.is_empty()) {
            let found = self.live(&batch, arms, axes);
            for (question, answer) in batch.iter().zip(found) {
                answers[question.index] = Some(answer);
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// The answer to `question` from the log or the cache.
    fn known(&mut self, question: &Question) -> Option<Result<Outcome, TargetError>> {
        match self.recorded.take(&question.begun.key) {
            Some(Taken::Answer(found)) => {
                self.journal.mark_recorded(question.begun.number);
                return Some(match found {
                    Answer::Outcome(outcome) => Ok(outcome),
                    Answer::Failed(failed) => Err(failed.into()),
                });
            }
            Some(Taken::Crashed) => {
                let outcome = crashed_twice();
                self.journal
                    .write(&[Line::Start(question.begun.clone()), question.end(&Ok(outcome.clone()), None)]);
                return Some(Ok(outcome));
            }
            None => {}
        }
        let kept = self.cache.as_ref()?.get(&question.shared)?;
        self.recorded.keep_not_run(kept.not_run.as_deref());
        let answer = Ok(kept.outcome);
        self.journal.write(&[Line::Start(question.begun.clone()), question.end(&answer, kept.not_run)]);
        Some(answer)
    }

    /// Asks the target.
    fn live(
        &mut self,
        questions: &[Question],
        arms: &[Arm],
        axes: &[(String, String)],
    ) -> Vec<Result<Outcome, TargetError>> {
        let asked: Vec<Arm> = questions.iter().map(|question| arms[question.index].clone()).collect();
        if axes.is_empty() && asked.first().is_some_and(Arm::is_empty) {
            self.bar_missing = false;
        }
        if self.target.is_none() {
            let what = |q: &Question| format!("run {} ({})", q.begun.number, q.begun.why);
            return questions.iter().map(|question| Err(self.lack(what(question)))).collect();
        }
        if let Err(error) = self.set_bar() {
            let said = Failed::from(&error);
            return questions.iter().map(|_| Err(said.clone().into())).collect();
        }
        let starts: Vec<Line> =
            questions.iter().map(|question| Line::Start(question.begun.clone())).collect();
        self.journal.write(&starts);
        let Some(target) = &mut self.target else { return Vec::new() };
        let mut results = match (asked.as_slice(), axes) {
            ([arm], []) => vec![target.measure(arm)],
            (arms, []) => target.measure_many(arms),
            (arms, axes) => arms.iter().map(|arm| target.measure_axes(axes, arm)).collect(),
        };
        let all = self.header.plan.all();
        let mut not_run = None;
        if axes.is_empty() && asked.contains(&all) {
            let silent: Vec<usize> = target.not_run().into_iter().collect();
            self.recorded.keep_not_run(Some(&silent));
            not_run = Some(silent);
        }
        for outcome in results.iter_mut().flatten() {
            outcome.launch += self.launch_offset;
        }
        let ends: Vec<Line> = (questions.iter().zip(&results).zip(&asked))
            .map(|((question, result), arm)| question.end(result, not_run.clone().filter(|_| *arm == all)))
            .collect();
        self.journal.write(&ends);
        if let Some(cache) = &self.cache {
            for ((question, result), arm) in questions.iter().zip(&results).zip(&asked) {
                let Ok(outcome) = result else { continue };
                let kept =
                    Kept { outcome: outcome.clone(), not_run: not_run.clone().filter(|_| *arm == all) };
                // A cache that cannot be written costs a later search a run, nothing more.
                let _ = cache.put(&question.shared, &kept);
            }
        }
        results
    }
}

/// One run that is asked for.
struct Question {
    index: usize,
    begun: Begun,
    /// Key in the cache: of everything that the answer depends on.
    shared: String,
}

impl Question {
    fn new(
        recorder: &Recorder<'_>,
        index: usize,
        announced: Announced,
        arm: &Arm,
        axes: &[(String, String)],
        digest: &str,
    ) -> Self {
        let header = &recorder.header;
        let facts: Vec<String> = header.facts.iter().map(|(name, fact)| format!("{name}={fact}")).collect();
        let everything = format!("{}\n{}\n{}", header.identity, header.oracle, facts.join("\n"));
        let begun = Begun {
            number: announced.number,
            why: announced.why,
            changes: announced.changes,
            arm: arm.iter().copied().collect(),
            axes: axes.to_vec(),
            key: key(&header.identity, digest, recorder.launch, axes),
        };
        Self { index, begun, shared: key(&everything, digest, 0, axes) }
    }

    fn end(&self, result: &Result<Outcome, TargetError>, not_run: Option<Vec<usize>>) -> Line {
        Line::End { number: self.begun.number, answer: answer(result), not_run }
    }
}

fn answer(result: &Result<Outcome, TargetError>) -> Answer {
    match result {
        Ok(outcome) => Answer::Outcome(outcome.clone()),
        Err(error) => Answer::Failed(error.into()),
    }
}

impl Target for Recorder<'_> {
    fn plan(&self) -> &Plan {
        &self.header.plan
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        let atoms: Vec<usize> = arm.iter().copied().collect();
        if let Some(known) = self.recorded.digests.get(&atoms) {
            return known.clone().map_err(TargetError::from);
        }
        let Some(target) = &mut self.target else {
            return Err(self.lack(format!("the digest of an arm of {} atoms", arm.len())));
        };
        let digest = target.digest(arm).map_err(|error| Failed::from(&error));
        self.journal.write(&[Line::Digest { arm: atoms.clone(), digest: digest.clone() }]);
        self.recorded.digests.insert(atoms, digest.clone());
        digest.map_err(TargetError::from)
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let only = self.ask(std::slice::from_ref(arm), &[]).pop();
        only.unwrap_or_else(|| Err(TargetError::Setup("the target gave no answer".to_owned())))
    }

    fn not_run(&self) -> Arm {
        match (&self.recorded.not_run, &self.target) {
            (Some(atoms), _) => atoms.iter().copied().collect(),
            (None, Some(target)) => target.not_run(),
            (None, None) => Arm::new(),
        }
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        if let Some(known) = self.recorded.conformance.get(variant) {
            return known.clone().map_err(TargetError::from);
        }
        let Some(target) = &mut self.target else {
            return Err(self.lack(format!("the conformance of {variant}")));
        };
        let result = target.conformance(variant).map_err(|error| Failed::from(&error));
        self.journal.write(&[Line::Conformance { variant: variant.to_owned(), result: result.clone() }]);
        self.recorded.conformance.insert(variant.to_owned(), result.clone());
        result.map_err(TargetError::from)
    }

    fn oracle(&self) -> String {
        self.header.oracle.clone()
    }

    fn noise(&self) -> Noise {
        self.header.noise
    }

    fn relaunch(&mut self) -> Result<u64, TargetError> {
        if let Some(id) = self.recorded.launches.pop_front() {
            self.launch = id;
            return Ok(id);
        }
        let Some(target) = &mut self.target else { return Err(self.lack("a new launch".to_owned())) };
        self.launch = target.relaunch()? + self.launch_offset;
        self.journal.write(&[Line::Launch { id: self.launch }]);
        Ok(self.launch)
    }

    fn measure_many(&mut self, arms: &[Arm]) -> Vec<Result<Outcome, TargetError>> {
        self.ask(arms, &[])
    }

    fn suspicions(&mut self) -> Result<Vec<Suspicion>, TargetError> {
        if let Some(known) = &self.recorded.suspicions {
            return known.clone().map_err(TargetError::from);
        }
        let Some(target) = &mut self.target else { return Err(self.lack("the suspicions".to_owned())) };
        let result = target.suspicions().map_err(|error| Failed::from(&error));
        self.journal.write(&[Line::Suspicions { result: result.clone() }]);
        self.recorded.suspicions = Some(result.clone());
        result.map_err(TargetError::from)
    }

    fn handoff(&mut self, arm: &Arm) -> Result<Option<Handoff>, TargetError> {
        let atoms: Vec<usize> = arm.iter().copied().collect();
        if let Some(known) = self.recorded.handoffs.get(&atoms) {
            return known.clone().map_err(TargetError::from);
        }
        let Some(target) = &mut self.target else {
            return Err(self.lack("an audit of hand-offs".to_owned()));
        };
        let result = target.handoff(arm).map_err(|error| Failed::from(&error));
        self.journal.write(&[Line::Handoff { arm: atoms.clone(), result: result.clone() }]);
        self.recorded.handoffs.insert(atoms, result.clone());
        result.map_err(TargetError::from)
    }

    fn axes(&self) -> Vec<Axis> {
        self.header.axes.clone()
    }

    fn measure_axes(&mut self, settings: &[(String, String)], arm: &Arm) -> Result<Outcome, TargetError> {
        let only = self.ask(std::slice::from_ref(arm), settings).pop();
        only.unwrap_or_else(|| Err(TargetError::Setup("the target gave no answer".to_owned())))
    }

    fn identity(&self) -> String {
        self.header.identity.clone()
    }
}

//! A target without an engine: faults are planted, noise is drawn, runs cost microseconds.
//!
//! It stands for an engine wherever the search itself is tried: what is guilty is known, so a verdict can be checked,
//! and thousands of searches take seconds.

mod fault;
mod plans;
mod random;

use std::hash::{DefaultHasher, Hash, Hasher};

use crate::{
    Arm, Axis, Conformance, Counts, Handoff, Noise, Outcome, Plan, Suspicion, Target, TargetError, Verdict,
};

pub use fault::{Condition, Fault, Settings};
pub use plans::{PlanBuilder, flash, flat};
pub use random::Random;

/// How often runs fail.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rates {
    /// Failure rate of draws without the fault.
    pub without: f64,
    /// Failure rate of draws with the whole fault.
    pub with: f64,
    /// Draws of one run.
    pub draws: u32,
    /// If true, chance is drawn once a launch and not once a draw: in a launch an arm always fails or never.
    pub sticky: bool,
}

impl Rates {
    /// One draw a run, each on its own.
    pub fn new(without: f64, with: f64) -> Self {
        Self { without, with, draws: 1, sticky: false }
    }
}

/// What happens instead of a measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Mishap {
    /// The arm cannot be judged.
    Skip,
    /// The model fails with this code.
    Crash(u32),
    /// The run does not end.
    Hang,
    /// The oracle itself is broken.
    Oracle,
}

/// A target with planted faults.
pub struct Simulated {
    plan: Plan,
    fault: Fault,
    rates: Option<Rates>,
    mishaps: Vec<(Fault, Mishap)>,
    signatures: Vec<(Fault, String)>,
    settings: Settings,
    axes: Vec<Axis>,
    suspicions: Vec<Suspicion>,
    handoff: Option<Handoff>,
    not_run: Arm,
    /// Variants that fail conformance.
    flagged: Vec<String>,
    launches: bool,
    launch: u64,
    /// What a sticky launch drew for arms without and with the fault.
    drawn: [f64; 2],
    random: Random,
    measured: Vec<Arm>,
}

impl Simulated {
    /// An exact oracle over `plan` with `fault` in it.
    pub fn new(plan: Plan, fault: Fault) -> Self {
        Self {
            plan,
            fault,
            rates: None,
            mishaps: Vec::new(),
            signatures: Vec::new(),
            settings: Settings::new(),
            axes: Vec::new(),
            suspicions: Vec::new(),
            handoff: None,
            not_run: Arm::new(),
            flagged: Vec::new(),
            launches: true,
            launch: 0,
            drawn: [0.0; 2],
            random: Random::new(0),
            measured: Vec::new(),
        }
    }

    /// Makes outcomes draws at `rates`, chance starting from `seed`.
    #[must_use]
    pub fn noisy(mut self, rates: Rates, seed: u64) -> Self {
        self.rates = Some(rates);
        self.random = Random::new(seed);
        self.start_launch();
        self
    }

    /// A target that has only one launch.
    #[must_use]
    pub fn one_launch(mut self) -> Self {
        self.launches = false;
        self
    }

    /// Arms that show `when` meet with `mishap`; the first that applies counts.
    #[must_use]
    pub fn mishap(mut self, when: Fault, mishap: Mishap) -> Self {
        self.mishaps.push((when, mishap));
        self
    }

    /// Arms that fail and show `when` fail with `signature`; the first that applies counts.
    #[must_use]
    pub fn signature(mut self, when: Fault, signature: &str) -> Self {
        self.signatures.push((when, signature.to_owned()));
        self
    }

    /// Sets a setting that faults may depend on, such as `rows`.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.insert(name.to_owned(), value.to_owned());
        self
    }

    /// Adds an axis, with `now` in force.
    #[must_use]
    pub fn axis(mut self, name: &str, now: &str, values: &[&str]) -> Self {
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        self.axes.push(Axis { name: name.to_owned(), now: now.to_owned(), values });
        self.setting(name, now)
    }

    /// Adds cheap evidence.
    #[must_use]
    pub fn suspicion(mut self, suspicion: Suspicion) -> Self {
        self.suspicions.push(suspicion);
        self
    }

    /// Audits of hand-offs bring this.
    #[must_use]
    pub fn hands_over(mut self, handoff: Handoff) -> Self {
        self.handoff = Some(handoff);
        self
    }

    /// Atoms that are not called.
    #[must_use]
    pub fn not_called(mut self, atoms: impl IntoIterator<Item = usize>) -> Self {
        self.not_run.extend(atoms);
        self
    }

    /// `variant` fails conformance.
    #[must_use]
    pub fn fails_conformance(mut self, variant: &str) -> Self {
        self.flagged.push(variant.to_owned());
        self
    }

    /// The arms that were measured, in order.
    pub fn measured(&self) -> &[Arm] {
        &self.measured
    }

    /// Launches begun after the first.
    pub fn relaunches(&self) -> u64 {
        self.launch
    }

    fn start_launch(&mut self) {
        self.drawn = [self.random.unit(), self.random.unit()];
    }

    /// Draws of one run of `arm`.
    fn draw(&mut self, strength: f64) -> Counts {
        let Some(rates) = self.rates else {
            return Counts { fail: u32::from(strength >= 0.5), total: 1 };
        };
        let rate = rates.without + (rates.with - rates.without) * strength;
        let fail = if rates.sticky {
            let side = usize::from(strength >= 0.5);
            if self.drawn[side] < rate { rates.draws } else { 0 }
        } else {
            (0..rates.draws).map(|_| u32::from(self.random.unit() < rate)).sum()
        };
        Counts { fail, total: rates.draws }
    }

    fn outcome(&mut self, settings: &Settings, arm: &Arm) -> Result<Outcome, TargetError> {
        self.measured.push(arm.clone());
        let what = || format!("an arm of {} atoms", arm.len());
        let mishap =
            self.mishaps.iter().find(|(when, _)| when.shows(arm, settings)).map(|(_, mishap)| mishap);
        let (verdict, counts, signature) = match mishap {
            Some(Mishap::Hang) => return Err(TargetError::Hang { what: what(), seconds: 1.0 }),
            Some(Mishap::Oracle) => {
                return Err(TargetError::Oracle { what: what(), message: "exit code 127".to_owned() });
            }
            Some(Mishap::Skip) => (Verdict::Skip, Counts::default(), "skip".to_owned()),
            Some(Mishap::Crash(code)) => (Verdict::Bad, Counts::once(Verdict::Bad), format!("error:{code}")),
            None => {
                let strength = self.fault.strength(arm, settings);
                let counts = self.draw(strength);
                let bar = self.rates.map_or(0.5, |rates| (rates.without + rates.with) / 2.0);
                let bad = f64::from(counts.fail) > bar * f64::from(counts.total);
                let named = self.signatures.iter().find(|(when, _)| bad && when.shows(arm, settings));
                let signature = named.map_or("recall", |(_, signature)| signature).to_owned();
                (if bad { Verdict::Bad } else { Verdict::Good }, counts, signature)
            }
        };
        let passed = f64::from(counts.total - counts.fail) / f64::from(counts.total.max(1));
        Ok(Outcome {
            verdict,
            signature,
            metric: passed,
            summary: format!("{} of {} failed", counts.fail, counts.total),
            detail: String::new(),
            seconds: 1.0,
            counts,
            launch: self.launch,
            grid: Vec::new(),
        })
    }
}

impl Target for Simulated {
    fn plan(&self) -> &Plan {
        &self.plan
    }

    fn digest(&mut self, arm: &Arm) -> Result<String, TargetError> {
        let mut hasher = DefaultHasher::new();
        arm.hash(&mut hasher);
        Ok(format!("{:016x}", hasher.finish()))
    }

    fn measure(&mut self, arm: &Arm) -> Result<Outcome, TargetError> {
        let settings = self.settings.clone();
        self.outcome(&settings, arm)
    }

    fn not_run(&self) -> Arm {
        self.not_run.clone()
    }

    fn conformance(&mut self, variant: &str) -> Result<Conformance, TargetError> {
        let passed = !self.flagged.iter().any(|flagged| flagged == variant);
        let detail = if passed { "12 cases" } else { "1 of 12 cases fails; decode-3: error 2.1" };
        Ok(Conformance { variant: variant.to_owned(), passed, detail: detail.to_owned() })
    }

    fn oracle(&self) -> String {
        match self.rates {
            None => "simulated, exact".to_owned(),
            Some(rates) => format!("simulated, {} draws a run", rates.draws),
        }
    }

    fn noise(&self) -> Noise {
        if self.rates.is_some() { Noise::Counted } else { Noise::Exact }
    }

    fn relaunch(&mut self) -> Result<u64, TargetError> {
        if self.launches {
            self.launch += 1;
            self.start_launch();
        }
        Ok(self.launch)
    }

    fn suspicions(&mut self) -> Result<Vec<Suspicion>, TargetError> {
        Ok(self.suspicions.clone())
    }

    fn handoff(&mut self, _arm: &Arm) -> Result<Option<Handoff>, TargetError> {
        Ok(self.handoff.clone())
    }

    fn axes(&self) -> Vec<Axis> {
        self.axes.clone()
    }

    fn measure_axes(&mut self, changed: &[(String, String)], arm: &Arm) -> Result<Outcome, TargetError> {
        let mut settings = self.settings.clone();
        for (name, value) in changed {
            let known = self.axes.iter().any(|axis| axis.name == *name && axis.values.contains(value));
            if !known {
                return Err(TargetError::Setup(format!("no axis `{name}` with value `{value}`")));
            }
            settings.insert(name.clone(), value.clone());
        }
        self.outcome(&settings, arm)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fails(target: &mut Simulated, arm: &[usize], runs: u32) -> u32 {
        let arm: Arm = arm.iter().copied().collect();
        (0..runs).map(|_| target.measure(&arm).unwrap().counts.fail).sum()
    }

    #[test]
    fn rates_are_met() {
        let mut target = Simulated::new(flat(4), Fault::any([2])).noisy(Rates::new(0.1, 0.6), 7);
        let (without, with) = (fails(&mut target, &[1], 4000), fails(&mut target, &[2], 4000));
        assert!((340..460).contains(&without) && (2280..2520).contains(&with), "{without} {with}");
    }

    #[test]
    fn a_sticky_launch_never_changes_its_mind() {
        let rates = Rates { sticky: true, ..Rates::new(0.0, 0.25) };
        let mut target = Simulated::new(flat(4), Fault::any([2])).noisy(rates, 1);
        let mut dirty = 0;
        for _ in 0..400 {
            let failed = fails(&mut target, &[2], 10);
            assert!(failed == 0 || failed == 10);
            dirty += u32::from(failed == 10);
            target.relaunch().unwrap();
        }
        assert!((75..125).contains(&dirty), "{dirty} of 400 launches");
    }

    #[test]
    fn mishaps_and_signatures_come_as_planted() {
        let mut target = Simulated::new(flat(6), Fault::any([0]))
            .mishap(Fault::any([1]), Mishap::Skip)
            .mishap(Fault::any([2]), Mishap::Hang)
            .mishap(Fault::any([3]), Mishap::Crash(300))
            .signature(Fault::any([4]), "kl");
        let mut measure = |atom: usize| target.measure(&[0, atom].into());
        assert_eq!(measure(1).unwrap().verdict, Verdict::Skip);
        assert!(matches!(measure(2), Err(TargetError::Hang { .. })));
        assert_eq!(measure(3).unwrap().signature, "error:300");
        assert_eq!(measure(4).unwrap().signature, "kl");
        assert_eq!(measure(5).unwrap().signature, "recall");
    }

    #[test]
    fn axes_change_settings_for_one_run() {
        let fault = Fault::Always.when(Condition::Below("index_topk".into(), 64));
        let mut target = Simulated::new(flat(1), fault).axis("index_topk", "32", &["64", "128"]);
        assert_eq!(target.measure(&Arm::new()).unwrap().verdict, Verdict::Bad);
        let set = |value: &str| [("index_topk".to_owned(), value.to_owned())];
        assert_eq!(target.measure_axes(&set("64"), &Arm::new()).unwrap().verdict, Verdict::Good);
        assert_eq!(target.measure(&Arm::new()).unwrap().verdict, Verdict::Bad);
        assert!(matches!(target.measure_axes(&set("96"), &Arm::new()), Err(TargetError::Setup(_))));
    }
}

//! Both ends first: does the good end pass, does the bad end fail, here and now?

use hotseam_target::simulated::Random;
use hotseam_target::{Arm, Verdict};

use super::Knowledge;
use super::hunt::{Answer, Hunt, Stop, Tested};
use super::stats::{Tally, probability_above};
use crate::event::Progress;

/// Certainty that the bad end fails more often than the good one with which a search starts in the first launch; each
/// later one must be as much more certain as it had more chances to be wrong.
const APART: f64 = 0.99;
/// The same for a claim, when the search is over.
const CLAIM: f64 = 0.999;
/// Runs of each end that a claim needs.
const LEAST: usize = 4;
/// Further runs of each end after which no claim is made.
const FURTHER: usize = 40;
/// Passing runs of the bad end after which a launch counts as one that does not show the fault.
const CLEAN: usize = 4;
/// Runs of an end in one launch after which the launch is given up.
const MOST: usize = 24;
/// Launches tried; a fault of one launch in five is missed by all of them in 4 % of cases.
const LAUNCHES: usize = 14;
/// Launches in which both ends fail alike, after which the good end is no good end.
const BOTH: usize = 3;
/// Passing runs of the bad end, all in one launch, after which the ends agree: a fault of one run in ten is missed in
/// 4 % of cases.
const AGREE: usize = 30;

/// How the ends compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Only the bad end fails.
    Differ,
    /// Neither fails.
    Agree,
    /// The good end fails too.
    GoodFails,
    /// One of them cannot be judged.
    Unclear,
}

/// Runs both ends until it is known how they compare.
pub(crate) fn verify(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<Ends, Stop> {
    if hunt.counted { draw(hunt, known) } else { once(hunt, known) }
}

fn once(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<Ends, Stop> {
    let good = hunt.test(&Arm::new(), "good end", None)?;
    known.good = Some(good.trial);
    match good.answer {
        Answer::Good => {}
        Answer::Bad => return Ok(Ends::GoodFails),
        Answer::Skip => return Ok(unclear(known, "good", good)),
    }
    let bad = hunt.test(&hunt.plan.all(), "bad end", None)?;
    known.bad = Some(bad.trial);
    Ok(match bad.answer {
        Answer::Bad => Ends::Differ,
        Answer::Good => Ends::Agree,
        Answer::Skip => unclear(known, "bad", bad),
    })
}

fn unclear(known: &mut Knowledge, end: &str, tested: Tested) -> Ends {
    known.notes.push(format!("the {end} end cannot be judged (run {})", tested.trial));
    Ends::Unclear
}

/// Turns of the ends in the present launch.
struct Turns {
    launch: Option<u64>,
    /// Draws of the good and the bad end.
    tallies: [Tally; 2],
    /// Runs of each.
    runs: [usize; 2],
}

impl Turns {
    const NONE: Self = Self { launch: None, tallies: [Tally { fail: 0.0, pass: 0.0 }; 2], runs: [0; 2] };

    fn apart(&self, launches: usize) -> bool {
        self.runs.iter().all(|runs| *runs >= 2) && self.above() >= 1.0 - (1.0 - APART) / launches as f64
    }

    /// Both fail, and the bad end not even twice as often.
    fn alike(&self) -> bool {
        let [good, bad] = self.tallies;
        self.runs.iter().all(|runs| *runs >= CLEAN)
            && good.fail >= 2.0
            && probability_above(
                bad,
                Tally {
                    fail: (2.0 * good.fail).min(good.total()),
                    pass: (good.total() - 2.0 * good.fail).max(0.0),
                },
            ) < 0.05
    }

    fn above(&self) -> f64 {
        probability_above(self.tallies[1], self.tallies[0])
    }

    /// This launch will not tell the ends apart.
    fn hopeless(&self) -> bool {
        let clean = self.runs[1] >= CLEAN && self.tallies[1].fail == 0.0;
        let inverted = self.runs.iter().all(|runs| *runs >= CLEAN) && self.above() < 0.5;
        clean || inverted || self.alike() || self.runs[1] >= MOST
    }

    /// The end whose turn it is: the good one begins, the bad one follows, then the one with fewer runs, the order of
    /// each pair by chance, so that a drift does not look like a difference. As long as the bad end only passes, it
    /// goes on alone.
    fn next(&self, chance: &mut Random) -> usize {
        match self.runs {
            [0, _] => 0,
            [_, 0] => 1,
            _ if self.tallies[1].fail == 0.0 && self.runs[1] < CLEAN => 1,
            [good, bad] if good == bad => (chance.bits() >> 63) as usize,
            [good, bad] => usize::from(bad < good),
        }
    }
}

fn draw(hunt: &mut Hunt<'_>, known: &mut Knowledge) -> Result<Ends, Stop> {
    let arms = [Arm::new(), hunt.plan.all()];
    let mut chance = Random::new(hunt.options.seed);
    let mut turns = Turns::NONE;
    let (mut launches, mut only_one, mut alike) = (1, false, 0);
    for (arm, fails) in arms.iter().zip([false, true]) {
        let digest = hunt.digest(arm)?;
        hunt.draws.classes.insert(digest, fails);
    }
    hunt.verified = None;
    loop {
        let end = turns.next(&mut chance);
        let trial = hunt.draw(&arms[end], &[], ["good end", "bad end"][end], |_| Progress::default())?;
        let outcome = &hunt.trials[trial - 1].outcome;
        let (launch, counts, skipped) =
            (outcome.launch, super::hunt::counts_of(outcome), outcome.verdict == Verdict::Skip);
        [&mut known.good, &mut known.bad][end].get_or_insert(trial);
        if skipped {
            return Ok(unclear(known, ["good", "bad"][end], Tested { answer: Answer::Skip, trial }));
        }
        if turns.launch.is_some_and(|before| before != launch) {
            turns = Turns::NONE;
        }
        turns.launch = Some(launch);
        turns.tallies[end].add(Tally::from(counts));
        turns.runs[end] += 1;
        if turns.apart(launches) {
            hunt.verified = Some(launch);
            for (arm, fails) in arms.iter().zip([false, true]) {
                hunt.assume(arm, fails)?;
            }
            if launches > 1 {
                hunt.note(&format!("the fault shows in launch {launches}; the search stays in it"));
            }
            return Ok(Ends::Differ);
        }
        let over = turns.runs[1] >= AGREE && turns.runs[0] >= CLEAN || turns.alike();
        if only_one && !over || !turns.hopeless() {
            continue;
        }
        alike += usize::from(turns.alike());
        if only_one || launches >= LAUNCHES || alike >= BOTH {
            return compare(hunt, known, &arms);
        }
        hunt.target.relaunch().map_err(Stop::Target)?;
        launches += 1;
        hunt.note(&format!("the ends cannot be told apart in this launch: launch {launches}"));
        // A target that has only one launch goes on in it.
        let again = hunt.draw(&arms[0], &[], "good end", |_| Progress::default())?;
        let outcome = &hunt.trials[again - 1].outcome;
        only_one = turns.launch == Some(outcome.launch);
        let counts = super::hunt::counts_of(outcome);
        if !only_one {
            turns = Turns { launch: Some(outcome.launch), ..Turns::NONE };
        }
        turns.tallies[0].add(Tally::from(counts));
        turns.runs[0] += 1;
    }
}

/// Before a claim is made: are the ends apart beyond doubt? `healed` is the bad end without the culprits, which passes and
/// so counts with the good end. Runs the ends, in turn, until that is known.
pub(crate) fn hold(hunt: &mut Hunt<'_>, healed: &Arm) -> Result<bool, Stop> {
    let arms = [Arm::new(), hunt.plan.all()];
    let digests = [hunt.digest(&arms[0])?, hunt.digest(&arms[1])?, hunt.digest(healed)?];
    for further in 0..2 * FURTHER {
        let Some(block) = hunt.draws.blocks.last() else { return Ok(false) };
        let of = |digest: &String| {
            let sample = block.samples.get(digest);
            sample.map_or((Tally::default(), 0), |sample| (hunt.draws.tally(sample), sample.runs.len()))
        };
        let [good, bad, without] = [of(&digests[0]), of(&digests[1]), of(&digests[2])];
        let passing =
            if digests[2] == digests[0] { good } else { (good.0.plus(without.0), good.1 + without.1) };
        let above = probability_above(bad.0, passing.0);
        if above >= CLAIM && bad.1 >= LEAST && passing.1 >= LEAST {
            return Ok(true);
        }
        if further >= FURTHER && above < 0.5 {
            break;
        }
        let end = usize::from(bad.0.total() <= passing.0.total());
        hunt.draw(&arms[end], &[], ["good end", "bad end"][end], |_| Progress::default())?;
    }
    Ok(false)
}

/// The ends do not differ in any launch: do both fail, or none?
fn compare(hunt: &mut Hunt<'_>, known: &mut Knowledge, arms: &[Arm; 2]) -> Result<Ends, Stop> {
    let good = hunt.digest(&arms[0])?;
    let bad = hunt.digest(&arms[1])?;
    let (good, bad) = (hunt.draws.counts(&good).0, hunt.draws.counts(&bad).0);
    known.notes.push(format!(
        "failures of the good end: {good}, of the bad end: {bad}, over {} launches",
        hunt.draws.blocks.len()
    ));
    // One failure may be chance; what fails again and again without any patch is no good end.
    Ok(if good.fail >= 2 && good.fail * 20 >= good.total { Ends::GoodFails } else { Ends::Agree })
}

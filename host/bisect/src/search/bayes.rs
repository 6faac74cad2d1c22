//! Beliefs about which suspect fails, from draws at unknown rates.
//!
//! Suspects stand in order of suspicion. Whatever set of them fails, its last member is where the failing prefix
//! begins, so there are two hypotheses a suspect: it fails *alone*, or it is the *last of a set*. Sets that share
//! their last member stay one hypothesis; they are told apart only once it has become likely, by a search of its own
//! for what comes before. That keeps a thousand suspects, and half a million pairs of them, at two thousand numbers.
//!
//! Two kinds of arms are asked: prefixes, and single suspects. Every hypothesis says of each of them whether it fails.
//! The rates at which arms fail and pass are unknown, and integrated out for each hypothesis and launch.

use std::collections::BTreeMap;

use super::stats::{Tally, entropy};

/// Probability before any run that a single suspect does not fail alone.
const SETS: f64 = 0.15;
/// Single suspects that are considered as the next question.
const SINGLES: usize = 4;

/// What can be asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Question {
    /// The first so many suspects.
    Prefix(usize),
    /// This suspect.
    Alone(usize),
    /// The good (false) or the bad end once more, to learn its rate.
    End(bool),
}

/// Draws of one launch that the hypotheses speak of.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    /// Draws that pass (first) or fail (second) under every hypothesis: those of the ends.
    pub(crate) ends: [Tally; 2],
    /// By length of the prefix.
    pub(crate) prefixes: BTreeMap<usize, Tally>,
    /// By suspect.
    pub(crate) singles: BTreeMap<usize, Tally>,
}

/// Probabilities of all hypotheses.
#[derive(Debug, Clone)]
pub(crate) struct Beliefs {
    /// That a suspect fails alone.
    pub(crate) alone: Vec<f64>,
    /// That a suspect is the last of a set.
    pub(crate) last: Vec<f64>,
    /// Mean rates of passing and failing arms in the present launch, if a suspect fails alone.
    rates: Vec<[f64; 2]>,
    /// The same if it is the last of a set.
    rates_of_sets: Vec<[f64; 2]>,
}

/// The hypotheses before any run.
pub(crate) struct Prior {
    alone: Vec<f64>,
    last: Vec<f64>,
    /// Suspects that run along when one is asked alone, since it requires them; itself included.
    along: BTreeMap<usize, Vec<usize>>,
}

impl Prior {
    /// `weights` in order of suspicion, positive, on any scale. `along` holds suspects that require others.
    pub(crate) fn new(weights: &[f64], along: BTreeMap<usize, Vec<usize>>) -> Self {
        let total: f64 = weights.iter().sum();
        let mut before = 0.0;
        // A set of two is last at a suspect as often as its partner comes before it.
        let pairs: Vec<f64> = weights
            .iter()
            .map(|weight| {
                let pair = weight * before;
                before += weight;
                pair
            })
            .collect();
        let sum: f64 = pairs.iter().sum();
        let sets = if sum > 0.0 { SETS } else { 0.0 };
        Self {
            alone: weights.iter().map(|weight| ((1.0 - sets) * weight / total).ln()).collect(),
            last: pairs
                .iter()
                .map(|pair| if sum > 0.0 { (sets * pair / sum).ln() } else { f64::NEG_INFINITY })
                .collect(),
            along,
        }
    }

    fn runs_along(&self, suspect: usize) -> Vec<usize> {
        self.along.get(&suspect).cloned().unwrap_or_else(|| vec![suspect])
    }

    /// Beliefs after `seen`, one entry a launch, the present one last.
    pub(crate) fn update(&self, seen: &[Seen]) -> Beliefs {
        let count = self.alone.len();
        let (mut alone, mut last) = (self.alone.clone(), self.last.clone());
        let mut rates = vec![[0.5; 2]; count];
        let mut rates_of_sets = rates.clone();
        for block in seen {
            let mut moved: BTreeMap<usize, Tally> = BTreeMap::new();
            for (&asked, tally) in &block.singles {
                for suspect in self.runs_along(asked) {
                    moved.entry(suspect).or_default().add(*tally);
                }
            }
            let singles = block.singles.values().fold(Tally::default(), |sum, tally| sum.plus(*tally));
            // Draws of prefixes and ends that pass, and that fail, if the failing prefix begins at a suspect.
            let mut passing = block.ends[0].plus(singles);
            let mut failing = block.prefixes.values().fold(block.ends[1], |sum, tally| sum.plus(*tally));
            let mut lengths = block.prefixes.iter().peekable();
            let mut begin = 0;
            loop {
                let end = lengths.peek().map_or(count, |(length, _)| (**length).min(count));
                let evidence = passing.evidence() + failing.evidence();
                for suspect in begin..end {
                    alone[suspect] += evidence;
                    last[suspect] += evidence;
                    rates_of_sets[suspect] = [passing.mean(), failing.mean()];
                    rates[suspect] = rates_of_sets[suspect];
                }
                // If a suspect fails alone, the runs of single suspects in which it took part are failing ones.
                for (&suspect, own) in moved.range(begin..end) {
                    let (passing, failing) = (passing.minus(*own), failing.plus(*own));
                    alone[suspect] += passing.evidence() + failing.evidence() - evidence;
                    rates[suspect] = [passing.mean(), failing.mean()];
                }
                let Some((_, tally)) = lengths.next() else { break };
                passing.add(*tally);
                failing = failing.minus(*tally);
                begin = end;
            }
        }
        normalise(&mut alone, &mut last);
        Beliefs { alone, last, rates, rates_of_sets }
    }

    /// The question that is expected to tell most, with its bits; `None` if there is none to ask.
    pub(crate) fn best(&self, beliefs: &Beliefs) -> Option<(Question, f64)> {
        let count = beliefs.alone.len();
        let expected = |chance: f64, noise: f64| entropy(chance) - noise;
        // Chance that a passing arm fails, that a failing one does, and their noise, summed over hypotheses.
        let part = |weight: f64, [passing, failing]: [f64; 2]| {
            [weight * passing, weight * failing, weight * entropy(passing), weight * entropy(failing)]
        };
        let whole: Vec<[f64; 4]> = (0..count)
            .map(|suspect| {
                let alone = part(beliefs.alone[suspect], beliefs.rates[suspect]);
                let last = part(beliefs.last[suspect], beliefs.rates_of_sets[suspect]);
                std::array::from_fn(|index| alone[index] + last[index])
            })
            .collect();
        let mut rest = whole.iter().fold([0.0; 2], |sum, part| [sum[0] + part[0], sum[1] + part[2]]);
        let all = rest;
        let mut best: Option<(Question, f64)> = None;
        let mut offer = |question, bits: f64| {
            if best.is_none_or(|(_, most)| bits > most) {
                best = Some((question, bits));
            }
        };
        let mut fails = [0.0; 2];
        for (index, part) in whole.iter().enumerate().take(count.saturating_sub(1)) {
            fails = [fails[0] + part[1], fails[1] + part[3]];
            rest = [rest[0] - part[0], rest[1] - part[2]];
            offer(Question::Prefix(index + 1), expected(fails[0] + rest[0], fails[1] + rest[1]));
        }
        for suspect in beliefs.likeliest(SINGLES) {
            let (mut chance, mut noise) = (all[0], all[1]);
            for other in self.runs_along(suspect) {
                let [passing, failing] = beliefs.rates[other];
                chance += beliefs.alone[other] * (failing - passing);
                noise += beliefs.alone[other] * (entropy(failing) - entropy(passing));
            }
            offer(Question::Alone(suspect), expected(chance, noise));
        }
        // If it is not known at which rate arms pass or fail, an end tells more than a suspect.
        let failing = whole.iter().fold([0.0; 2], |sum, part| [sum[0] + part[1], sum[1] + part[3]]);
        offer(Question::End(false), expected(all[0], all[1]));
        offer(Question::End(true), expected(failing[0], failing[1]));
        best
    }
}

impl Beliefs {
    /// That a suspect fails alone or is the last of a set.
    pub(crate) fn of(&self, suspect: usize) -> f64 {
        self.alone[suspect] + self.last[suspect]
    }

    /// The likeliest suspects, most likely first.
    pub(crate) fn likeliest(&self, most: usize) -> Vec<usize> {
        let mut top: Vec<usize> = Vec::with_capacity(most + 1);
        for suspect in 0..self.alone.len() {
            let place = top.iter().position(|&other| self.of(suspect) > self.of(other)).unwrap_or(top.len());
            if place < most {
                top.insert(place, suspect);
                top.truncate(most);
            }
        }
        top
    }

    /// The fewest suspects that hold 95 % of the belief.
    pub(crate) fn plausible(&self) -> usize {
        let mut all: Vec<f64> = (0..self.alone.len()).map(|suspect| self.of(suspect)).collect();
        all.sort_unstable_by(|a, b| b.total_cmp(a));
        let mut sum = 0.0;
        let mut before = |belief: &f64| {
            let open = sum < 0.95;
            sum += belief;
            open
        };
        all.iter().copied().take_while(|belief| before(belief)).count()
    }

    /// From the first to behind the last of those suspects.
    pub(crate) fn range(&self) -> (usize, usize) {
        let top = self.likeliest(self.plausible());
        let first = top.iter().min().copied().unwrap_or(0);
        (first, top.iter().max().map_or(0, |last| last + 1))
    }

    /// Doubt in bits about which suspect it is.
    pub(crate) fn bits(&self) -> f64 {
        let bits = |p: f64| if p > 0.0 { -p * p.log2() } else { 0.0 };
        (0..self.alone.len()).map(|suspect| bits(self.of(suspect))).sum()
    }

    /// Mean rates of passing and failing arms, if it is the likeliest suspect.
    pub(crate) fn rates(&self) -> [f64; 2] {
        self.likeliest(1).first().map_or([0.0, 1.0], |&suspect| self.rates[suspect])
    }
}

/// Turns logarithms into probabilities.
fn normalise(alone: &mut [f64], last: &mut [f64]) {
    let most = alone.iter().chain(last.iter()).copied().fold(f64::NEG_INFINITY, f64::max);
    let mut sum = 0.0;
    for value in alone.iter_mut().chain(last.iter_mut()) {
        *value = (*value - most).exp();
        sum += *value;
    }
    for value in alone.iter_mut().chain(last.iter_mut()) {
        *value /= sum;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(fail: u32, pass: u32) -> Tally {
        Tally { fail: f64::from(fail), pass: f64::from(pass) }
    }

    fn seen(prefixes: &[(usize, Tally)], singles: &[(usize, Tally)]) -> Seen {
        Seen {
            ends: [tally(0, 10), tally(10, 0)],
            prefixes: prefixes.iter().copied().collect(),
            singles: singles.iter().copied().collect(),
        }
    }

    /// The same by the definition, one hypothesis after the other.
    fn slow(weights: &[f64], along: &BTreeMap<usize, Vec<usize>>, blocks: &[Seen]) -> Vec<(f64, f64)> {
        let prior = Prior::new(weights, along.clone());
        let score = |suspect: usize, alone: bool| {
            let mut sum = if alone { prior.alone[suspect] } else { prior.last[suspect] };
            for block in blocks {
                let mut sides = block.ends;
                for (length, tally) in &block.prefixes {
                    sides[usize::from(*length > suspect)].add(*tally);
                }
                for (asked, tally) in &block.singles {
                    let runs = prior.runs_along(*asked).contains(&suspect);
                    sides[usize::from(alone && runs)].add(*tally);
                }
                sum += sides[0].evidence() + sides[1].evidence();
            }
            sum.exp()
        };
        let all: Vec<(f64, f64)> = (0..weights.len()).map(|s| (score(s, true), score(s, false))).collect();
        let total: f64 = all.iter().map(|(a, b)| a + b).sum();
        all.into_iter().map(|(a, b)| (a / total, b / total)).collect()
    }

    #[test]
    fn the_fast_way_is_the_definition() {
        let weights = [3.0, 1.0, 1.0, 2.0, 1.0, 1.0];
        let along = BTreeMap::from([(4, vec![1, 4])]);
        let blocks = [
            seen(
                &[(2, tally(1, 3)), (4, tally(2, 2))],
                &[(4, tally(1, 1)), (1, tally(1, 2)), (3, tally(2, 0))],
            ),
            seen(&[(4, tally(3, 0))], &[(4, tally(0, 1))]),
        ];
        let beliefs = Prior::new(&weights, along.clone()).update(&blocks);
        for (suspect, (alone, last)) in slow(&weights, &along, &blocks).into_iter().enumerate() {
            assert!((beliefs.alone[suspect] - alone).abs() < 1e-9, "{suspect}");
            assert!((beliefs.last[suspect] - last).abs() < 1e-9, "{suspect}");
        }
    }

    #[test]
    fn exact_answers_are_halved() {
        let prior = Prior::new(&[1.0; 64], BTreeMap::new());
        let sure = |prefixes: &[(usize, Tally)]| Seen {
            ends: [tally(0, 200), tally(200, 0)],
            ..seen(prefixes, &[])
        };
        let (question, bits) = prior.best(&prior.update(&[sure(&[])])).unwrap();
        assert!(matches!(question, Question::Prefix(30..=36)) && bits > 0.9, "{question:?} {bits}");
        let beliefs = prior.update(&[sure(&[(32, tally(1, 0)), (16, tally(0, 1))])]);
        let inside: f64 = (16..32).map(|suspect| beliefs.of(suspect)).sum();
        assert!(inside > 0.98, "{inside}");
    }

    #[test]
    fn alone_and_last_of_a_set_are_told_apart_by_asking_it_alone() {
        let prior = Prior::new(&[1.0; 8], BTreeMap::new());
        let found = [(5, tally(0, 6)), (6, tally(6, 0))];
        let beliefs = prior.update(&[seen(&found, &[])]);
        assert_eq!(beliefs.likeliest(1), [5]);
        assert!(beliefs.alone[5] > 0.6 && beliefs.last[5] > 0.05);
        assert_eq!(prior.best(&beliefs).unwrap().0, Question::Alone(5));
        assert!(prior.update(&[seen(&found, &[(5, tally(3, 0))])]).alone[5] > 0.95);
        assert!(prior.update(&[seen(&found, &[(5, tally(0, 3))])]).last[5] > 0.9);
    }

    #[test]
    fn the_first_suspect_is_never_last_of_a_set() {
        let beliefs = Prior::new(&[1.0, 1.0], BTreeMap::new()).update(&[]);
        assert_eq!(beliefs.last[0], 0.0);
        let one = Prior::new(&[2.0], BTreeMap::new()).update(&[]);
        assert_eq!((one.alone[0], one.last[0]), (1.0, 0.0));
    }
}

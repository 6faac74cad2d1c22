//! What goes wrong on one rank.

use super::rank::{Rank, group, nano, rule, sizes, stock};
use super::sums::Sums;
use super::{Logits, compare, sums_of_a_step};
use crate::forward::ops::StepError;
use hotseam_ranks::RankError;
use hotseam_slots::Phase;

/// A prompt, a step in which a call of the second rank fails, and the same step with stock variants.
fn failing(rank: &mut Rank, phase: Phase) -> (Result<usize, StepError>, Logits) {
    let (seq, _) = rank.prompt(1, 126);
    let mut seqs = [(1, seq)];
    let rows = if phase == Phase::Decode { 1 } else { 5 };
    let failed = rank.run("broken", phase, &mut seqs, rows);
    // On every rank: the others are told of it by whoever leads them.
    rank.abort(&mut seqs);
    let again = rank.step("live", phase, &mut seqs, rows).unwrap_or_else(|e| panic!("{e}"));
    (failed.map(|logits| logits.len()), again)
}

#[test]
fn a_call_that_fails_on_one_rank_leaves_nobody_waiting() {
    let want = group(
        nano(),
        &Sums::new(1, None),
        1,
        &sizes(),
        |_| stock("cpu"),
        |rank| {
            [Phase::Prefill, Phase::Decode].map(|phase| {
                let (seq, _) = rank.prompt(1, 126);
                let rows = if phase == Phase::Decode { 1 } else { 5 };
                rank.step("live", phase, &mut [(1, seq)], rows).unwrap_or_else(|e| panic!("{e}"))
            })
        },
    );
    for layer in [0, 3, 6] {
        for (phase, want) in [Phase::Prefill, Phase::Decode].into_iter().zip(&want[0]) {
            let sums = Sums::new(2, None);
            let ranks = group(
                nano(),
                &sums,
                2,
                &sizes(),
                |_| stock("cpu"),
                |rank| {
                    let mut rules = stock("cpu");
                    let (number, _) = rank.forward.group.as_ref().expect("two ranks").place();
                    if number == 1 {
                        let select = format!("attention@{phase}:layers={layer}");
                        rules.push(rule(&select, "faulty/attention{fault: error}"));
                    }
                    rank.slots.define("broken", rules).unwrap_or_else(|e| panic!("{e}"));
                    failing(rank, phase)
                },
            );
            let [(first, logits), (second, _)] = &ranks[..] else { panic!("two ranks") };
            let rows = logits.len();
            assert_eq!(first, &Ok(rows), "the first rank sums on, and knows nothing");
            let Err(StepError::Call(error)) = second else { panic!("{second:?}") };
            assert_eq!(error.cell.to_string(), format!("attention.core@{phase}:layers={layer}"));
            compare(&format!("after a failure in layer {layer}, {phase}"), logits, want);
            let all = 3 * sums_of_a_step(nano());
            assert_eq!(sums.calls(), [all, all], "as many sums in the failed step as in the others");
        }
    }
}

#[test]
fn a_sum_that_fails_ends_the_step_at_once_on_every_rank() {
    // The second rank's third sum, in the second layer.
    let sums = Sums::new(2, Some((1, 3)));
    let ran = group(
        nano(),
        &sums,
        2,
        &sizes(),
        |_| stock("cpu"),
        |rank| {
            let mut seqs = [(1, rank.open())];
            rank.step("live", Phase::Prefill, &mut seqs, 5).map(|logits| logits.len())
        },
    );
    for (rank, ran) in ran.iter().enumerate() {
        let broken = RankError::Carrier("a wire was cut".to_owned());
        assert_eq!(ran, &Err(StepError::Rank(broken)), "rank {rank}");
    }
    assert_eq!(sums.calls()[1], 3, "no sum after the one that failed");
}

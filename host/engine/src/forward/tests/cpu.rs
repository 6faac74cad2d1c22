//! Ranks on the CPU.

use super::rank::{Rank, group, nano, sizes, stock};
use super::sums::Sums;
use super::{compare, sums_of_a_step};
use crate::EngineConfig;
use hotseam_checkpoint::convert::Form;
use hotseam_checkpoint::random::Preset;
use hotseam_model::{Model, part};
use hotseam_slots::Phase;

/// Logits of the first rank, once it is known that the others return none and that all have summed as often.
fn logits(
    model: &Model,
    world: u32,
    config: &EngineConfig,
    script: impl Fn(&mut Rank) -> super::Logits + Sync,
) -> super::Logits {
    let sums = Sums::new(world, None);
    let mut ranks = group(model, &sums, world, config, |_| stock("cpu"), script);
    assert!(ranks[1..].iter().all(Vec::is_empty), "only the first rank has logits");
    let calls = sums.calls();
    assert!(calls.iter().all(|n| *n == calls[0] && n.is_multiple_of(sums_of_a_step(model))), "{calls:?}");
    assert_eq!(calls[0] > 0, world > 1);
    ranks.swap_remove(0)
}

#[test]
fn ranks_have_the_logits_of_one() {
    let lengths = [1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 513];
    // Groups of 4 and of 128, pages and the window end on the way.
    let script = |rank: &mut Rank| rank.drive(&lengths, &[3, 125, 254], 5);
    let want = logits(nano(), 1, &sizes(), script);
    for world in [2, 4] {
        compare(&format!("{world} ranks"), &logits(nano(), world, &sizes(), script), &want);
    }
}

#[test]
fn quantised_models_are_spread_as_well() {
    for form in Form::ALL {
        let (config, weights) = Preset::FlashLike.build_as(form).expect("a model");
        let model = Model::new(config, weights, super::rank::CONTEXT);
        let script = |rank: &mut Rank| rank.drive(&[1, 5, 130], &[3, 126], 4);
        let want = logits(&model, 1, &sizes(), script);
        compare(&format!("2 ranks, {form}"), &logits(&model, 2, &sizes(), script), &want);
    }
}

#[test]
fn three_ranks_are_refused() {
    let refused = nano().clone().of_rank(0, 3).expect_err("eight heads, four groups").to_string();
    assert_eq!(
        refused,
        "num_attention_heads is 8, which 3 ranks cannot share; expected a number of ranks that this model can have: 1, 2, 4"
    );
}

#[test]
fn experts_of_other_ranks_are_no_violation_and_the_router_keeps_its_choice() {
    // Two of six experts a row, on four ranks with one or two of them: most rows have none of a rank's.
    let (rows, config) = (200, EngineConfig { guard: true, ..sizes() });
    let script = |rank: &mut Rank| {
        let (seq, logits) = rank.prompt(1, rows);
        rank.close(seq);
        let ids = |block: &crate::forward::ops::Block| -> Vec<i32> {
            // SAFETY: the block holds as many words, and the step is over.
            unsafe { std::slice::from_raw_parts(block.ptr::<i32>(), rows * 2) }.to_vec()
        };
        (logits, ids(&rank.forward.ws.expert_ids), ids(&rank.forward.ws.local_ids))
    };
    let want = logits(nano(), 4, &sizes(), |rank| {
        let (seq, logits) = rank.prompt(1, rows);
        rank.close(seq);
        logits
    });
    let ranks = group(nano(), &Sums::new(4, None), 4, &config, |_| stock("cpu"), script);
    assert_eq!(ranks[0].0, want, "the guard changes no bit");
    let chosen = &ranks[0].1;
    assert!(chosen.iter().all(|id| (0..6).contains(id)));
    let mut without = 0;
    for (rank, (_, all, local)) in ranks.iter().enumerate() {
        assert_eq!(all, chosen, "rank {rank}: the router is whole and sees the same sums");
        let own = part(6, rank as u32, 4);
        let here = |id: &i32| if own.contains(&(*id as usize)) { *id - own.start as i32 } else { -1 };
        assert!(local.iter().copied().eq(chosen.iter().map(here)), "rank {rank}");
        without += local.chunks_exact(2).filter(|row| **row == [-1, -1]).count();
    }
    assert!(without > rows, "{without} rows without an expert of a rank");
}

#[test]
fn a_group_of_one_sums_nothing() {
    let sums = Sums::new(1, None);
    let ran = group(
        nano(),
        &sums,
        1,
        &sizes(),
        |_| stock("cpu"),
        |rank| {
            let mut seqs = [(7, rank.open())];
            rank.step("live", Phase::Prefill, &mut seqs, 5).unwrap_or_else(|e| panic!("{e}")).len()
        },
    );
    assert_eq!((ran, sums.calls()), (vec![5], vec![0]));
}

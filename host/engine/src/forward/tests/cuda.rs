//! Ranks on a CUDA device, which they share: the emulated one, or with `HOTSEAM_CUDA=device` the machine's own.

use super::rank::{Rank, group, nano, rule, sizes};
use super::sums::Sums;
use super::{Logits, compare, sums_of_a_step};
use crate::{Device, EngineConfig};
use hotseam_cuda_emulator::{device, is_real};
use hotseam_slots::{Phase, Rule};

/// Stock variants over f32 entries, whose rounding could not be told from that of the sums.
fn stock() -> Vec<Rule> {
    let of = |seam: &str, options: &str| rule(seam, &format!("{seam}/cuda-stock{options}"));
    vec![of("attention", "{kv: f32}"), of("indexer", "{keys: f32}"), of("moe", ""), of("mhc", "")]
}

#[test]
fn ranks_on_a_device_have_the_logits_of_one() {
    if !device() {
        return;
    }
    let (lengths, together): (&[usize], &[usize]) = match is_real() {
        true => (&[1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 513], &[3, 125, 254]),
        false => (&[], &[5, 2]),
    };
    // Of each number of sequences a step that is run, one that is recorded, and one that is launched.
    let steps = 3;
    let run = |world: u32, graphs: bool| {
        let config = EngineConfig { device: Device::Cuda(0), graphs, ..sizes() };
        let sums = Sums::new(world, None);
        let script = |rank: &mut Rank| {
            let logits = rank.drive(lengths, together, steps);
            let snapshot = rank.snapshot("live");
            let decode = snapshot.cells().filter(|view| view.cell.phase == Some(Phase::Decode));
            (logits, decode.filter(|view| view.cell.layer.is_some()).map(|view| view.calls).collect())
        };
        let mut ranks: Vec<(Logits, Vec<u64>)> = group(nano(), &sums, world, &config, |_| stock(), script);
        for (rank, (logits, calls)) in ranks.iter().enumerate() {
            assert!(rank == 0 || logits.is_empty());
            let counted = |n: &u64| [2, 4].contains(&(n / steps as u64)) && n.is_multiple_of(steps as u64);
            assert!(calls.iter().all(counted), "rank {rank}, calls or launches of each cell: {calls:?}");
            assert_eq!(calls, &ranks[0].1, "rank {rank}");
        }
        let calls = sums.calls();
        assert!(
            calls.iter().all(|n| *n == calls[0] && n.is_multiple_of(sums_of_a_step(nano()))),
            "{calls:?}"
        );
        ranks.swap_remove(0).0
    };
    let (one, two) = (run(1, true), run(2, true));
    compare("2 ranks on a device", &two, &one);
    assert!(two == run(2, false), "graphs between sums have the bits of single calls");
    // Each of them has one group of the output projection.
    assert_eq!(nano().config.o_groups, 4);
    compare("4 ranks on a device", &run(4, true), &one);
}

//! `indexer.select`: choices from all entries of the sequence, judged by recomputed scores.

use crate::kit::{Both, Kit, Place, normals};
use crate::pools::{Far, Table};
use crate::rows::{ByRow, Rows};
use crate::{INDEX_DIM, Sizes, judge};
use fastrand::Rng;
use hotseam_abi::layout::{KEY_FP4_HADAMARD, KEY_FP8_HADAMARD};
use hotseam_abi::{SelectArgs, WeightRef, device, dtype, phase, weight_format};
use hotseam_conformance::tolerances::Tolerance;
use hotseam_conformance::{Op, tolerances, truth};
use hotseam_sdk::views;
use serde_json::json;

const RATIO: usize = 4;
const PER_PAGE: usize = 64;
/// Columns of scores past the last entry.
const MORE: usize = 3;

/// The keys of the whole sequence and the matrices of the indexer.
struct Indexer {
    keys: Far,
    table: Table,
    wq_b: Both<u16>,
    weights_proj: Both<u16>,
}

fn bf16(values: Vec<f32>) -> Both<u16> {
    Both::new(values.into_iter().map(truth::numbers::f32_to_bf16).collect())
}

/// `indexer.select` of every variant that serves keys of `layout`.
pub(crate) fn select(kit: &Kit, sizes: &Sizes, name: &str, layout: u32) {
    let (tokens, heads) = (sizes.scored, sizes.index_heads);
    let entries = tokens / RATIO;
    let mut rng = Rng::with_seed(u64::from(layout));
    let mut keys =
        Far::new(kit, &mut rng, layout, INDEX_DIM, PER_PAGE, sizes.pool, entries.div_ceil(PER_PAGE));
    for entry in 0..entries {
        let values = normals(&mut rng, INDEX_DIM, 1.0);
        keys.set(entry, &values);
    }
    keys.pages.upload();
    let columns: Vec<usize> = (0..entries.div_ceil(PER_PAGE)).collect();
    let scale = |n: usize| (n as f32).powf(-0.5);
    let indexer = Indexer {
        // As many sequences as a batch has.
        table: keys.table(&columns, 4),
        keys,
        wq_b: bf16(normals(&mut rng, heads * INDEX_DIM * sizes.rank, scale(sizes.rank))),
        weights_proj: bf16(normals(&mut rng, heads * sizes.hidden, scale(sizes.hidden))),
    };
    let (last, half) = (tokens - 1, tokens / 2);
    let prefill = [(2, 2), (half / 2 - 1, 2), (half - 1, 1), (last - 1, 2)];
    let decode = [(last, 1), (last - 2, 1)];
    for (kind, phase, runs) in
        [("prefill", phase::PREFILL, &prefill[..]), ("decode", phase::DECODE, &decode[..])]
    {
        let mut truth = None;
        for tap in [true, false] {
            let rows = Rows::new(phase, runs, if tap { sizes.rows_scored } else { sizes.rows });
            let what = format!("{name}, {kind}{}", if tap { ", all scores" } else { "" });
            batch(kit, sizes, &indexer, (name, layout), &rows, (&what, tap), &mut truth);
        }
    }
}

/// One batch; scores of all entries are asked for with `tap`. `truth`, by row, is asked for once: padding does not change it.
fn batch(
    kit: &Kit,
    sizes: &Sizes,
    of: &Indexer,
    (name, layout): (&str, u32),
    rows: &Rows,
    (what, tap): (&str, bool),
    truth: &mut Option<Vec<Vec<f32>>>,
) {
    let (heads, topk, width) = (sizes.index_heads, sizes.topk, sizes.scored / RATIO + MORE);
    let mut rng = Rng::with_seed(u64::from(layout) + 10 * u64::from(rows.phase));
    let q_lora = ByRow::new(kit, rows, sizes.rank, normals(&mut rng, rows.len() * sizes.rank, 1.0));
    let x = ByRow::new(kit, rows, sizes.hidden, normals(&mut rng, rows.len() * sizes.hidden, 1.0));
    let batches = [device::CPU, device::CUDA].map(|place| rows.batch(place));
    let args = |place: Place, ids: *mut i32, scores: Option<&ByRow>| SelectArgs {
        size: size_of::<SelectArgs>() as u32,
        ratio: RATIO as u32,
        heads: heads as u32,
        topk: topk as u32,
        scores_width: if scores.is_some() { width as u32 } else { 0 },
        batch: &raw const batches[usize::from(place != device::CPU)],
        q_lora: q_lora.tensor(place, &[sizes.rank]),
        x: x.tensor(place, &[sizes.hidden]),
        wq_b: WeightRef::plain(
            weight_format::BF16,
            of.wq_b.tensor(place, dtype::BF16, &[heads * INDEX_DIM, sizes.rank]),
        ),
        weights_proj: of.weights_proj.tensor(place, dtype::BF16, &[heads, sizes.hidden]),
        rope: kit.rope(place),
        keys: of.keys.arg(place, of.keys.pages.host.as_ptr(), Some(&of.table)),
        ids,
        scores: scores.map_or(std::ptr::null_mut(), |scores| scores.pointer(place)),
    };
    let truth: &[Vec<f32>] = truth.get_or_insert_with(|| {
        let mut unused = vec![0i32; rows.len() * topk];
        let host = args(device::CPU, unused.as_mut_ptr(), None);
        // SAFETY: the arguments point to values that live.
        let view = unsafe { views::Select::from_raw(&host) }.expect("arguments");
        truth::scores(&kit.pool, &view).expect("an answer")
    });
    let fused = matches!(layout, KEY_FP8_HADAMARD | KEY_FP4_HADAMARD) && !tap;
    let mut variants = vec![("indexer/cuda-stock", vec![("keys", json!(name))])];
    if fused {
        for early in [true, false] {
            let options = vec![("keys", json!(name)), ("early_exit", json!(early))];
            variants.push(("indexer/cuda-sm120", options));
        }
    }
    for (variant, options) in variants {
        let late =
            if options.contains(&("early_exit", json!(false))) { " to the end of the table" } else { "" };
        let what = format!("indexer.select, {variant} {what}{late}");
        let instance = kit.instance(variant, &options, INDEX_DIM);
        let op = instance.plugin().entry().indexer.and_then(|a| a.select).expect("the op");
        let ids = ByRow::out(kit, rows, topk);
        let scores = tap.then(|| ByRow::out(kit, rows, width));
        kit.call(
            &what,
            &instance,
            op,
            rows.phase,
            &args(device::CUDA, ids.pointer(device::CUDA), scores.as_ref()),
        );
        let tolerance = tolerances::of(Op::IndexerSelect, "scores", layout);
        let (mut worst, mut overlap) = (0f64, 1f64);
        let squares: f64 = truth.iter().flatten().map(|s| f64::from(*s).powi(2)).sum();
        let size = (squares / truth.iter().map(Vec::len).sum::<usize>() as f64).sqrt();
        for (row, found) in ids.found().chunks_exact(topk).enumerate() {
            let found: Vec<i32> = found.iter().map(|word| word.to_bits() as i32).collect();
            let (gap, share) = choice(&format!("{what}, row {row}"), &found, &truth[row], size, tolerance);
            (worst, overlap) = (worst.max(gap), overlap.min(share));
        }
        if let Some(scores) = &scores {
            let found = scores.found();
            let mut all = Vec::new();
            for (row, want) in truth.iter().enumerate() {
                let (mine, rest) = found[row * width..(row + 1) * width].split_at(want.len());
                let poison = u32::from_ne_bytes([kit.poison(); 4]);
                assert!(rest.iter().all(|s| s.to_bits() == poison), "{what}: row {row}: wrote past the end");
                all.extend_from_slice(mine);
            }
            worst = worst.max(judge::floats(&what, &all, &truth.concat(), usize::MAX, 1.0, tolerance));
            scores.canaries(&what, &mut rng);
        }
        let reach = [of.keys.pages.reach(), scores.as_ref().map_or(0, ByRow::reach)];
        judge::report(&what, reach[0].max(reach[1]), worst, &format!(", overlap {overlap:.4}"));
    }
}

/// Whether the ids of a row are distinct, as many as there must be, and of the best scores; the largest gap to the best choice
/// as a share of what is allowed, and the share of ids that are truth's.
fn choice(what: &str, ids: &[i32], scores: &[f32], size: f64, tolerance: Tolerance) -> (f64, f64) {
    let used = ids.iter().position(|id| *id == -1).unwrap_or(ids.len());
    assert_eq!(used, ids.len().min(scores.len()), "{what}: ids");
    assert!(ids[used..].iter().all(|id| *id == -1), "{what}: an id after a -1");
    let mut chosen: Vec<usize> = ids[..used]
        .iter()
        .map(|id| {
            usize::try_from(*id).ok().filter(|id| *id < scores.len()).expect("an entry that is complete")
        })
        .collect();
    let by_score = |a: &usize, b: &usize| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b));
    chosen.sort_unstable_by(by_score);
    assert!(chosen.windows(2).all(|pair| pair[0] != pair[1]), "{what}: an entry was chosen twice");
    let mut best: Vec<usize> = (0..scores.len()).collect();
    best.sort_unstable_by(by_score);
    best.truncate(used);
    // Two scores may each be off by the tolerance before they change places.
    let allowed = 2.0 * tolerance.max;
    let mut worst = 0f64;
    for (b, c) in best.iter().zip(&chosen) {
        let gap = f64::from(scores[*b] - scores[*c]) / size;
        assert!(
            gap <= allowed,
            "{what}: chose entry {c} of score {}, expected {b} of {}",
            scores[*c],
            scores[*b]
        );
        worst = worst.max(gap / allowed);
    }
    // An entry that ties with the last one is as good.
    let cut = best.last().map_or(f32::NAN, |entry| scores[*entry]);
    let common = chosen.iter().filter(|entry| scores[**entry] >= cut).count();
    (worst, if best.is_empty() { 1.0 } else { common as f64 / best.len() as f64 })
}

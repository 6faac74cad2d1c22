//! `attention.store`, `attention.compress` and `indexer.compress`: what they write, and that they write nothing else.

use crate::kit::{Both, Kit, Place, normals, tensor};
use crate::pools::{Far, Scattered};
use crate::rows::{ByRow, Rows};
use crate::{HEAD_DIM, INDEX_DIM, Sizes, TOKENS, judge};
use fastrand::Rng;
use hotseam_abi::{CompressArgs, PoolRef, StoreArgs, TensorRef, device, dtype, phase, seam};
use hotseam_conformance::{Op, tolerances, truth};
use hotseam_sdk::views;

const BOTH: [Place; 2] = [device::CPU, device::CUDA];

fn norm_weight(rng: &mut Rng, dim: usize) -> Both<f32> {
    Both::new(normals(rng, dim, 0.2).into_iter().map(|v| 1.0 + v).collect())
}

/// `attention.store` of rows all over the sequence.
pub(crate) fn store(kit: &Kit, sizes: &Sizes, kv: &str, layout: u32) {
    let instance = kit.instance("attention/cuda-stock", &[("kv", kv.into())], HEAD_DIM);
    let op = instance.plugin().entry().attention.and_then(|a| a.store).expect("the op");
    let (last, half) = (TOKENS - 1, TOKENS / 2);
    let prefill = [(0, 3), (half / 2 - 1, 2), (half - 1, 2), (last - 2, 3)];
    let decode = [(last, 1), (half, 1), (7, 1)];
    for (kind, phase, runs) in
        [("prefill", phase::PREFILL, &prefill[..]), ("decode", phase::DECODE, &decode[..])]
    {
        let what = format!("attention.store, attention/cuda-stock {kv}, {kind}");
        let mut rng = Rng::with_seed(u64::from(layout) + 10 * u64::from(phase));
        let rows = Rows::new(phase, runs, sizes.rows);
        // A page for each row, which has its first, its last or some slot of it.
        let per_page = 256;
        let pool = Far::new(kit, &mut rng, layout, HEAD_DIM, per_page, sizes.pool, rows.len());
        pool.pages.upload();
        let slots: Vec<usize> = (0..rows.len())
            .map(|row| row * per_page + [0, per_page - 1, rng.usize(..per_page)][row % 3])
            .collect();
        let host_slots: Vec<i32> = slots.iter().map(|slot| *slot as i32).collect();
        let device_slots: Vec<i32> = slots.iter().map(|slot| pool.slot(*slot)).collect();
        let device_slots = rows.numbers(&device_slots, 1);
        let kv = ByRow::new(kit, &rows, HEAD_DIM, normals(&mut rng, rows.len() * HEAD_DIM, 1.7));
        let weight = norm_weight(&mut rng, HEAD_DIM);
        let mut expected = pool.pages.host.clone();
        let batches = BOTH.map(|place| rows.batch(place));
        let args = |place: Place, pool: PoolRef| StoreArgs {
            size: size_of::<StoreArgs>() as u32,
            norm_eps: 1e-6,
            batch: &raw const batches[usize::from(place != device::CPU)],
            kv: kv.tensor(place, &[HEAD_DIM]),
            norm_weight: weight.f32s(place, &[HEAD_DIM]),
            rope: kit.rope(place),
            out_slots: if place == device::CPU { host_slots.as_ptr() } else { device_slots.pointer(place) },
            pool,
        };
        let host = args(device::CPU, pool.arg(device::CPU, expected.as_mut_ptr(), None));
        // SAFETY: the arguments point to values that live, and `expected` is written through nothing else.
        truth::store(unsafe { views::Store::from_raw(&host) }.expect("arguments")).expect("an answer");
        kit.call(
            &what,
            &instance,
            op,
            rows.phase,
            &args(device::CUDA, pool.arg(device::CUDA, std::ptr::null(), None)),
        );
        let found = pool.pages.download();
        let tolerance = tolerances::of(Op::AttentionStore, "pool", layout);
        let worst = judge::entries(&what, pool.form, &found, &expected, &slots, kit.poison(), tolerance);
        let items: Vec<_> = slots.iter().map(|slot| pool.form.ranges(*slot).0).collect();
        pool.pages.canaries(&what, &mut rng, &items);
        judge::report(&what, pool.pages.reach(), worst, "");
    }
}

/// What `compress` is called with: which rows are sources of which entries, in the numbers of the host.
struct Plan {
    rows: Rows,
    sources: Vec<i32>,
    entry_positions: Vec<i32>,
    state_dst: Vec<i32>,
    /// State rows that are read, and all.
    read: usize,
    states: usize,
}

/// Groups that begin in states and are closed by the rows of the batch.
fn plan(sizes: &Sizes, ratio: usize, phase: u32) -> Plan {
    let overlap = usize::from(ratio == 4);
    let groups: Vec<usize> = match phase {
        phase::PREFILL => [0, TOKENS / 4, TOKENS / 2, TOKENS - ratio].map(|p| p / ratio).to_vec(),
        _ => vec![TOKENS / ratio - 1, TOKENS / 2 / ratio],
    };
    // Prefill brings half a group, decode its last token.
    let own = if phase == phase::PREFILL { ratio / 2 } else { 1 };
    let runs: Vec<_> = groups.iter().map(|group| ((group + 1) * ratio - own, own)).collect();
    let rows = Rows::new(phase, &runs, sizes.rows);
    let (mut sources, mut read) = (Vec::new(), 0);
    for (i, group) in groups.iter().enumerate() {
        let from = (group * ratio) as i64 - (overlap * ratio) as i64;
        for position in from..((group + 1) * ratio) as i64 {
            sources.push(match usize::try_from(position) {
                Err(_) => -1,
                Ok(p) if p >= runs[i].0 => (i * own + p - runs[i].0) as i32,
                Ok(_) => {
                    read += 1;
                    -(read + 1)
                }
            });
        }
    }
    let read = read as usize;
    let state_dst = (0..rows.len()).map(|row| (read + row) as i32).collect();
    let entry_positions = groups.iter().map(|group| (group * ratio) as i32).collect();
    Plan { sources, entry_positions, state_dst, read, states: read + rows.len(), rows }
}

/// `compress` of a variant with an option, by ratio.
pub(crate) fn compress(
    kit: &Kit,
    sizes: &Sizes,
    (variant, option, value): (&str, &str, &str),
    layout: u32,
    ratio: usize,
) {
    let dim = if option == "kv" { HEAD_DIM } else { INDEX_DIM };
    let instance = kit.instance(variant, &[(option, value.into())], dim);
    let entry = instance.plugin().entry();
    let (name, op) = match entry.seam {
        seam::ATTENTION => (Op::AttentionCompress, entry.attention.and_then(|a| a.compress)),
        _ => (Op::IndexerCompress, entry.indexer.and_then(|a| a.compress)),
    };
    let op = op.expect("the op");
    let channels = dim * if ratio == 4 { 2 } else { 1 };
    for (kind, phase) in [("prefill", phase::PREFILL), ("decode", phase::DECODE)] {
        let what = format!("{name}, {variant} {value}, ratio {ratio}, {kind}");
        let mut rng = Rng::with_seed(u64::from(layout) + 100 * ratio as u64 + 10 * u64::from(phase));
        let plan = plan(sizes, ratio, phase);
        let (rows, n) = (&plan.rows, plan.entry_positions.len());
        let per_page = 256 / ratio;
        let pool = Far::new(kit, &mut rng, layout, dim, per_page, sizes.pool, n);
        pool.pages.upload();
        let mut states = Scattered::new(kit, &mut rng, 2 * channels * 4, sizes.beside, plan.states);
        let kept = normals(&mut rng, plan.read * 2 * channels, 1.5);
        for (bytes, value) in states.host.chunks_exact_mut(4).zip(kept) {
            bytes.copy_from_slice(&value.to_ne_bytes());
        }
        states.upload();
        let slots: Vec<usize> = (0..n).map(|e| e * per_page + [per_page - 1, 0][e % 2]).collect();
        let host_slots: Vec<i32> = slots.iter().map(|slot| *slot as i32).collect();
        // One more entry, which is padding.
        let of_state = |source: &i32| match *source {
            source if source < -1 => -(states.places[(-source - 2) as usize] as i32) - 2,
            source => rows.places.get(source as usize).map_or(source, |place| *place as i32),
        };
        let mut device_sources: Vec<i32> = plan.sources.iter().map(of_state).collect();
        device_sources.extend(std::iter::repeat_n(i32::MIN, plan.sources.len() / n));
        let padded = |values: Vec<i32>| Both::new([values, vec![-1]].concat());
        let device_slots = padded(slots.iter().map(|slot| pool.slot(*slot)).collect());
        let device_positions = padded(plan.entry_positions.clone());
        let device_sources = Both::new(device_sources);
        let written: Vec<i32> =
            plan.state_dst.iter().map(|row| states.places[*row as usize] as i32).collect();
        let device_dst = rows.numbers(&written, 1);
        let kv = ByRow::new(kit, rows, channels, normals(&mut rng, rows.len() * channels, 1.0));
        let gate = ByRow::new(kit, rows, channels, normals(&mut rng, rows.len() * channels, 1.5));
        let ape = Both::new(normals(&mut rng, ratio * channels, 0.7));
        let weight = norm_weight(&mut rng, dim);
        let mut expected = pool.pages.host.clone();
        let mut state = floats_of(&states.host);
        let batches = BOTH.map(|place| rows.batch(place));
        let args = |place: Place, pool: PoolRef, state: TensorRef| {
            let cpu = place == device::CPU;
            CompressArgs {
                size: size_of::<CompressArgs>() as u32,
                ratio: ratio as u32,
                overlap: u32::from(ratio == 4),
                n_entries: if cpu { n } else { n + 1 } as u32,
                norm_eps: 1e-6,
                batch: &raw const batches[usize::from(!cpu)],
                kv: kv.tensor(place, &[channels]),
                gate: gate.tensor(place, &[channels]),
                ape: ape.f32s(place, &[ratio, channels]),
                norm_weight: weight.f32s(place, &[dim]),
                rope: kit.rope(place),
                sources: if cpu { plan.sources.as_ptr() } else { device_sources.pointer(place) },
                entry_positions: if cpu {
                    plan.entry_positions.as_ptr()
                } else {
                    device_positions.pointer(place)
                },
                out_slots: if cpu { host_slots.as_ptr() } else { device_slots.pointer(place) },
                state_dst: if cpu { plan.state_dst.as_ptr() } else { device_dst.pointer(place) },
                state,
                pool,
            }
        };
        let words = [plan.states, 2 * channels];
        let host_state = tensor(device::CPU, state.as_mut_ptr() as u64, dtype::F32, &words);
        let host = args(device::CPU, pool.arg(device::CPU, expected.as_mut_ptr(), None), host_state);
        // SAFETY: the arguments point to values that live; `expected` and `state` are written through nothing else.
        truth::compress(unsafe { views::Compress::from_raw(&host) }.expect("arguments")).expect("an answer");
        let device =
            args(device::CUDA, pool.arg(device::CUDA, std::ptr::null(), None), states.rows(2 * channels));
        kit.call(&what, &instance, op, phase, &device);

        let found = pool.pages.download();
        let tolerance = tolerances::of(name, "pool", layout);
        let worst = judge::entries(&what, pool.form, &found, &expected, &slots, kit.poison(), tolerance);
        let kept = floats_of(&states.download());
        let tolerance = tolerances::of(name, "state", layout);
        let of_states = judge::floats(&what, &kept, &state, channels, 1e-3, tolerance);
        let items: Vec<_> = slots.iter().map(|slot| pool.form.ranges(*slot).0).collect();
        pool.pages.canaries(&what, &mut rng, &items);
        let bytes = 8 * channels;
        let items: Vec<_> = (plan.read..plan.states).map(|row| row * bytes..(row + 1) * bytes).collect();
        states.canaries(&what, &mut rng, &items);
        let reach = pool.pages.reach().max(states.reach());
        judge::report(&what, reach, worst.max(of_states), "");
    }
}

fn floats_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}

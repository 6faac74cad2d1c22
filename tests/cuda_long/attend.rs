//! `attention.core`: rows all over the sequence, whose keys lie in pages far apart.

use crate::kit::{Both, Kit, Place, normals, tensor};
use crate::pools::{Far, Table};
use crate::rows::{ByRow, Rows};
use crate::{HEAD_DIM, Sizes, TOKENS, judge};
use fastrand::Rng;
use hotseam_abi::{CoreArgs, PoolRef, TensorRef, device, dtype, phase};
use hotseam_conformance::{Op, tolerances, truth};
use hotseam_sdk::views;
use std::collections::BTreeSet;

const WINDOW: usize = 128;
/// Compressed entries that a row attends where they are chosen.
const CHOSEN: usize = 512;

/// What rows of a layer attend beside their window.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Layer {
    /// Nothing.
    Window,
    /// Chosen entries of 4 tokens each.
    Csa,
    /// All entries of 128 tokens each.
    Hca,
}

/// Entries of a pool, and where the sequences find them.
struct Keys {
    pool: Far,
    table: Table,
}

impl Keys {
    /// The entries `wanted`, of random values; other entries of their pages are poison, other pages are not mapped.
    fn new(
        kit: &Kit,
        rng: &mut Rng,
        layout: u32,
        per_page: usize,
        bytes: usize,
        wanted: &BTreeSet<usize>,
        seqs: usize,
    ) -> Self {
        let columns: BTreeSet<usize> = wanted.iter().map(|entry| entry / per_page).collect();
        let columns: Vec<usize> = columns.into_iter().collect();
        let mut pool = Far::new(kit, rng, layout, HEAD_DIM, per_page, bytes, columns.len());
        let mut page = 0;
        for entry in wanted {
            while columns[page] != entry / per_page {
                page += 1;
            }
            pool.set(page * per_page + entry % per_page, &normals(rng, HEAD_DIM, 1.0));
        }
        pool.pages.upload();
        let table = pool.table(&columns, seqs);
        Self { pool, table }
    }

    fn arg(&self, place: Place) -> PoolRef {
        self.pool.arg(place, self.pool.pages.host.as_ptr(), Some(&self.table))
    }
}

/// `attention.core` of `variants`, whose entries have `layout`, over a layer.
pub(crate) fn core(kit: &Kit, sizes: &Sizes, variants: &[&str], kv: &str, layout: u32, layer: Layer) {
    let (last, half) = (TOKENS - 1, TOKENS / 2);
    let prefill = [(1, 1), (half / 2 - 1, 1), (half - 1, 2), (last - 1, 2)];
    let decode = [(last, 1), (last - 2, 1)];
    for (kind, phase, runs) in
        [("prefill", phase::PREFILL, &prefill[..]), ("decode", phase::DECODE, &decode[..])]
    {
        let mut rng = Rng::with_seed(u64::from(layout) + 10 * u64::from(phase) + 100 * layer as u64);
        let rows = Rows::new(phase, runs, sizes.rows);
        let (heads, n) = (sizes.heads, rows.len());
        let window = |p: usize| (p + 1).saturating_sub(WINDOW)..p + 1;
        let wanted: BTreeSet<usize> = rows.positions.iter().flat_map(|p| window(*p)).collect();
        let bytes = if layer == Layer::Window { sizes.pool } else { sizes.beside };
        let swa = Keys::new(kit, &mut rng, layout, 256, bytes, &wanted, rows.seqs);
        let mut ids = Vec::new();
        let (ratio, per_page) = if layer == Layer::Csa { (4, 64) } else { (128, 2) };
        let complete = |row: usize| (rows.positions[row] + 1) / ratio;
        let wanted: BTreeSet<usize> = match layer {
            Layer::Window => BTreeSet::new(),
            Layer::Hca => (0..(0..n).map(complete).max().expect("a row")).collect(),
            Layer::Csa => {
                ids = (0..n).flat_map(|row| chosen(&mut rng, complete(row))).collect();
                ids.iter().filter(|id| **id >= 0).map(|id| *id as usize).collect()
            }
        };
        let entries = (layer != Layer::Window)
            .then(|| Keys::new(kit, &mut rng, layout, per_page, sizes.pool, &wanted, rows.seqs));
        let device_ids = rows.numbers(&ids, if ids.is_empty() { 0 } else { CHOSEN });
        let q = ByRow::new(kit, &rows, heads * HEAD_DIM, normals(&mut rng, n * heads * HEAD_DIM, 1.0));
        let sinks = Both::new(normals(&mut rng, heads, 1.0));
        let batches = [device::CPU, device::CUDA].map(|place| rows.batch(place));
        let args = |place: Place, out: TensorRef| CoreArgs {
            size: size_of::<CoreArgs>() as u32,
            window: WINDOW as u32,
            ratio: if entries.is_some() { ratio as u32 } else { 0 },
            ids_width: if ids.is_empty() { 0 } else { CHOSEN as u32 },
            scale: (HEAD_DIM as f32).powf(-0.5),
            batch: &raw const batches[usize::from(place != device::CPU)],
            q: q.tensor(place, &[heads, HEAD_DIM]),
            sinks: sinks.f32s(place, &[heads]),
            swa: swa.arg(place),
            entries: entries.as_ref().map_or(PoolRef::NONE, |keys| keys.arg(place)),
            ids: match (ids.is_empty(), place) {
                (true, _) => std::ptr::null(),
                (false, device::CPU) => ids.as_ptr(),
                (false, _) => device_ids.pointer(place),
            },
            rope: kit.rope(place),
            out,
        };
        let mut want = vec![0f32; n * heads * HEAD_DIM];
        let shape = [n, heads, HEAD_DIM];
        let host = args(device::CPU, tensor(device::CPU, want.as_mut_ptr() as u64, dtype::F32, &shape));
        // SAFETY: the arguments point to values that live, and nothing else touches the output.
        let view = unsafe { views::Core::from_raw(&host) }.expect("arguments");
        truth::core(&kit.pool, view).expect("an answer");
        for variant in variants {
            let what = format!("attention.core, {variant} {kv}, {layer:?}, {kind}");
            let instance = kit.instance(variant, &[("kv", kv.into())], HEAD_DIM);
            let op = instance.plugin().entry().attention.and_then(|a| a.core).expect("the op");
            let out = ByRow::out(kit, &rows, heads * HEAD_DIM);
            let of_device = args(device::CUDA, out.tensor(device::CUDA, &[heads, HEAD_DIM]));
            kit.call(&what, &instance, op, phase, &of_device);
            let tolerance = tolerances::of(Op::AttentionCore, "out", layout);
            let worst = judge::floats(&what, &out.found(), &want, HEAD_DIM, 1e-3, tolerance);
            out.canaries(&what, &mut rng);
            let pools = [Some(&swa), entries.as_ref()].into_iter().flatten();
            let reach = pools.map(|keys| keys.pool.pages.reach()).chain([q.reach()]).max();
            judge::report(&what, reach.expect("a pool"), worst, "");
        }
    }
}

/// Distinct ids below `complete` in random order, the first and the last among them; -1 behind them where there are too few.
fn chosen(rng: &mut Rng, complete: usize) -> Vec<i32> {
    let mut ids: Vec<i32> = match complete {
        0 => Vec::new(),
        few if few <= CHOSEN => (0..few as i32).collect(),
        _ => {
            let mut some = BTreeSet::from([0, complete as i32 - 1]);
            while some.len() < CHOSEN {
                some.insert(rng.usize(..complete) as i32);
            }
            some.into_iter().collect()
        }
    };
    rng.shuffle(&mut ids);
    ids.resize(CHOSEN, -1);
    ids
}

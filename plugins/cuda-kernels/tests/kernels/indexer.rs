//! `indexer.select` of SM120 against the stock way, over more entries than a block keeps.

use crate::kit::{Both, Kit};
use hotseam_cuda_kernels::indexer::Indexer;
use hotseam_cuda_kernels::indexer::sm120::Sm120;
use hotseam_sdk::abi::{PoolRef, RopeTables, SelectArgs, dtype, layout, weight_format};

const DIM: usize = 128;
const HEADS: usize = 5;
const RANK: usize = 64;
const PER_PAGE: usize = 64;

#[derive(Clone, Copy, PartialEq)]
enum Keys {
    Any,
    Equal,
    /// Some have a scale that is NaN.
    Nan,
}

/// Bytes of a page of keys; a scale is near 1.
fn page(kit: &mut Kit, format: u32, keys: Keys) -> Vec<u8> {
    let data = if format == layout::KEY_FP8_HADAMARD { DIM } else { DIM / 2 };
    let same: Vec<u8> = (0..data).map(|i| (i * 7 % 0x70) as u8).collect();
    let mut bytes = Vec::with_capacity(PER_PAGE * (data + 4));
    for _ in 0..PER_PAGE * data {
        let code = kit.random.u8(..);
        let here = same[bytes.len() % data];
        bytes.push(match keys {
            Keys::Equal => here,
            // No NaN, which e4m3 has at both ends.
            _ if code & 0x7f == 0x7f => 0,
            _ => code,
        });
    }
    for entry in 0..PER_PAGE {
        let nan = keys == Keys::Nan && entry % 3 > 0;
        match (format, nan) {
            (layout::KEY_FP8_HADAMARD, false) => bytes.extend(1.5f32.to_ne_bytes()),
            (layout::KEY_FP8_HADAMARD, true) => bytes.extend(f32::NAN.to_ne_bytes()),
            (_, false) if keys == Keys::Equal => bytes.extend([127; 4]),
            (_, false) => bytes.extend(std::array::from_fn::<u8, 4, _>(|_| kit.random.u8(124..130))),
            (_, true) => bytes.extend([255; 4]),
        }
    }
    bytes
}

fn case(kit: &mut Kit, stock: &Indexer, patched: &[Sm120; 2], format: u32, topk: usize, keys: Keys) {
    const PAGES: usize = 70;
    let n = 5;
    // The fourth row is padding, the fifth keeps all it has.
    let mut rows = kit.rows_at(vec![4 * 4300, 4 * 1801 + 2, 4 * 900, -1, 4 * topk as i32 - 1]);
    let wq_b = kit.weight(weight_format::BF16, HEADS * DIM, RANK);
    let weights_proj = kit.weight(weight_format::BF16, HEADS, 32).data;
    let (q_lora, x) = (kit.tensor(&[n, RANK], 1.0).aligned(), kit.tensor(&[n, 32], 1.0).aligned());
    let (cos, sin) = (kit.tensor(&[20_000, 8], 0.5), kit.tensor(&[20_000, 8], 0.5));
    let bytes: Vec<u8> = (0..PAGES + 3).flat_map(|_| page(kit, format, keys)).collect();
    let bytes = Both::new(&bytes, &[PAGES + 3, bytes.len() / (PAGES + 3)], dtype::U8);
    // Sequences share pages, in orders of their own, and some pages are not there.
    let table: Vec<i32> = (0..n * PAGES)
        .map(|i| if i % 31 == 30 { -1 } else { ((i * 17 + i / PAGES) % (PAGES + 3)) as i32 })
        .collect();
    let table = Both::new(&table, &[n, PAGES], dtype::I32);
    let scale_bytes = 4;
    let data_bytes = if format == layout::KEY_FP8_HADAMARD { DIM } else { DIM / 2 } as u32;
    let (_, batch) = rows.batches();
    let outs: [Both; 3] = std::array::from_fn(|_| Both::out_i32(&[n, topk]));
    let args = |out: &Both| SelectArgs {
        size: size_of::<SelectArgs>() as u32,
        ratio: 4,
        heads: HEADS as u32,
        topk: topk as u32,
        scores_width: 0,
        batch,
        q_lora: q_lora.device(),
        x: x.device(),
        wq_b: wq_b.device(),
        weights_proj: weights_proj.device(),
        rope: RopeTables { cos: cos.device(), sin: sin.device() },
        keys: PoolRef {
            bytes: bytes.device(),
            layout: format,
            entries_per_page: PER_PAGE as u32,
            dim: DIM as u32,
            rope_dim: 16,
            data_bytes,
            scale_bytes,
            table: table.device().data.cast(),
            table_width: PAGES as u32,
        },
        ids: out.device().data.cast(),
        scores: std::ptr::null_mut(),
    };
    // SAFETY: the arguments are those of a device, and the batch lives as long as `rows`.
    unsafe {
        let batch = &*batch;
        stock.select(&kit.ctx(), &args(&outs[0]), batch).unwrap();
        for (patched, out) in patched.iter().zip(&outs[1..]) {
            patched.select(&kit.ctx(), &args(out), batch).unwrap();
        }
    }
    kit.wait();
    let [want, early, late] = outs.each_ref().map(Both::result_i32);
    assert_eq!(early, late, "layout {format}, topk {topk}: with and without early_exit");
    for (row, (want, got)) in want.chunks(topk).zip(early.chunks(topk)).enumerate() {
        assert!(got.is_sorted() || row > 2, "row {row}: {got:?}");
        let common = got.iter().filter(|id| want.contains(id)).count();
        // Products that are summed in another order may change places with their like.
        let differ = if keys == Keys::Any { topk / 50 } else { 0 };
        assert!(
            common + differ >= topk,
            "layout {format}, topk {topk}, row {row}: {common} of {want:?}, got {got:?}"
        );
    }
}

#[test]
fn the_best_are_those_of_all_scores() {
    let mut kit = Kit::new(41);
    let (stock, patched) = (Indexer::load().unwrap(), [true, false].map(|early| Sm120::load(early).unwrap()));
    for format in [layout::KEY_FP8_HADAMARD, layout::KEY_FP4_HADAMARD] {
        for topk in [1, 8, 300, 900] {
            case(&mut kit, &stock, &patched, format, topk, Keys::Any);
        }
        for keys in [Keys::Equal, Keys::Nan] {
            case(&mut kit, &stock, &patched, format, 200, keys);
        }
    }
}

//! `moe.route` and `moe.experts` against truth.

use crate::kit::{Both, Kit, Weights, near};
use hotseam_conformance::truth;
use hotseam_cuda::Buffer;
use hotseam_cuda_kernels::moe::Moe;
use hotseam_sdk::abi::{ExpertRef, ExpertsArgs, RouteArgs, TensorRef, dtype, weight_format};
use hotseam_sdk::ops::Serial;
use hotseam_sdk::views;

#[test]
fn routes_by_scores_and_by_table() {
    let mut kit = Kit::new(11);
    let moe = Moe::load().unwrap();
    for n in [0, 1, 3, 8, 64, 65, 129] {
        for (experts, topk, hidden, format) in [
            (8, 2, 256, weight_format::BF16),
            (40, 3, 160, weight_format::BF16),
            (64, 6, 100, weight_format::F32),
            (260, 8, 64, weight_format::F32),
        ] {
            for hash in [false, true] {
                route(&mut kit, &moe, n, experts, topk, hidden, format, hash);
            }
        }
    }
}

fn route(
    kit: &mut Kit,
    moe: &Moe,
    n: usize,
    experts: usize,
    topk: usize,
    hidden: usize,
    format: u32,
    hash: bool,
) {
    let mut rows = kit.rows(n);
    let (x, gate) = (kit.tensor(&[n, hidden], 1.0), kit.weight(format, experts, hidden));
    let bias = kit.tensor(&[experts], 0.5);
    let table: Vec<i32> = (0..37 * topk).map(|i| ((i / topk * 5 + i % topk * 3) % experts) as i32).collect();
    let table = Both::new(&table, &[37, topk], dtype::I32);
    let tokens: Vec<i32> = (0..n).map(|i| if rows.live(i) { (i * 7 % 37) as i32 } else { -1 }).collect();
    let tokens = Both::new(&tokens, &[n], dtype::I32);
    let outputs = || (Both::out_i32(&[n, topk]), Both::out(&[n, topk]));
    let (want, got) = (outputs(), outputs());
    let (host, device) = rows.batches();
    let args = |on: fn(&Both) -> TensorRef, batch, (ids, weights): &(Both, Both)| RouteArgs {
        size: size_of::<RouteArgs>() as u32,
        topk: topk as u32,
        routed_scale: 1.5,
        batch,
        x: on(&x),
        gate: on(&gate.data),
        bias: if hash { TensorRef::NONE } else { on(&bias) },
        tid2eid: if hash { on(&table) } else { TensorRef::NONE },
        input_ids: on(&tokens).data.cast(),
        ids: on(ids).data.cast(),
        weights: on(weights).data.cast(),
    };
    let (on_host, on_device) = (args(Both::host, host, &want), args(Both::device, device, &got));
    // SAFETY: the arguments point to this function's tensors.
    unsafe {
        truth::route(&Serial, views::Route::from_raw(&on_host).unwrap()).unwrap();
        moe.route(&kit.ctx(), &on_device, &*device).unwrap();
    }
    kit.wait();
    let what = format!("{n} rows, {topk} of {experts}, hash {hash}");
    assert_eq!(got.0.result_i32(), want.0.host_i32(), "{what}");
    near(&what, &got.1.result(), want.1.host_f32(), topk, 1e-5);
}

#[test]
fn experts_in_every_format_and_batch() {
    let mut kit = Kit::new(12);
    let moe = Moe::load().unwrap();
    use weight_format::{BF16, F32, FP8_BLOCK, MXFP4, NVFP4};
    for n in [0, 1, 3, 8, 64, 65] {
        for formats in
            [[F32; 3], [BF16; 3], [FP8_BLOCK; 3], [MXFP4; 3], [NVFP4; 3], [MXFP4, FP8_BLOCK, NVFP4]]
        {
            experts(&mut kit, &moe, n, 6, 2, [192, 160], formats, f32::INFINITY, 1.0);
        }
        experts(&mut kit, &moe, n, 5, 4, [96, 40], [F32; 3], 1.0, 4.0);
        experts(&mut kit, &moe, n, 40, 6, [100, 41], [BF16; 3], 10.0, 1.0);
        // Enough pairs for many warps of the grouping.
        experts(&mut kit, &moe, 2 * n, 40, 6, [32, 16], [NVFP4; 3], 10.0, 1.0);
        // Weights that stream, whatever the number of rows.
        for formats in [[BF16; 3], [FP8_BLOCK; 3], [MXFP4; 3], [NVFP4; 3], [MXFP4, FP8_BLOCK, MXFP4]] {
            experts(&mut kit, &moe, n, 6, 2, [256, 128], formats, 10.0, 1.0);
        }
        // All rows to the same two experts.
        experts(&mut kit, &moe, n, 2, 2, [130, 70], [FP8_BLOCK; 3], 10.0, 1.0);
    }
}

fn experts(
    kit: &mut Kit,
    moe: &Moe,
    n: usize,
    count: usize,
    topk: usize,
    [hidden, inter]: [usize; 2],
    [f1, f2, f3]: [u32; 3],
    limit: f32,
    size: f32,
) {
    let mut rows = kit.rows(n);
    let mut x = kit.tensor(&[n, hidden], size).aligned();
    // A padded row may hold anything.
    for row in (0..n).filter(|row| !rows.live(*row)) {
        x.host_f32_mut()[row * hidden..][..hidden].fill(f32::NAN);
    }
    x.upload();
    let mut ids = Vec::new();
    for row in 0..n {
        let mut chosen: Vec<i32> = (0..count as i32).collect();
        kit.random.shuffle(&mut chosen);
        chosen.truncate(topk);
        if row % 5 == 2 {
            chosen[0] = -1;
        }
        if !rows.live(row) {
            chosen.fill(-1);
        }
        ids.extend(chosen);
    }
    let ids = Both::new(&ids, &[n, topk], dtype::I32);
    let weights = kit.tensor(&[n, topk], 0.5);
    let all: Vec<[Weights; 3]> = (0..count)
        .map(|_| {
            [kit.weight(f1, inter, hidden), kit.weight(f2, hidden, inter), kit.weight(f3, inter, hidden)]
        })
        .collect();
    let refs = |on: fn(&Weights) -> _| -> Vec<ExpertRef> {
        all.iter().map(|[w1, w2, w3]| ExpertRef { w1: on(w1), w2: on(w2), w3: on(w3) }).collect()
    };
    let (host_refs, device_refs) = (refs(Weights::host), refs(Weights::device));
    let in_device = Buffer::of(&device_refs, "experts").unwrap();
    let (want, got) = (Both::out(&[n, hidden]), Both::out(&[n, hidden]));
    let (host, device) = rows.batches();
    let args = |on: fn(&Both) -> TensorRef, batch, experts: &[ExpertRef], out: &Both| ExpertsArgs {
        size: size_of::<ExpertsArgs>() as u32,
        topk: topk as u32,
        n_experts: count as u32,
        swiglu_limit: limit,
        routed_scale: 1.5,
        batch,
        x: on(&x),
        ids: on(&ids).data.cast(),
        weights: on(&weights).data.cast(),
        experts: experts.as_ptr(),
        experts_device: in_device.address() as *const _,
        out: on(out),
    };
    let on_host = args(Both::host, host, &host_refs, &want);
    let on_device = args(Both::device, device, &device_refs, &got);
    // SAFETY: the arguments point to this function's tensors.
    unsafe {
        truth::experts(&Serial, views::Experts::from_raw(&on_host).unwrap()).unwrap();
        moe.experts(&kit.ctx(), &on_device, &*device).unwrap();
    }
    kit.wait();
    let got = got.result();
    for row in 0..n {
        let (got, want) = (&got[row * hidden..][..hidden], &want.host_f32()[row * hidden..][..hidden]);
        let what =
            format!("{n} rows, {topk} of {count}, {hidden} x {inter}, formats {f1} {f2} {f3}, row {row}");
        match rows.live(row) {
            true => near(&what, got, want, hidden, 2e-5),
            false => assert!(got.iter().all(|v| *v == 0.0), "{what}"),
        }
    }
}

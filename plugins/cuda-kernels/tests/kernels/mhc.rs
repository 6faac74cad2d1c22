//! `mhc.pre`, `mhc.post` and `mhc.head` against truth.

use crate::kit::{Both, Kit, near};
use hotseam_conformance::truth;
use hotseam_cuda_kernels::mhc::Mhc;
use hotseam_sdk::abi::{MhcHeadArgs, MhcPostArgs, MhcPreArgs, TensorRef, dtype};
use hotseam_sdk::ops::Serial;
use hotseam_sdk::views;

#[test]
fn all_three_for_every_number_of_streams() {
    let mut kit = Kit::new(21);
    let mhc = Mhc::load().unwrap();
    for n in [0, 1, 3, 8, 65] {
        for (hc, hidden) in [(4, 256), (4, 101), (1, 64), (2, 1500), (3, 40), (8, 64), (16, 20)] {
            pre_and_head(&mut kit, &mhc, n, hc, hidden);
            for in_place in [false, true] {
                post(&mut kit, &mhc, n, hc, hidden, in_place);
            }
        }
    }
}

/// The rows that are not padding.
fn live(values: &[f32], live: impl Fn(usize) -> bool, width: usize) -> Vec<f32> {
    values.chunks(width).enumerate().filter(|(row, _)| live(*row)).flat_map(|(_, v)| v.to_vec()).collect()
}

fn pre_and_head(kit: &mut Kit, mhc: &Mhc, n: usize, hc: usize, hidden: usize) {
    let (mut rows, mix) = (kit.rows(n), (2 + hc) * hc);
    let streams = kit.tensor(&[n, hc, hidden], 2.0);
    let weight = kit.tensor(&[mix, hc * hidden], 2.0 / ((hc * hidden) as f32).sqrt());
    let head_weight = kit.tensor(&[hc, hc * hidden], 2.0 / ((hc * hidden) as f32).sqrt());
    let (base, norm) = (kit.tensor(&[mix], 1.0), kit.tensor(&[hidden], 1.0));
    let head_base = kit.tensor(&[hc], 1.0);
    let scale = Both::new(&[0.8f32, 1.3, 1.1], &[3], dtype::F32);
    let head_scale = Both::new(&[0.9f32], &[1], dtype::F32);
    let outputs = || [&[n, hidden][..], &[n, hc], &[n, hc, hc], &[n, hidden]].map(Both::out);
    let (want, got) = (outputs(), outputs());
    let (host, device) = rows.batches();
    let args = |on: fn(&Both) -> TensorRef, batch, [x, post, comb, _]: &[Both; 4]| MhcPreArgs {
        size: size_of::<MhcPreArgs>() as u32,
        iters: 20,
        hc_eps: 1e-6,
        norm_eps: 1e-6,
        batch,
        streams: on(&streams),
        fn_weight: on(&weight),
        base: on(&base),
        scale: on(&scale),
        next_norm: on(&norm),
        x: on(x),
        post: on(post),
        comb: on(comb),
    };
    let head_args = |on: fn(&Both) -> TensorRef, batch, [_, _, _, x]: &[Both; 4]| MhcHeadArgs {
        size: size_of::<MhcHeadArgs>() as u32,
        hc_eps: 1e-6,
        norm_eps: 1e-6,
        batch,
        streams: on(&streams),
        fn_weight: on(&head_weight),
        base: on(&head_base),
        scale: on(&head_scale),
        x: on(x),
    };
    // SAFETY: the arguments point to this function's tensors.
    unsafe {
        truth::mhc_pre(&Serial, views::MhcPre::from_raw(&args(Both::host, host, &want)).unwrap()).unwrap();
        truth::mhc_head(&Serial, views::MhcHead::from_raw(&head_args(Both::host, host, &want)).unwrap())
            .unwrap();
        mhc.pre(&kit.ctx(), &args(Both::device, device, &got), &*device).unwrap();
        mhc.head(&kit.ctx(), &head_args(Both::device, device, &got), &*device).unwrap();
    }
    kit.wait();
    for ((name, width), (got, want)) in
        [("x", hidden), ("post", hc), ("comb", hc * hc), ("head", hidden)].iter().zip(got.iter().zip(&want))
    {
        let what = format!("{name}, {n} rows, {hc} streams of {hidden}");
        let pick = |values: &[f32]| live(values, |row| rows.live(row), *width);
        near(&what, &pick(&got.result()), &pick(want.host_f32()), *width, 2e-5);
    }
}

fn post(kit: &mut Kit, mhc: &Mhc, n: usize, hc: usize, hidden: usize, in_place: bool) {
    let mut rows = kit.rows(n);
    let (f, streams) = (kit.tensor(&[n, hidden], 1.0), kit.tensor(&[n, hc, hidden], 2.0));
    let (post, comb) = (kit.tensor(&[n, hc], 1.0), kit.tensor(&[n, hc, hc], 0.5));
    let (want, got) = (Both::out(&[n, hc, hidden]), Both::out(&[n, hc, hidden]));
    let (host, device) = rows.batches();
    let args = |on: fn(&Both) -> TensorRef, batch, out: &Both| MhcPostArgs {
        size: size_of::<MhcPostArgs>() as u32,
        batch,
        f: on(&f),
        streams: on(&streams),
        post: on(&post),
        comb: on(&comb),
        out: on(out),
    };
    let before = streams.host_f32().to_vec();
    let got = if in_place { &streams } else { &got };
    // SAFETY: the arguments point to this function's tensors. Truth copies the streams to `out` if it is another.
    unsafe {
        mhc.post(&kit.ctx(), &args(Both::device, device, got), &*device).unwrap();
        kit.wait();
        truth::mhc_post(&Serial, views::MhcPost::from_raw(&args(Both::host, host, &want)).unwrap()).unwrap();
    }
    let width = hc * hidden;
    let got = got.result();
    let pick = |values: &[f32]| live(values, |row| rows.live(row), width);
    near("post", &pick(&got), &pick(want.host_f32()), hidden, 2e-6);
    if in_place {
        let padded = |values: &[f32]| live(values, |row| !rows.live(row), width);
        assert_eq!(padded(&got), padded(&before));
    }
}

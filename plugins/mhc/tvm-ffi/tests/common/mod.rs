//! Calls of the shim on random rows, and the files it loads.
#![allow(dead_code, reason = "no test uses all of it")]

use hotseam_mhc_tvm_ffi::{Options, TvmFfi};
use hotseam_sdk::Result;
use hotseam_sdk::abi::SeqSpan;
use hotseam_sdk::views::{MhcPost, Rows};
use sha2::{Digest, Sha256};
use std::path::Path;

/// Rows and width of a stream in every call.
const ROWS: usize = 3;
const HIDDEN: usize = 20;

pub(crate) fn sha256(path: &Path) -> String {
    Sha256::digest(std::fs::read(path).unwrap()).iter().map(|b| format!("{b:02x}")).collect()
}

pub(crate) fn options(runtime: &Path, module: &Path) -> Options {
    Options {
        module: module.to_str().unwrap().to_owned(),
        module_sha256: sha256(module),
        function: "mhc_post".to_owned(),
        runtime: runtime.to_str().unwrap().to_owned(),
        runtime_sha256: sha256(runtime),
    }
}

/// Runs the shim on `hc` streams; returns (found, expected).
pub(crate) fn run(shim: &TvmFfi, hc: usize) -> Result<(Vec<f32>, Vec<f32>)> {
    let mut state = 7u64;
    let mut random = |n: usize| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1 << 23) as f32 - 1.0
        };
        (0..n).map(|_| next()).collect()
    };
    let (f, post, comb) = (random(ROWS * HIDDEN), random(ROWS * hc), random(ROWS * hc * hc));
    let before = random(ROWS * hc * HIDDEN);
    let mut streams = before.clone();
    let seqs = [SeqSpan { row_begin: 0, row_count: ROWS as u32, position: 0, chunk: 0 }];
    let rows = Rows { positions: &[0, 1, 2], row_seq: &[0, 0, 0], seqs: &seqs };
    let mut view =
        MhcPost { rows, hc, hidden: HIDDEN, f: &f, post: &post, comb: &comb, streams: &mut streams };
    shim.run(&mut view)?;
    let at = |i: usize| (i / (hc * HIDDEN), i / HIDDEN % hc, i % HIDDEN);
    let expected = (0..before.len()).map(|index| {
        let (row, k, d) = at(index);
        let mixed: f32 =
            (0..hc).map(|i| comb[(row * hc + i) * hc + k] * before[(row * hc + i) * HIDDEN + d]).sum();
        post[row * hc + k] * f[row * HIDDEN + d] + mixed
    });
    let expected = expected.collect();
    Ok((streams, expected))
}

/// Whether two results are alike up to rounding.
pub(crate) fn close((found, expected): &(Vec<f32>, Vec<f32>)) -> bool {
    found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-5)
}

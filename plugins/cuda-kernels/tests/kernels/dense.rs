//! Products by cuBLASLt: with `HOTSEAM_CUDA=device` by the library that the linker finds, else by a stand-in in C.

use super::kit::{Both, Kit, near};
use hotseam_cuda_kernels::ops::{Dense, Ops};
use hotseam_sdk::abi::weight_format::{BF16, F32, FP8_BLOCK, MXFP4, NVFP4};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;

/// Makes the stand-in the library of its name in this process, unless the device is the machine's own.
fn library() {
    static OPENED: OnceLock<()> = OnceLock::new();
    OPENED.get_or_init(|| {
        if hotseam_cuda_emulator::is_real() {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let out = dir.path().join("libcublasLt.so.13");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/cublaslt.c");
        let mut command = Command::new("cc");
        command.args([
            "-std=c11",
            "-O2",
            "-ffp-contract=off",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-shared",
            "-fPIC",
        ]);
        command.arg("-Wl,-soname,libcublasLt.so.13").arg("-o").arg(&out).arg(source);
        assert!(command.status().unwrap().success(), "the stand-in compiles");
        // SAFETY: the library is the project's own, and stays open.
        std::mem::forget(unsafe { libloading::Library::new(&out) }.unwrap());
    });
}

#[test]
fn products_are_as_exact_as_those_of_the_kernels() {
    library();
    let mut kit = Kit::new(12);
    let (ops, stream) = (Ops::load().unwrap(), kit.stream.raw());
    let mut dense = Dense::open(1 << 20, 1 << 20).unwrap();
    let mut left = Vec::new();
    for format in [BF16, FP8_BLOCK] {
        for (rows, groups, n, k) in
            [(256, 1, 64, 128), (257, 1, 130, 128), (511, 1, 33, 384), (513, 2, 128, 256), (260, 4, 128, 128)]
        {
            let mut x = kit.tensor(&[rows, groups, k], 1.0);
            // A NaN stays in its row.
            x.host_f32_mut()[(rows - 1) * groups * k + 3] = f32::NAN;
            x.upload();
            let w = kit.weight(format, groups * n, k);
            assert!(Dense::serves(rows as i64, &w.device()));
            let y = Both::out(&[rows, groups, n]);
            assert!(dense.input(&ops, stream, &x.device()).unwrap());
            if !dense.product(&ops, stream, &x.device(), &w.device(), &y.device()).unwrap() {
                left.push((rows, groups, n, k));
                continue;
            }
            kit.wait();
            let (values, x) = (w.values(), x.host_f32());
            let mut want = Vec::with_capacity(rows * groups * n);
            for row in 0..rows * groups {
                let of = &x[row * k..][..k];
                for output in 0..n {
                    let w = &values[(row % groups * n + output) * k..][..k];
                    want.push(
                        of.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w)).sum::<f64>() as f32
                    );
                }
            }
            let (got, last) = (y.result(), (rows - 1) * groups * n);
            near(&format!("{format}, {rows}, {groups}, {n}, {k}"), &got[..last], &want[..last], n, 2e-5);
            assert!(got[last..][..n].iter().all(|v| v.is_nan()), "{rows}");
        }
    }
    // Outputs that are no multiple of eight, and groups of an odd number of rows, may be left to the kernels; all others are made.
    println!("left: {left:?}");
    assert!(left.iter().all(|(rows, groups, n, _)| n % 8 != 0 || *groups > 1 && rows % 2 == 1), "{left:?}");
}

#[test]
fn what_it_does_not_serve_is_left_to_the_kernels() {
    library();
    let mut kit = Kit::new(13);
    let (ops, stream) = (Ops::load().unwrap(), kit.stream.raw());
    let mut dense = Dense::open(1 << 20, 1 << 20).unwrap();
    for format in [F32, MXFP4, NVFP4] {
        assert!(!Dense::serves(1024, &kit.weight(format, 32, 64).device()), "{format}");
    }
    let mut small = Dense::open(256 * 64 - 256, 127 * 64).unwrap();
    let x = kit.tensor(&[256, 1, 64], 1.0);
    assert!(!small.input(&ops, stream, &x.device()).unwrap(), "a larger input than was announced");
    let x = kit.tensor(&[256, 1, 32], 1.0);
    assert!(small.input(&ops, stream, &x.device()).unwrap());
    let w = kit.weight(FP8_BLOCK, 256, 32);
    assert!(
        !small.product(&ops, stream, &x.device(), &w.device(), &Both::out(&[256, 256]).device()).unwrap()
    );
    let w = kit.weight(BF16, 32, 64);
    assert!(!Dense::serves(255, &w.device()) && Dense::serves(256, &w.device()));
    let (x, y) = (kit.tensor(&[256, 1, 64], 1.0), Both::out(&[256, 16]));
    assert!(dense.input(&ops, stream, &x.device()).unwrap());
    let error = dense.product(&ops, stream, &x.device(), &w.device(), &y.device()).unwrap_err();
    assert!(error.message.contains("groups of 64 inputs"), "{}", error.message);
    if !hotseam_cuda_emulator::is_real() {
        // The stand-in has no way where rows begin within a word.
        let (w, x, y) = (kit.weight(BF16, 8, 33), kit.tensor(&[256, 1, 33], 1.0), Both::out(&[256, 8]));
        assert!(dense.input(&ops, stream, &x.device()).unwrap());
        assert!(!dense.product(&ops, stream, &x.device(), &w.device(), &y.device()).unwrap());
    }
}

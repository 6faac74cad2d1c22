//! The host's own operations.

use crate::kit::{Both, Kit, near};
use hotseam_conformance::truth::numbers::{self, dot};
use hotseam_cuda_kernels::ops::Ops;
use hotseam_sdk::abi::{RopeTables, dtype, weight_format};

const FORMATS: [u32; 5] = [
    weight_format::F32,
    weight_format::BF16,
    weight_format::FP8_BLOCK,
    weight_format::MXFP4,
    weight_format::NVFP4,
];

fn product(x: &[f32], w: &[f32], k: usize) -> Vec<f32> {
    x.chunks_exact(k).flat_map(|x| w.chunks_exact(k).map(|w| dot(w, x) as f32)).collect()
}

#[test]
fn products_in_every_format_for_few_and_many_rows() {
    let mut kit = Kit::new(1);
    let ops = Ops::load().unwrap();
    for format in FORMATS {
        for (rows, n, k) in [
            (1, 7, 96),
            (2, 130, 1184),
            (3, 64, 544),
            (8, 33, 128),
            (15, 65, 160),
            (65, 130, 192),
            (130, 6, 96),
        ] {
            let (w, other, x) =
                (kit.weight(format, n, k), kit.weight(weight_format::F32, 5, k), kit.tensor(&[rows, k], 1.0));
            let (y, z) = (Both::out(&[rows, n]), Both::out(&[rows, 5]));
            ops.linears(
                kit.stream.raw(),
                &x.device(),
                &[(w.device(), y.device()), (other.device(), z.device())],
            )
            .unwrap();
            kit.wait();
            let what = format!("format {format}, {rows} rows, {n} x {k}");
            near(&what, &y.result(), &product(x.host_f32(), &w.values(), k), n, 1e-5);
            near(&what, &z.result(), &product(x.host_f32(), &other.values(), k), 5, 1e-5);
        }
    }
}

#[test]
fn weights_that_stream() {
    let mut kit = Kit::new(8);
    let ops = Ops::load().unwrap();
    for format in FORMATS {
        // One, two and four tiles a block; inputs of one stage, of no whole number of stages, and more than a warp has scales of.
        for (n, k) in [(2, 128), (130, 1152), (40, 32 * 3 * 128 + 256), (4240, 256), (17000, 128)] {
            let (w, other) = (kit.weight(format, n, k), kit.weight(weight_format::BF16, 6, k));
            let (values, others) = (w.values(), other.values());
            let mut before: Vec<f32> = Vec::new();
            for rows in [1usize, 2, 7, 8, 17] {
                if rows > 2 && n > 1000 && rows != 8 {
                    continue;
                }
                let mut x = kit.tensor(&[rows, k], 1.0).aligned();
                // Rows of very different size, the first the same in all batches.
                for (i, row) in x.host_f32_mut().chunks_mut(k).enumerate() {
                    row.iter_mut().for_each(|v| *v *= [1.0, 1e-20, 3e18, 0.0][i % 4]);
                    if i == 0 {
                        row.copy_from_slice(&(0..k).map(|i| (i as f32 * 0.7).sin()).collect::<Vec<_>>());
                    }
                }
                x.upload();
                let (y, z) = (Both::out(&[rows, n]), Both::out(&[rows, 6]));
                ops.linears(
                    kit.stream.raw(),
                    &x.device(),
                    &[(w.device(), y.device()), (other.device(), z.device())],
                )
                .unwrap();
                kit.wait();
                let what = format!("format {format}, {rows} rows, {n} x {k}");
                near(&what, &y.result(), &product(x.host_f32(), &values, k), n, 1e-5);
                near(&what, &z.result(), &product(x.host_f32(), &others, k), 6, 1e-5);
                let first = y.result()[..n].to_vec();
                assert!(before.is_empty() || before == first, "{what}: the first row is another");
                before = first;
            }
        }
    }
}

/// Multiplies rows of the unit matrix, `rows` at a time: each product is one value of a weight, plus zeros.
fn weights_come_out(kit: &mut Kit, ops: &Ops, format: u32, [n, k]: [usize; 2], rows: usize) {
    let w = kit.weight(format, n, k);
    for first in (0..k).step_by(rows) {
        let unit: Vec<f32> = (0..rows * k).map(|i| if i % k == first + i / k { 1.0 } else { 0.0 }).collect();
        let x = Both::new(&unit, &[rows, k], dtype::F32);
        let y = Both::out(&[rows, n]);
        ops.linear(kit.stream.raw(), &x.device(), &w.device(), &y.device()).unwrap();
        kit.wait();
        let (values, got) = (w.values(), y.result());
        for (i, got) in got.iter().enumerate() {
            let want = values[i % n * k + first + i / n];
            assert_eq!(*got, want, "format {format}, row {}, input {}", i % n, first + i / n);
        }
    }
}

#[test]
fn weights_are_the_hosts_to_the_bit() {
    let mut kit = Kit::new(2);
    let ops = Ops::load().unwrap();
    for format in FORMATS {
        for rows in [8, 288] {
            weights_come_out(&mut kit, &ops, format, [9, 288], rows);
        }
        // Those that stream.
        weights_come_out(&mut kit, &ops, format, [18, 256], 8);
    }
}

#[test]
fn widths_that_no_vector_divides() {
    let mut kit = Kit::new(3);
    let ops = Ops::load().unwrap();
    for format in [weight_format::F32, weight_format::BF16, weight_format::FP8_BLOCK] {
        for (rows, k) in [(1, 1), (3, 101), (70, 131), (8, 1029)] {
            let (w, x) = (kit.weight(format, 11, k), kit.tensor(&[rows, k], 1.0));
            let y = Both::out(&[rows, 11]);
            ops.linear(kit.stream.raw(), &x.device(), &w.device(), &y.device()).unwrap();
            kit.wait();
            near("odd", &y.result(), &product(x.host_f32(), &w.values(), k), 11, 1e-5);
        }
    }
}

#[test]
fn grouped_products_take_each_group_its_rows() {
    let mut kit = Kit::new(4);
    let ops = Ops::load().unwrap();
    for (rows, groups, n, k) in
        [(1, 4, 40, 96), (9, 2, 100, 160), (70, 3, 70, 64), (2, 3, 64, 96), (9, 2, 192, 160)]
    {
        let w = kit.weight(weight_format::FP8_BLOCK, groups * n, k);
        let (x, y) = (kit.tensor(&[rows, groups, k], 1.0).aligned(), Both::out(&[rows, groups, n]));
        ops.linear_grouped(kit.stream.raw(), &x.device(), &w.device(), &y.device()).unwrap();
        kit.wait();
        let values = w.values();
        let want: Vec<f32> = (x.host_f32().chunks_exact(k).enumerate())
            .flat_map(|(i, x)| product(x, &values[i % groups * n * k..][..n * k], k))
            .collect();
        near("grouped", &y.result(), &want, n, 1e-5);
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    let mut kit = Kit::new(5);
    let ops = Ops::load().unwrap();
    for rows in [3, 8, 80] {
        let (w, mut x) = (kit.weight(weight_format::BF16, 40, 96), kit.tensor(&[rows, 96], 1.0));
        x.host_f32_mut()[96 + 5] = f32::NAN;
        x.upload();
        let y = Both::out(&[rows, 40]);
        ops.linear(kit.stream.raw(), &x.device(), &w.device(), &y.device()).unwrap();
        kit.wait();
        for (row, y) in y.result().chunks(40).enumerate() {
            assert!(y.iter().all(|v| v.is_nan() == (row == 1)), "row {row}");
        }
    }
}

#[test]
fn embedding_norm_and_rope() {
    let mut kit = Kit::new(6);
    let ops = Ops::load().unwrap();
    let stream = kit.stream.raw();
    for format in [weight_format::F32, weight_format::BF16] {
        let table = kit.weight(format, 11, 100);
        let tokens = [3, 10, -1, 0, 11];
        let out = Both::out(&[5, 3, 100]);
        ops.embed(
            stream,
            &table.data.device(),
            &Both::new(&tokens, &[5], dtype::I32).device(),
            &out.device(),
        )
        .unwrap();
        kit.wait();
        let values = table.values();
        for (i, stream) in out.result().chunks(100).enumerate() {
            let want = match tokens[i / 3] {
                token @ 0..11 => values[token as usize * 100..][..100].to_vec(),
                _ => vec![0.0; 100],
            };
            assert_eq!(stream, want, "stream {i}");
        }
    }
    for width in [5, 100, 2048] {
        let (x, weight, out) =
            (kit.tensor(&[3, width], 2.0), kit.tensor(&[width], 1.0), Both::out(&[3, width]));
        let mut want = vec![0.0; 3 * width];
        for (x, out) in x.host_f32().chunks(width).zip(want.chunks_mut(width)) {
            numbers::rms_norm(x, weight.host_f32(), 1e-6, out);
        }
        ops.rms_norm(stream, &x.device(), &weight.device(), 1e-6, &out.device()).unwrap();
        ops.rms_norm(stream, &x.device(), &weight.device(), 1e-6, &x.device()).unwrap();
        kit.wait();
        near("norm", &out.result(), &want, width, 1e-6);
        near("norm in place", &x.result(), &want, width, 1e-6);
    }
    let (rows, heads, dim, pairs) = (7, 3, 100, 9);
    let angles = kit.floats(40 * pairs, 3.0);
    let cos: Vec<f32> = angles.iter().map(|a| a.cos()).collect();
    let sin: Vec<f32> = angles.iter().map(|a| a.sin()).collect();
    let tables = [Both::new(&cos, &[40, pairs], dtype::F32), Both::new(&sin, &[40, pairs], dtype::F32)];
    let rope = RopeTables { cos: tables[0].device(), sin: tables[1].device() };
    let positions = kit.rows(rows);
    let q = kit.tensor(&[rows, heads, dim], 2.0);
    let (mut turned, mut back) = (q.host_f32().to_vec(), Vec::new());
    for (i, head) in turned.chunks_mut(dim).enumerate() {
        if let Ok(position) = usize::try_from(positions.positions[i / heads]) {
            let plain = head.to_vec();
            numbers::rms_norm(&plain, &vec![1.0; dim], 1e-6, head);
            back.extend_from_slice(head);
            numbers::rope(head, &cos[position * pairs..][..pairs], &sin[position * pairs..][..pairs], false);
        } else {
            back.extend_from_slice(head);
        }
    }
    ops.norm_and_rope(stream, &q.device(), &positions.tensor.device(), &rope, 1e-6).unwrap();
    kit.wait();
    near("rope", &q.result(), &turned, dim, 2e-6);
    ops.inverse_rope(stream, &q.device(), &positions.tensor.device(), &rope).unwrap();
    kit.wait();
    near("rope and back", &q.result(), &back, dim, 3e-6);
}

#[test]
fn activation_addition_and_rows() {
    let mut kit = Kit::new(7);
    let ops = Ops::load().unwrap();
    let stream = kit.stream.raw();
    let (gate, up, x) =
        (kit.tensor(&[5, 130], 20.0), kit.tensor(&[5, 130], 20.0), kit.tensor(&[5, 130], 1.0));
    let want: Vec<f32> = (gate.host_f32().iter().zip(up.host_f32()).zip(x.host_f32()))
        .map(|((g, u), x)| {
            let (g, u) = (f64::from(g.min(10.0)), f64::from(u.clamp(-10.0, 10.0)));
            (g * numbers::sigmoid(g) * u + f64::from(*x)) as f32
        })
        .collect();
    ops.swiglu(stream, &gate.device(), &up.device(), 10.0).unwrap();
    ops.add(stream, &x.device(), &up.device()).unwrap();
    kit.wait();
    near("swiglu", &up.result(), &want, 130, 1e-6);

    let rows = [4, 0, 5, -1, 4];
    let out = Both::out(&[5, 130]);
    ops.gather(stream, &x.device(), &Both::new(&rows, &[5], dtype::I32).device(), &out.device()).unwrap();
    kit.wait();
    for (row, out) in rows.iter().zip(out.result().chunks(130)) {
        let want = if (0..5).contains(row) {
            x.host_f32()[*row as usize * 130..][..130].to_vec()
        } else {
            vec![0.0; 130]
        };
        assert_eq!(out, want, "row {row}");
    }
}

#[test]
fn experts_are_numbered_as_a_rank_has_them() {
    let kit = Kit::new(8);
    let ops = Ops::load().unwrap();
    // More than a block of threads has, with everything that a buffer may hold.
    let ids: Vec<i32> = (0..1000).map(|i| [i % 13 - 1, i32::MIN, i32::MAX, 4, 8][i as usize % 5]).collect();
    let n = [ids.len()];
    for (first, count) in [(0, 4), (4, 4), (8, 1), (11, 1), (0, 12)] {
        let out = Both::out_i32(&n);
        let all = Both::new(&ids, &n, dtype::I32);
        ops.local_experts(kit.stream.raw(), &all.device(), (first, count), &out.device()).unwrap();
        kit.wait();
        let local = |id: &i32| if (first..first + count).contains(id) { id - first } else { -1 };
        let want: Vec<i32> = ids.iter().map(local).collect();
        assert_eq!(out.result_i32(), want, "{count} experts from {first}");
    }
}

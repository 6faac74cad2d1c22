use super::*;
use crate::DType;
use std::sync::Arc;

/// Bytes that differ from each other in any order of rows and columns.
fn bytes(n: usize, salt: usize) -> Vec<u8> {
    (0..n).map(|i| ((i * 37 + i / 251 + salt) % 241) as u8).collect()
}

/// A matrix of a format over bytes in a region, as a mapped file has them.
fn matrix(format: Format, n: usize, k: usize) -> Matrix {
    let region = |(dtype, shape): (DType, [usize; 2]), salt| {
        let mut owner = bytes(dtype.size() * shape[0] * shape[1], salt);
        if dtype == DType::F32 || dtype == DType::Bf16 {
            // No infinities or NaNs, which are equal to nothing.
            owner.iter_mut().skip(dtype.size() - 1).step_by(dtype.size()).for_each(|byte| *byte = 0x3e);
        }
        if dtype == DType::E4m3 || dtype == DType::E8m0 {
            owner.iter_mut().for_each(|byte| *byte = 100 + *byte % 26);
        }
        Tensor::from_region(dtype, shape.to_vec(), Arc::new(owner), 0).unwrap()
    };
    let (data, scales) = (region(format.data(n, k), 1), format.scales(n, k).map(|of| region(of, 5)));
    match (format, scales) {
        (Format::F32 | Format::Bf16, _) => Matrix::dense(data),
        (Format::Fp8Block, Some(scales)) => Matrix::fp8(data, scales),
        (Format::Mxfp4, Some(scales)) => Matrix::mxfp4(data, scales),
        (Format::Nvfp4, Some(scales)) => Matrix::nvfp4(data, scales, 0.5),
        (format, None) => panic!("{format} has scales"),
    }
    .unwrap()
}

#[test]
fn parts_of_a_matrix_hold_the_values_of_the_whole_in_every_format() {
    let (n, k) = (256, 384);
    for format in Format::ALL {
        let whole = matrix(format, n, k);
        let values = whole.to_f32_vec();
        for rows in [0..128, 128..256, 0..256, 32..64, 224..256, 64..64] {
            let part = whole.rows(rows.clone()).unwrap_or_else(|e| panic!("{format} rows {rows:?}: {e}"));
            assert_eq!((part.n, part.k), (rows.len(), k));
            assert_eq!(part.to_f32_vec(), values[rows.start * k..rows.end * k], "{format} rows {rows:?}");
        }
        for columns in [0..128, 128..384, 256..384, 32..64, 96..128, 0..384] {
            let part = whole
                .columns(columns.clone())
                .unwrap_or_else(|e| panic!("{format} columns {columns:?}: {e}"));
            assert_eq!((part.n, part.k), (n, columns.len()));
            let expected: Vec<f32> =
                values.chunks(k).flat_map(|row| &row[columns.clone()]).copied().collect();
            assert_eq!(part.to_f32_vec(), expected, "{format} columns {columns:?}");
        }
    }
}

#[test]
fn rows_of_a_mapped_file_are_not_copied() {
    let whole = matrix(Format::Fp8Block, 256, 128);
    let part = whole.rows(128..256).unwrap();
    assert_eq!(part.data.bytes_ptr(), whole.data.bytes()[128 * 128..].as_ptr());
}

#[test]
fn a_part_that_cuts_a_block_is_refused_by_name() {
    let whole = matrix(Format::Fp8Block, 384, 384);
    for (part, text) in [
        (whole.rows(96..192), "rows 96 to 192 of a fp8 matrix of 384 cut a block of 128"),
        (whole.columns(192..384), "columns 192 to 384 of a fp8 matrix of 384 cut a block of 128"),
        (
            matrix(Format::Mxfp4, 4, 64).columns(16..64),
            "columns 16 to 64 of a mxfp4 matrix of 64 cut a block of 32",
        ),
        (
            matrix(Format::Nvfp4, 4, 64).columns(8..64),
            "columns 8 to 64 of a nvfp4 matrix of 64 cut a block of 16",
        ),
    ] {
        let error = part.expect_err("a cut block").to_string();
        assert!(error.starts_with(text), "{error}");
    }
    assert!(matches!(whole.data.rows(300..400), Err(TensorError::Length { .. })));
    assert!(matches!(whole.data.columns(300..400), Err(TensorError::Length { .. })));
}

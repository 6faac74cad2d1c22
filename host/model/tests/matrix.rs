//! Matrices in each format: what the constructors admit, sizes, and values by hand.

use hotseam_model::{DType, Format, Matrix, MatrixError, Tensor};

fn bytes(dtype: DType, shape: [usize; 2], fill: impl Fn(usize) -> u8) -> Tensor {
    let data = (0..shape[0] * shape[1]).map(fill).collect();
    Tensor::from_bytes(dtype, shape.to_vec(), data).unwrap()
}

#[test]
fn dense_values_are_kept() {
    let m = Matrix::dense(Tensor::from_f32(vec![2, 3], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap()).unwrap();
    assert_eq!((m.format, m.n, m.k, m.byte_len()), (Format::F32, 2, 3, 24));
    assert_eq!(m.to_f32_vec(), [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let m = Matrix::dense(Tensor::from_bf16(vec![2, 2], &[0x3f80, 0xc000, 0x4040, 0]).unwrap()).unwrap();
    assert_eq!((m.format, m.byte_len()), (Format::Bf16, 8));
    assert_eq!(m.to_f32_vec(), [1.0, -2.0, 3.0, 0.0]);
}

#[test]
fn fp8_blocks_reach_over_the_edges() {
    let (n, k) = (130, 257);
    // Code 0x38 is 1; scales 2^0, 2^1, ... in block order.
    let m = Matrix::fp8(bytes(DType::E4m3, [n, k], |_| 0x38), bytes(DType::E8m0, [2, 3], |i| 127 + i as u8))
        .unwrap();
    let values = m.to_f32_vec();
    for (row, column, exponent) in
        [(0, 0, 0), (127, 127, 0), (0, 128, 1), (127, 256, 2), (128, 0, 3), (129, 255, 4), (129, 256, 5)]
    {
        assert_eq!(values[row * k + column], 2f32.powi(exponent), "[{row}, {column}]");
    }
    assert_eq!(m.byte_len(), n * k + 6);
}

#[test]
fn fp4_pairs_begin_with_the_lower_half() {
    // Columns 0, 1 are codes 2 (1.0) and 13 (-3.0).
    let codes = bytes(DType::U8, [2, 32], |_| 0xd2);
    let m = Matrix::mxfp4(codes.clone(), bytes(DType::E8m0, [2, 2], |i| 126 + i as u8)).unwrap();
    let values = m.to_f32_vec();
    assert_eq!(values[..2], [0.5, -1.5]);
    assert_eq!(values[30..34], [0.5, -1.5, 1.0, -3.0]);
    assert_eq!(values[64..66], [2.0, -6.0]);
    assert_eq!(m.byte_len(), 64 + 4);

    let m = Matrix::nvfp4(codes, bytes(DType::E4m3, [2, 4], |i| [0x38, 0x40][i % 2]), 0.1).unwrap();
    let values = m.to_f32_vec();
    assert_eq!(values[14..18], [0.1, -3.0 * 0.1, 2.0 * 0.1, -6.0 * 0.1]);
    assert_eq!(m.byte_len(), 64 + 8 + 4);
    let mut row = vec![0.0; 64];
    m.read_row(1, &mut row);
    assert_eq!(row, values[64..]);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let u8s = |shape| bytes(DType::U8, shape, |_| 0);
    let e8 = |shape| bytes(DType::E8m0, shape, |_| 127);
    let e4 = |shape| bytes(DType::E4m3, shape, |_| 0);
    for error in [
        Matrix::dense(Tensor::from_i32(vec![1, 1], &[0]).unwrap()).unwrap_err(),
        Matrix::dense(Tensor::from_f32(vec![4], &[0.0; 4]).unwrap()).unwrap_err(),
        Matrix::fp8(u8s([2, 2]), e8([1, 1])).unwrap_err(),
        Matrix::mxfp4(e4([2, 16]), e8([2, 1])).unwrap_err(),
    ] {
        assert!(matches!(error, MatrixError::Data { .. }), "{error}");
    }
    for error in [
        Matrix::fp8(e4([129, 128]), e8([1, 1])).unwrap_err(),
        Matrix::fp8(e4([128, 128]), e4([1, 1])).unwrap_err(),
        Matrix::mxfp4(u8s([2, 32]), e8([2, 4])).unwrap_err(),
        Matrix::nvfp4(u8s([2, 32]), e4([2, 2]), 1.0).unwrap_err(),
        Matrix::nvfp4(u8s([2, 32]), e8([2, 4]), 1.0).unwrap_err(),
    ] {
        assert!(matches!(error, MatrixError::Scales { .. }), "{error}");
    }
    let error = Matrix::mxfp4(u8s([2, 24]), e8([2, 1])).unwrap_err();
    assert_eq!(error, MatrixError::Group { format: Format::Mxfp4, k: 48 });
    assert_eq!(error.to_string(), "mxfp4 weights: expected rows of a multiple of 32 values, found 48");
    for global in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let error = Matrix::nvfp4(u8s([2, 32]), e4([2, 4]), global).unwrap_err();
        assert!(matches!(error, MatrixError::Global(_)), "{error}");
    }
}

#[test]
fn sizes_are_those_of_the_parts() {
    for format in Format::ALL {
        let (dtype, shape) = format.data(256, 512);
        let global = usize::from(format == Format::Nvfp4) * 4;
        let scales = format.scales(256, 512).map_or(0, |(_, [a, b])| a * b);
        let codes = shape[0] * shape[1] * dtype.size();
        assert_eq!(format.byte_len(256, 512), codes + scales + global, "{format}");
    }
    // 0.53125 bytes a parameter.
    assert_eq!(Format::Mxfp4.byte_len(1, 1 << 20), 557_056);
}

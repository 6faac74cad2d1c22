//! Tensors that lie on the host and on the device, and comparisons.

use hotseam_cuda::{Buffer, Device, Stream, copy_from_device, copy_to_device};
use hotseam_loader::host_services;
use hotseam_sdk::Ctx;
use hotseam_sdk::abi::{Batch, StepCtx, TensorRef, WeightRef, device, dtype, phase, weight_format};

/// Workspace of a call: small, so that larger batches are taken in chunks.
const WORKSPACE: usize = 64 * 1024;

/// The device, a stream and a workspace.
pub(crate) struct Kit {
    pub(crate) random: fastrand::Rng,
    pub(crate) stream: Stream,
    workspace: Buffer,
    device: Device,
}

impl Kit {
    pub(crate) fn new(seed: u64) -> Self {
        assert!(
            hotseam_cuda_emulator::device(),
            "g++, which builds the emulated device, is needed to test kernels"
        );
        let device = Device::open(0).expect("a device");
        Self {
            random: fastrand::Rng::with_seed(seed),
            stream: Stream::new().expect("a stream"),
            workspace: Buffer::new(WORKSPACE, "workspace").expect("memory"),
            device,
        }
    }

    pub(crate) fn ctx(&self) -> Ctx {
        let raw = StepCtx {
            size: size_of::<StepCtx>() as u32,
            phase: phase::DECODE,
            layer: 3,
            layer_class: 0,
            rank: 0,
            world: 1,
            step: 0,
            stream: self.stream.raw(),
            workspace: self.workspace.address() as *mut _,
            workspace_bytes: WORKSPACE as u64,
            host: host_services(),
        };
        // SAFETY: the struct is valid, and so are the services.
        unsafe { Ctx::from_raw(&raw const raw) }
    }

    pub(crate) fn wait(&self) {
        self.device.synchronize().expect("no fault");
    }

    /// Numbers of both signs around 0, of about `size`.
    pub(crate) fn floats(&mut self, n: usize, size: f32) -> Vec<f32> {
        (0..n)
            .map(|_| size * (self.random.f32() + self.random.f32() + self.random.f32() - 1.5) * 2.0)
            .collect()
    }

    pub(crate) fn tensor(&mut self, shape: &[usize], size: f32) -> Both {
        let values = self.floats(shape.iter().product(), size);
        Both::new(&values, shape, dtype::F32)
    }

    /// A matrix of any format, none of whose values is NaN.
    pub(crate) fn weight(&mut self, format: u32, n: usize, k: usize) -> Weights {
        let byte = |random: &mut fastrand::Rng| random.u8(..);
        let scale = 2.0 / (k as f32).sqrt();
        let (data, scales) = match format {
            weight_format::F32 => (self.tensor(&[n, k], scale), None),
            weight_format::BF16 => {
                let bits: Vec<u16> =
                    self.floats(n * k, scale).iter().map(|v| (v.to_bits() >> 16) as u16).collect();
                (Both::new(&bits, &[n, k], dtype::BF16), None)
            }
            weight_format::FP8_BLOCK => {
                let codes: Vec<u8> = (0..n * k)
                    .map(|_| {
                        loop {
                            let code = byte(&mut self.random);
                            if code & 0x7f != 0x7f {
                                break code;
                            }
                        }
                    })
                    .collect();
                let shape = [n.div_ceil(128), k.div_ceil(128)];
                let scales: Vec<u8> = (0..shape[0] * shape[1]).map(|_| self.random.u8(116..122)).collect();
                (Both::new(&codes, &[n, k], dtype::E4M3), Some(Both::new(&scales, &shape, dtype::E8M0)))
            }
            _ => {
                let codes: Vec<u8> = (0..n * k / 2).map(|_| byte(&mut self.random)).collect();
                let (group, kind, range) = match format {
                    weight_format::MXFP4 => (32, dtype::E8M0, 116..125),
                    _ => (16, dtype::E4M3, 0x01..0x7f),
                };
                let scales: Vec<u8> = (0..n * k / group).map(|_| self.random.u8(range.clone())).collect();
                let scales = Both::new(&scales, &[n, k / group], kind);
                (Both::new(&codes, &[n, k / 2], dtype::U8), Some(scales))
            }
        };
        let global = if format == weight_format::NVFP4 { 0.0037 } else { 1.0 };
        Weights { format, global, data, scales, n, k }
    }

    /// A batch of so many rows, each a sequence of its own.
    pub(crate) fn rows(&mut self, n: usize) -> Rows {
        self.rows_at((0..n).map(|i| if n > 2 && i % 5 == 3 { -1 } else { 7 + i as i32 }).collect())
    }

    /// A batch of the positions that are given.
    pub(crate) fn rows_at(&mut self, positions: Vec<i32>) -> Rows {
        let n = positions.len();
        let row_seq: Vec<i32> = (0..n as i32).collect();
        let spans: Vec<u32> = (0..n).flat_map(|i| [i as u32, 1, positions[i].max(0) as u32, 0]).collect();
        Rows {
            row_seq: Both::new(&row_seq, &[n], dtype::I32),
            spans: Both::new(&spans, &[n, 4], dtype::I32),
            device_batch: None,
            host_batch: None,
            tensor: Both::new(&positions, &[n], dtype::I32),
            positions,
        }
    }
}

pub(crate) struct Rows {
    pub(crate) positions: Vec<i32>,
    pub(crate) tensor: Both,
    row_seq: Both,
    spans: Both,
    device_batch: Option<Box<Batch>>,
    host_batch: Option<Box<Batch>>,
}

impl Rows {
    pub(crate) fn live(&self, row: usize) -> bool {
        self.positions[row] >= 0
    }

    pub(crate) fn batches(&mut self) -> (*const Batch, *const Batch) {
        let batch = |on: fn(&Both) -> TensorRef| Batch {
            size: size_of::<Batch>() as u32,
            n_rows: self.positions.len() as u32,
            n_seqs: self.positions.len() as u32,
            positions: on(&self.tensor).data.cast(),
            row_seq: on(&self.row_seq).data.cast(),
            seqs: on(&self.spans).data.cast(),
        };
        let (host, device) = (Box::new(batch(Both::host)), Box::new(batch(Both::device)));
        let pointers = (&raw const *host, &raw const *device);
        (self.host_batch, self.device_batch) = (Some(host), Some(device));
        pointers
    }
}

/// A tensor in host memory and, a few bytes off any vector's alignment, in device memory.
pub(crate) struct Both {
    words: Vec<u32>,
    bytes: usize,
    memory: Buffer,
    shape: Vec<usize>,
    dtype: u32,
    offset: u64,
}

/// Offset of every other tensor on the device: as much as the contract promises, and no more.
const OFFSET: u64 = 4;

impl Both {
    pub(crate) fn new<T: Copy>(values: &[T], shape: &[usize], dtype: u32) -> Self {
        let bytes = size_of_val(values);
        let mut words = vec![0u32; bytes.div_ceil(4)];
        // SAFETY: the words have room for the bytes, and both are plain numbers.
        unsafe {
            std::ptr::copy_nonoverlapping(values.as_ptr().cast::<u8>(), words.as_mut_ptr().cast(), bytes)
        };
        let memory = Buffer::new(bytes + 16, "tensor").expect("memory");
        let offset = if shape[0] % 2 == 1 { OFFSET } else { 0 };
        let both = Self { words, bytes, memory, shape: shape.to_vec(), dtype, offset };
        copy_to_device(both.address(), &both.words).expect("a copy");
        both
    }

    /// An output, poisoned.
    pub(crate) fn out(shape: &[usize]) -> Self {
        Self::new(&vec![f32::from_bits(0x7fc0_dead); shape.iter().product()], shape, dtype::F32)
    }

    pub(crate) fn out_i32(shape: &[usize]) -> Self {
        Self::new(&vec![i32::MIN; shape.iter().product()], shape, dtype::I32)
    }

    /// The same at the beginning of its memory.
    pub(crate) fn aligned(self) -> Self {
        let aligned = Self { offset: 0, ..self };
        aligned.upload();
        aligned
    }

    fn address(&self) -> u64 {
        self.memory.address() + self.offset
    }

    fn tensor(&self, data: u64, device: u32) -> TensorRef {
        let mut t = TensorRef { data: data as *mut _, dtype: self.dtype, device, ..TensorRef::NONE };
        t.ndim = self.shape.len() as u32;
        t.shape = [1; 4];
        let mut stride = 1;
        for (d, extent) in self.shape.iter().enumerate().rev() {
            (t.shape[d], t.strides[d]) = (*extent as i64, stride);
            stride *= *extent as i64;
        }
        t
    }

    pub(crate) fn host(&self) -> TensorRef {
        self.tensor(self.words.as_ptr() as u64, device::CPU)
    }

    pub(crate) fn device(&self) -> TensorRef {
        self.tensor(self.address(), device::CUDA)
    }

    pub(crate) fn host_f32(&self) -> &[f32] {
        // SAFETY: as many words, of any bits.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes / 4) }
    }

    pub(crate) fn host_i32(&self) -> &[i32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.bytes / 4) }
    }

    pub(crate) fn host_f32_mut(&mut self) -> &mut [f32] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.bytes / 4) }
    }

    /// Copies what the host has to the device.
    pub(crate) fn upload(&self) {
        copy_to_device(self.address(), &self.words).expect("a copy");
    }

    pub(crate) fn result(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.bytes / 4];
        copy_from_device(&mut values, self.address()).expect("a copy");
        values
    }

    pub(crate) fn result_i32(&self) -> Vec<i32> {
        self.result().iter().map(|v| v.to_bits() as i32).collect()
    }
}

pub(crate) struct Weights {
    format: u32,
    global: f32,
    pub(crate) data: Both,
    scales: Option<Both>,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Weights {
    fn on(&self, place: fn(&Both) -> TensorRef) -> WeightRef {
        WeightRef {
            format: self.format,
            global_scale: self.global,
            data: place(&self.data),
            scales: self.scales.as_ref().map_or(TensorRef::NONE, place),
        }
    }

    pub(crate) fn host(&self) -> WeightRef {
        self.on(Both::host)
    }

    pub(crate) fn device(&self) -> WeightRef {
        self.on(Both::device)
    }

    /// All values, by the host's reader.
    pub(crate) fn values(&self) -> Vec<f32> {
        use hotseam_sdk::ops::{Mat, Weight};
        let bytes = |both: &Both| {
            // SAFETY: as many bytes, of any bits.
            unsafe { std::slice::from_raw_parts(both.words.as_ptr().cast::<u8>(), both.bytes) }.to_vec()
        };
        let codes = bytes(&self.data);
        let halves: Vec<u16> = codes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]])).collect();
        let scales = self.scales.as_ref().map(bytes).unwrap_or_default();
        let (codes, scales) = (&codes[..], &scales[..]);
        let data = match self.format {
            weight_format::F32 => Weight::F32(self.data.host_f32()),
            weight_format::BF16 => Weight::Bf16(&halves),
            weight_format::FP8_BLOCK => Weight::Fp8 { codes, scales, skip: 0 },
            weight_format::MXFP4 => Weight::Mxfp4 { codes, scales },
            _ => Weight::Nvfp4 { codes, scales, global: self.global },
        };
        hotseam_conformance::truth::numbers::widen(&Mat { data, n: self.n, k: self.k }).into_owned()
    }
}

/// Compares by units of `unit` values: an error is relative to the root mean square of the unit.
pub(crate) fn near(what: &str, got: &[f32], want: &[f32], unit: usize, most: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (got, want)) in got.chunks(unit).zip(want.chunks(unit)).enumerate() {
        let size = (want.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / unit as f64).sqrt();
        for (j, (g, w)) in got.iter().zip(want).enumerate() {
            let error = (f64::from(*g) - f64::from(*w)).abs();
            assert!(error <= most * size, "{what}: unit {i}, place {j}: {g}, expected {w}");
        }
    }
}

//! Calls out of files that nobody vouches for: whatever is changed, the call is refused by name or it is sound.

use super::write::Writer;
use super::*;
use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, PoolRef, RopeTables, SelectArgs, SeqSpan, TensorRef, WeightRef, device,
    layout, phase, weight_format,
};
use hotseam_conformance::layouts::Shape;
use hotseam_conformance::truth;
use hotseam_slots::Phase;

const DIM: usize = 8;
const ROWS: usize = 6;
const FIRST: usize = 10;

struct Inputs {
    floats: Vec<f32>,
    ids: Vec<i32>,
    words: Vec<u32>,
    positions: Vec<i32>,
    row_seq: Vec<i32>,
    spans: Vec<SeqSpan>,
    table: Vec<i32>,
}

impl Inputs {
    fn new() -> Self {
        let value = |i: usize| ((i * 37 % 101) as f32 - 50.0) / 50.0;
        let span = SeqSpan { row_begin: 0, row_count: ROWS as u32, position: FIRST as u32, chunk: 1 };
        Self {
            floats: (0..4096).map(value).collect(),
            ids: vec![-1; 64],
            words: (0..4096).map(|i| value(i + 11).to_bits()).collect(),
            positions: (FIRST..FIRST + ROWS).map(|p| p as i32).collect(),
            row_seq: vec![0; ROWS],
            spans: vec![span],
            table: vec![2, 0, -1],
        }
    }

    fn batch(&self) -> Batch {
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: ROWS as u32,
            n_seqs: 1,
            positions: self.positions.as_ptr(),
            row_seq: self.row_seq.as_ptr(),
            seqs: self.spans.as_ptr(),
        }
    }

    fn tensor(&self, shape: &[usize]) -> TensorRef {
        let mut t = TensorRef { data: self.floats.as_ptr().cast_mut().cast(), ..TensorRef::NONE };
        (t.dtype, t.ndim, t.device) = (dtype::F32, shape.len() as u32, device::CPU);
        let mut stride = 1;
        for (d, n) in shape.iter().enumerate().rev() {
            (t.shape[d], t.strides[d]) = (*n as i64, stride);
            stride *= *n as i64;
        }
        t
    }

    /// MXFP4 codes, with a scale of 1 for each 32.
    fn weight(&self, n: usize, k: usize) -> WeightRef {
        static ONES: [u8; 64] = [127; 64];
        let bytes = |data: *const u8, kind: u32, shape: [usize; 2]| {
            let mut t = self.tensor(&shape);
            (t.data, t.dtype) = (data.cast_mut().cast(), kind);
            t
        };
        WeightRef {
            format: weight_format::MXFP4,
            global_scale: 1.0,
            data: bytes(self.words.as_ptr().cast(), dtype::U8, [n, k / 2]),
            scales: bytes(ONES.as_ptr(), dtype::E8M0, [n, k / 32]),
        }
    }

    fn pool(&self, id: u32) -> PoolRef {
        let parts = truth::layout::parts(id, Shape { dim: DIM, rope_dim: 4 }).unwrap();
        let mut bytes = self.tensor(&[4, 16 * (parts.data + parts.scale)]);
        bytes.data = self.words.as_ptr().cast_mut().cast();
        bytes.dtype = dtype::U8;
        PoolRef {
            bytes,
            layout: id,
            entries_per_page: 16,
            dim: DIM as u32,
            rope_dim: 4,
            data_bytes: parts.data as u32,
            scale_bytes: parts.scale as u32,
            table: self.table.as_ptr(),
            table_width: self.table.len() as u32,
        }
    }

    fn rope(&self) -> RopeTables {
        RopeTables { cos: self.tensor(&[32, 2]), sin: self.tensor(&[32, 2]) }
    }
}

fn capture_of(seam: Seam, op: Op, walk: impl FnOnce(&mut Writer)) -> Capture {
    let mut writer = Writer::default();
    walk(&mut writer);
    let meta = Meta {
        format: FORMAT,
        contract: CONTRACT,
        cell: CellId { seam, op, phase: Some(Phase::Prefill), layer: Some(2), rank: None },
        layer_class: 1,
        phase: phase::PREFILL,
        call: 0,
        rows: ROWS,
        variant: "x".into(),
        hash: String::new(),
        capabilities: 0,
        numbers: writer.numbers,
        sha256: String::new(),
    };
    let mut capture = Capture { meta, tensors: writer.tensors };
    capture.tensors.sort_by(|a, b| a.name.cmp(&b.name));
    capture.meta.sha256 = capture.hash();
    capture
}

fn captures() -> Vec<Capture> {
    let inputs = Inputs::new();
    let batch = inputs.batch();
    let mut select = SelectArgs {
        size: size_of::<SelectArgs>() as u32,
        ratio: 4,
        heads: 2,
        topk: 2,
        scores_width: 0,
        batch: &raw const batch,
        q_lora: inputs.tensor(&[ROWS, 32]),
        x: inputs.tensor(&[ROWS, 10]),
        wq_b: inputs.weight(2 * DIM, 32),
        weights_proj: inputs.tensor(&[2, 10]),
        rope: inputs.rope(),
        keys: inputs.pool(layout::KEY_F32),
        ids: std::ptr::null_mut(),
        scores: std::ptr::null_mut(),
    };
    let mut core = CoreArgs {
        size: size_of::<CoreArgs>() as u32,
        window: 4,
        ratio: 4,
        ids_width: 2,
        scale: 0.3,
        batch: &raw const batch,
        q: inputs.tensor(&[ROWS, 2, DIM]),
        sinks: inputs.tensor(&[2]),
        swa: inputs.pool(layout::KV_F32),
        entries: inputs.pool(layout::KV_F32),
        ids: inputs.ids.as_ptr(),
        rope: inputs.rope(),
        out: inputs.tensor(&[ROWS, 2, DIM]),
    };
    // The first entry takes a state row, one row that is absent, and rows of the call.
    let sources: Vec<i32> = (0..16)
        .map(|i| {
            if i == 3 {
                -4
            } else if i < 8 {
                -1
            } else {
                i % ROWS as i32
            }
        })
        .collect();
    let (positions, slots, dst) = (vec![8, 12], vec![3, 5], vec![-1, -1, 0, 1, 4, 5]);
    let mut compress = CompressArgs {
        size: size_of::<CompressArgs>() as u32,
        ratio: 4,
        overlap: 1,
        n_entries: 2,
        norm_eps: 1e-6,
        batch: &raw const batch,
        kv: inputs.tensor(&[ROWS, 2 * DIM]),
        gate: inputs.tensor(&[ROWS, 2 * DIM]),
        ape: inputs.tensor(&[4, 2 * DIM]),
        norm_weight: inputs.tensor(&[DIM]),
        rope: inputs.rope(),
        sources: sources.as_ptr(),
        entry_positions: positions.as_ptr(),
        out_slots: slots.as_ptr(),
        state_dst: dst.as_ptr(),
        state: inputs.tensor(&[6, 4 * DIM]),
        pool: inputs.pool(layout::KEY_F32),
    };
    vec![
        capture_of(Seam::Indexer, Op::Select, |w| fields::select(w, &mut select).unwrap()),
        capture_of(Seam::Attention, Op::Core, |w| fields::core(w, &mut core).unwrap()),
        capture_of(Seam::Indexer, Op::Compress, |w| fields::compress(w, &mut compress).unwrap()),
    ]
}

/// Rebuilds a capture; if that is not refused, truth must be able to run on it.
fn try_out(capture: &Capture) -> Result<(), String> {
    capture.probe().map_err(|error| error.to_string())?.map_err(|why| format!("truth: {why}"))
}

#[test]
fn sound_calls_are_rebuilt() {
    for capture in captures() {
        assert_eq!(try_out(&capture), Ok(()), "{}", capture.meta.cell);
    }
}

#[test]
fn whatever_is_changed_is_refused_by_name_or_sound() {
    let wild = [i32::MIN, -7, -2, -1, 0, 1, 5, 63, 64, 1 << 20, i32::MAX];
    let (mut refused, mut sound) = (0, 0);
    let mut judge = |capture: &Capture, name: &str| match try_out(capture) {
        Ok(()) => sound += 1,
        Err(why) => {
            refused += 1;
            assert!(!why.is_empty() && !why.starts_with("truth"), "{name}: {why}");
        }
    };
    for capture in captures() {
        for t in 0..capture.tensors.len() {
            let tensor = &capture.tensors[t];
            if tensor.dtype == dtype::I32 {
                for at in 0..tensor.bytes.len() / 4 {
                    for value in wild {
                        let mut changed = capture.clone();
                        changed.tensors[t].bytes[4 * at..4 * at + 4].copy_from_slice(&value.to_ne_bytes());
                        judge(&changed, &tensor.name);
                    }
                }
            }
            let mut without = capture.clone();
            without.tensors.remove(t);
            judge(&without, &tensor.name);
            for d in 0..tensor.shape.len() {
                for extent in [0, 1, tensor.shape[d] + 1, usize::MAX / 2] {
                    let mut changed = capture.clone();
                    changed.tensors[t].shape[d] = extent;
                    judge(&changed, &tensor.name);
                    // The same with as many bytes as the shape asks for, where there can be.
                    let size = changed.tensors[t].shape.iter().fold(1usize, |n, d| n.saturating_mul(*d));
                    let size = size.min(1 << 16) * write::element_bytes(tensor.dtype);
                    changed.tensors[t].bytes.resize(size, 0);
                    judge(&changed, &tensor.name);
                }
            }
        }
        let names: Vec<String> = capture.meta.numbers.keys().cloned().collect();
        for name in names {
            for value in [0u64, 1, 3, 7, 4096, 1 << 31, u64::from(u32::MAX), 1 << 40] {
                let mut changed = capture.clone();
                changed.meta.numbers.insert(name.clone(), value.into());
                judge(&changed, &name);
            }
            let mut without = capture.clone();
            without.meta.numbers.remove(&name);
            judge(&without, &name);
        }
    }
    assert!(refused > 500 && sound > 50, "{refused} refused, {sound} sound");
}

#[test]
fn files_are_whole_or_refused() {
    let path = std::env::temp_dir().join(format!("hotseam-capture-{}.safetensors", std::process::id()));
    for capture in captures() {
        capture.save(&path).unwrap();
        let back = Capture::load(&path).unwrap();
        assert_eq!((&back.meta, back.bytes()), (&capture.meta, capture.bytes()));
        assert_eq!(try_out(&back), Ok(()));
        let bytes = std::fs::read(&path).unwrap();
        let step = (bytes.len() / 97).max(1);
        for cut in (0..bytes.len()).step_by(step) {
            std::fs::write(&path, &bytes[..cut]).unwrap();
            let error = Capture::load(&path).unwrap_err();
            assert!(matches!(error, CaptureError::Format { .. }), "{cut}: {error}");
        }
        for at in (0..bytes.len()).step_by(step) {
            let mut changed = bytes.clone();
            changed[at] ^= 0x41;
            std::fs::write(&path, &changed).unwrap();
            assert!(Capture::load(&path).is_err(), "byte {at} changed and nobody saw");
        }
    }
    std::fs::write(&path, b"no capture").unwrap();
    assert!(Capture::load(&path).unwrap_err().to_string().contains("is not a capture"));
    std::fs::remove_file(&path).unwrap();
}

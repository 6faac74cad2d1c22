//! Truth against the modules of transformers 5.24 on small random inputs; `goldens.py` wrote `goldens.json`.

use hotseam_abi::*;
use hotseam_conformance::truth;
use hotseam_sdk::ops::Serial;
use hotseam_sdk::views;
use std::collections::BTreeMap;

/// Largest difference that f32 arithmetic in another order explains, for values around 1.
const F32: f32 = 3e-6;

type Tensors = BTreeMap<String, Vec<f32>>;

fn golden(name: &str) -> Tensors {
    let mut all: BTreeMap<String, Tensors> = serde_json::from_str(include_str!("goldens.json")).unwrap();
    all.remove(name).unwrap()
}

fn close(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let worst = got.iter().zip(want).map(|(g, w)| (g - w).abs()).fold(0.0, f32::max);
    assert!(worst <= F32, "{what}: {worst:e}\n got {got:?}\nwant {want:?}");
}

fn weight(values: &[f32], shape: &[usize]) -> WeightRef {
    WeightRef::plain(weight_format::F32, tensor(values, shape))
}

fn tensor(values: &[f32], shape: &[usize]) -> TensorRef {
    assert_eq!(values.len(), shape.iter().product::<usize>(), "{shape:?}");
    let mut t = TensorRef { data: values.as_ptr().cast_mut().cast(), dtype: dtype::F32, ..TensorRef::NONE };
    t.ndim = shape.len() as u32;
    t.shape = [1; 4];
    let mut stride = 1;
    for (d, n) in shape.iter().enumerate().rev() {
        (t.shape[d], t.strides[d]) = (*n as i64, stride);
        stride *= *n as i64;
    }
    t
}

/// An output of `values`.
fn output(values: &mut [f32], shape: &[usize]) -> TensorRef {
    let data = values.as_mut_ptr().cast();
    TensorRef { data, ..tensor(values, shape) }
}

/// One sequence from position 0.
struct Rows {
    positions: Vec<i32>,
    row_seq: Vec<i32>,
    seqs: [SeqSpan; 1],
}

impl Rows {
    fn new(n: usize) -> Self {
        let span = SeqSpan { row_begin: 0, row_count: n as u32, position: 0, chunk: 0 };
        Self { positions: (0..n as i32).collect(), row_seq: vec![0; n], seqs: [span] }
    }

    fn batch(&self) -> Batch {
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: self.positions.len() as u32,
            n_seqs: 1,
            positions: self.positions.as_ptr(),
            row_seq: self.row_seq.as_ptr(),
            seqs: self.seqs.as_ptr(),
        }
    }
}

fn rope(g: &Tensors) -> RopeTables {
    let n = g["cos"].len() / 2;
    RopeTables { cos: tensor(&g["cos"], &[n, 2]), sin: tensor(&g["sin"], &[n, 2]) }
}

/// A pool of f32 entries in one page of `n`.
fn pool(entries: *mut f32, layout: u32, n: usize, dim: usize, table: &[i32]) -> PoolRef {
    let mut bytes = TensorRef { data: entries.cast(), dtype: dtype::U8, ndim: 2, ..TensorRef::NONE };
    let page_bytes = (n * 4 * dim) as i64;
    bytes.shape = [1, page_bytes, 1, 1];
    bytes.strides = [page_bytes, 1, 1, 1];
    PoolRef {
        bytes,
        layout,
        entries_per_page: n as u32,
        dim: dim as u32,
        rope_dim: 4,
        data_bytes: 4 * dim as u32,
        scale_bytes: 0,
        table: table.as_ptr(),
        table_width: 1,
    }
}

#[test]
fn hyper_connection() {
    let g = golden("mhc_pre");
    let rows = Rows::new(3);
    let batch = rows.batch();
    let (mut x, mut post, mut comb) = (vec![f32::NAN; 24], vec![f32::NAN; 12], vec![f32::NAN; 48]);
    let args = MhcPreArgs {
        size: size_of::<MhcPreArgs>() as u32,
        iters: 20,
        hc_eps: 1e-6,
        norm_eps: 1e-6,
        batch: &batch,
        streams: tensor(&g["streams"], &[3, 4, 8]),
        fn_weight: tensor(&g["fn"], &[24, 32]),
        base: tensor(&g["base"], &[24]),
        scale: tensor(&g["scale"], &[3]),
        next_norm: tensor(&[1.0; 8], &[8]),
        x: output(&mut x, &[3, 8]),
        post: output(&mut post, &[3, 4]),
        comb: output(&mut comb, &[3, 4, 4]),
    };
    // SAFETY: the arguments point to live vectors.
    truth::mhc_pre(&Serial, unsafe { views::MhcPre::from_raw(&args) }.unwrap()).unwrap();
    close(&x, &g["x"], "x");
    close(&post, &g["post"], "post");
    close(&comb, &g["comb"], "comb");

    let g = golden("mhc_post");
    let mut streams = g["streams"].clone();
    let in_place = output(&mut streams, &[3, 4, 8]);
    let args = MhcPostArgs {
        size: size_of::<MhcPostArgs>() as u32,
        batch: &batch,
        f: tensor(&g["f"], &[3, 8]),
        streams: in_place,
        post: tensor(&g["post"], &[3, 4]),
        comb: tensor(&g["comb"], &[3, 4, 4]),
        out: in_place,
    };
    // SAFETY: as above.
    truth::mhc_post(&Serial, unsafe { views::MhcPost::from_raw(&args) }.unwrap()).unwrap();
    close(&streams, &g["out"], "post out");
}

#[test]
fn hyper_head() {
    let g = golden("mhc_head");
    let rows = Rows::new(3);
    let batch = rows.batch();
    let mut x = vec![f32::NAN; 24];
    let args = MhcHeadArgs {
        size: size_of::<MhcHeadArgs>() as u32,
        hc_eps: 1e-6,
        norm_eps: 1e-6,
        batch: &batch,
        streams: tensor(&g["streams"], &[3, 4, 8]),
        fn_weight: tensor(&g["fn"], &[4, 32]),
        base: tensor(&g["base"], &[4]),
        scale: tensor(&g["scale"], &[1]),
        x: output(&mut x, &[3, 8]),
    };
    // SAFETY: the arguments point to live vectors.
    truth::mhc_head(&Serial, unsafe { views::MhcHead::from_raw(&args) }.unwrap()).unwrap();
    close(&x, &g["x"], "x");
}

#[test]
fn router_and_experts() {
    let g = golden("route");
    let rows = Rows::new(4);
    let batch = rows.batch();
    let (mut ids, mut weights, input_ids) = (vec![-9i32; 8], vec![f32::NAN; 8], vec![0i32; 4]);
    let args = RouteArgs {
        size: size_of::<RouteArgs>() as u32,
        topk: 2,
        routed_scale: 1.5,
        batch: &batch,
        x: tensor(&g["x"], &[4, 8]),
        gate: tensor(&g["gate"], &[5, 8]),
        bias: tensor(&g["bias"], &[5]),
        tid2eid: TensorRef::NONE,
        input_ids: input_ids.as_ptr(),
        ids: ids.as_mut_ptr(),
        weights: weights.as_mut_ptr(),
    };
    // SAFETY: the arguments point to live vectors.
    truth::route(&Serial, unsafe { views::Route::from_raw(&args) }.unwrap()).unwrap();
    // transformers leaves the order open, and scales here what truth leaves to the experts.
    let sorted = |ids: Vec<i32>, weights: Vec<f32>| {
        let mut pairs: Vec<(usize, i32, f32)> =
            ids.into_iter().zip(weights).enumerate().map(|(i, (id, w))| (i / 2, id, w)).collect();
        pairs.sort_by_key(|(row, id, _)| (*row, *id));
        pairs.into_iter().map(|(_, id, w)| (id, w)).unzip()
    };
    let got: (Vec<i32>, Vec<f32>) = sorted(ids, weights.iter().map(|w| w * 1.5).collect());
    let want: (Vec<i32>, Vec<f32>) =
        sorted(g["ids"].iter().map(|id| *id as i32).collect(), g["weights"].clone());
    assert_eq!(got.0, want.0);
    close(&got.1, &want.1, "weights");

    let g = golden("experts");
    let ids: Vec<i32> = g["ids"].iter().map(|id| *id as i32).collect();
    let experts: Vec<ExpertRef> = (0..5)
        .map(|e| ExpertRef {
            w1: weight(&g["gate_up"][e * 96..e * 96 + 48], &[6, 8]),
            w3: weight(&g["gate_up"][e * 96 + 48..(e + 1) * 96], &[6, 8]),
            w2: weight(&g["down"][e * 48..(e + 1) * 48], &[8, 6]),
        })
        .collect();
    let mut out = vec![f32::NAN; 32];
    let args = ExpertsArgs {
        size: size_of::<ExpertsArgs>() as u32,
        topk: 2,
        n_experts: 5,
        swiglu_limit: 1.0,
        routed_scale: 1.0,
        batch: &batch,
        x: tensor(&g["x"], &[4, 8]),
        ids: ids.as_ptr(),
        weights: g["weights"].as_ptr(),
        experts: experts.as_ptr(),
        experts_device: std::ptr::null(),
        out: output(&mut out, &[4, 8]),
    };
    // SAFETY: as above.
    truth::experts(&Serial, unsafe { views::Experts::from_raw(&args) }.unwrap()).unwrap();
    close(&out, &g["out"], "experts");
}

/// Entries of 14 tokens, taken from the rows of one batch.
fn compressed(name: &str, ratio: usize, overlap: bool) {
    let g = golden(name);
    let (n, channels) = (14 / ratio, 8 * (1 + overlap as usize));
    let rows = Rows::new(14);
    let batch = rows.batch();
    let back = if overlap { ratio as i32 } else { 0 };
    let sources: Vec<i32> = (0..n as i32)
        .flat_map(|e| (e * ratio as i32 - back..(e + 1) * ratio as i32).map(|p| p.max(-1)))
        .collect();
    let positions: Vec<i32> = (0..n as i32).map(|e| e * ratio as i32).collect();
    let (slots, state_dst): (Vec<i32>, Vec<i32>) = ((0..n as i32).collect(), vec![-1; 14]);
    let (mut entries, mut state) = (vec![f32::NAN; n * 8], vec![f32::NAN; 2 * channels]);
    let args = CompressArgs {
        size: size_of::<CompressArgs>() as u32,
        ratio: ratio as u32,
        overlap: overlap.into(),
        n_entries: n as u32,
        norm_eps: 1e-6,
        batch: &batch,
        kv: tensor(&g["kv"], &[14, channels]),
        gate: tensor(&g["gate"], &[14, channels]),
        ape: tensor(&g["ape"], &[ratio, channels]),
        norm_weight: tensor(&g["norm"], &[8]),
        rope: rope(&g),
        sources: sources.as_ptr(),
        entry_positions: positions.as_ptr(),
        out_slots: slots.as_ptr(),
        state_dst: state_dst.as_ptr(),
        state: output(&mut state, &[1, 2 * channels]),
        pool: pool(entries.as_mut_ptr(), layout::KV_F32, n, 8, &[]),
    };
    // SAFETY: the arguments point to live vectors.
    truth::compress(unsafe { views::Compress::from_raw(&args) }.unwrap()).unwrap();
    close(&entries, &g["entries"], name);
}

#[test]
fn compressors() {
    compressed("csa", 4, true);
    compressed("hca", 5, false);
}

#[test]
fn indexer_scores() {
    let mut g = golden("select");
    let mut keys = g.remove("keys").unwrap();
    let rows = Rows::new(14);
    let batch = rows.batch();
    let mut ids = vec![-9i32; 28];
    let args = SelectArgs {
        size: size_of::<SelectArgs>() as u32,
        ratio: 4,
        heads: 3,
        topk: 2,
        scores_width: 0,
        batch: &batch,
        q_lora: tensor(&g["q_lora"], &[14, 6]),
        x: tensor(&g["x"], &[14, 8]),
        wq_b: weight(&g["wq_b"], &[24, 6]),
        weights_proj: tensor(&g["weights_proj"], &[3, 8]),
        rope: rope(&g),
        keys: pool(keys.as_mut_ptr(), layout::KEY_F32, 3, 8, &[0]),
        ids: ids.as_mut_ptr(),
        scores: std::ptr::null_mut(),
    };
    // SAFETY: the arguments point to live vectors.
    let view = unsafe { views::Select::from_raw(&args) }.unwrap();
    let scores = truth::scores(&Serial, &view).unwrap();
    truth::select(&Serial, view).unwrap();
    for (p, scores) in scores.iter().enumerate() {
        let complete = (p + 1) / 4;
        close(scores, &g["scores"][3 * p..3 * p + complete], &format!("scores at {p}"));
        let mut best: Vec<i32> = (0..complete as i32).collect();
        best.sort_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        best.resize(best.len().max(2), -1);
        assert_eq!(ids[2 * p..2 * p + 2], best[..2], "ids at {p}");
    }
}

#[test]
fn attention_over_window_entries_and_sink() {
    let mut g = golden("core");
    let (mut swa, mut entries) = (g.remove("swa").unwrap(), g.remove("entries").unwrap());
    let rows = Rows::new(10);
    let batch = rows.batch();
    let tables = vec![1.0; 64];
    let (cos, sin) = (tensor(&tables[..20], &[10, 2]), tensor(&tables[20..40], &[10, 2]));
    let mut out = vec![f32::NAN; 160];
    let args = CoreArgs {
        size: size_of::<CoreArgs>() as u32,
        window: 3,
        ratio: 4,
        ids_width: 0,
        scale: 8f32.powf(-0.5),
        batch: &batch,
        q: tensor(&g["q"], &[10, 2, 8]),
        sinks: tensor(&g["sinks"], &[2]),
        swa: pool(swa.as_mut_ptr(), layout::KV_F32, 10, 8, &[0]),
        entries: pool(entries.as_mut_ptr(), layout::KV_F32, 2, 8, &[0]),
        ids: std::ptr::null(),
        rope: RopeTables { cos, sin },
        out: output(&mut out, &[10, 2, 8]),
    };
    // SAFETY: the arguments point to live vectors.
    truth::core(&Serial, unsafe { views::Core::from_raw(&args) }.unwrap()).unwrap();
    close(&out, &g["out"], "out");
}

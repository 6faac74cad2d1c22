//! A whole network of random weights on the kernels, with the smallest host that can drive it: one sequence whose
//! pools lie in order of position. A test compares the bits of different ways to run it; an example measures it.

mod args;
mod layer;
mod weights;

use args::{PER_PAGE, f32s, mat};
use hotseam_cpu_kernels::{attention, compress, indexer, mhc, moe};
use hotseam_sdk::abi::{self, Batch, RopeTables, SeqSpan};
use hotseam_sdk::ops::{Parallel, linear, linear_into, rms_norm, rope, swiglu};
use hotseam_sdk::{layouts, views};
pub(crate) use layer::{Layer, Shape};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use weights::Random;

const EPS: f32 = 1e-6;

/// Allocations of the process; raised by the allocator of a test that wants to know.
pub(crate) static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

/// Weights, pools and states of one sequence.
pub(crate) struct Network {
    shape: Shape,
    layers: Vec<Layer>,
    cos: Vec<f32>,
    sin: Vec<f32>,
    embed: Vec<f32>,
    table: Vec<i32>,
    positions: usize,
    /// Time spent in each op since it was cleared, by name.
    pub(crate) spent: Vec<(&'static str, Duration)>,
    /// Allocations inside kernels since it was cleared, if something counts them.
    pub(crate) allocations: u64,
}

impl Network {
    /// A network whose pools hold `positions` tokens, with the layouts of attention entries and of index keys.
    pub(crate) fn new(shape: Shape, positions: usize, kv: u32, keys: u32) -> Self {
        let mut random = Random::new(7);
        let half = shape.rope / 2;
        let angle = |i: usize| (i / half) as f64 * 10_000f64.powf(-((i % half) as f64) / half as f64);
        Self {
            layers: (0..shape.ratios.len())
                .map(|l| Layer::new(&shape, l, positions, [kv, keys], &mut random))
                .collect(),
            cos: (0..positions * half).map(|i| angle(i).cos() as f32).collect(),
            sin: (0..positions * half).map(|i| angle(i).sin() as f32).collect(),
            embed: random.normals(shape.vocab * shape.hidden),
            table: (0..positions.div_ceil(PER_PAGE) as i32).collect(),
            positions,
            spent: Vec::new(),
            allocations: 0,
            shape,
        }
    }

    /// Calls a kernel and adds what it took.
    fn kernel(&mut self, name: &'static str, call: impl FnOnce() -> hotseam_sdk::Result<()>) {
        let (start, allocated) = (Instant::now(), ALLOCATIONS.load(Ordering::Relaxed));
        call().unwrap();
        self.allocations += ALLOCATIONS.load(Ordering::Relaxed) - allocated;
        self.add(name, start.elapsed());
    }

    fn add(&mut self, name: &'static str, time: Duration) {
        match self.spent.iter_mut().find(|(known, _)| *known == name) {
            Some((_, spent)) => *spent += time,
            None => self.spent.push((name, time)),
        }
    }

    fn rope_tables(&mut self) -> RopeTables {
        let half = self.shape.rope / 2;
        let positions = self.cos.len() / half;
        RopeTables {
            cos: f32s(&mut self.cos, &[positions, half]),
            sin: f32s(&mut self.sin, &[positions, half]),
        }
    }

    /// Runs the tokens at positions `begin ..` and returns the last residual streams `[rows, hc, hidden]`.
    pub(crate) fn run(&mut self, par: &dyn Parallel, begin: usize, tokens: &[i32]) -> Vec<f32> {
        let n = tokens.len();
        let positions: Vec<i32> = (begin..begin + n).map(|p| p as i32).collect();
        let row_seq = vec![0; n];
        let seqs = [SeqSpan { row_begin: 0, row_count: n as u32, position: begin as u32, chunk: 0 }];
        let batch = Batch {
            size: size_of::<Batch>() as u32,
            n_rows: n as u32,
            n_seqs: 1,
            positions: positions.as_ptr(),
            row_seq: row_seq.as_ptr(),
            seqs: seqs.as_ptr(),
        };
        let (hc, hidden) = (self.shape.hc, self.shape.hidden);
        let mut streams = Vec::with_capacity(n * hc * hidden);
        for token in tokens {
            let row = &self.embed[*token as usize * hidden..][..hidden];
            (0..hc).for_each(|_| streams.extend_from_slice(row));
        }
        let mut x = vec![f32::NAN; n * hidden];
        let mut normed = vec![f32::NAN; n * hidden];
        let (mut post, mut comb) = (vec![f32::NAN; n * hc], vec![f32::NAN; n * hc * hc]);
        for l in 0..self.layers.len() {
            for block in 0..2 {
                self.pre(par, &batch, l, block, &mut streams, &mut x, &mut post, &mut comb);
                let start = Instant::now();
                norm_rows(par, &x, &self.layers[l].norms[block], &mut normed);
                self.add("host", start.elapsed());
                let mut f = vec![f32::NAN; n * hidden];
                match block {
                    0 => self.attention(par, &batch, l, &positions, &mut normed, &mut f),
                    _ => self.experts(par, &batch, l, tokens, &mut normed, &mut f),
                }
                let args = abi::MhcPostArgs {
                    size: size_of::<abi::MhcPostArgs>() as u32,
                    batch: &batch,
                    f: f32s(&mut f, &[n, hidden]),
                    streams: f32s(&mut streams, &[n, hc, hidden]),
                    post: f32s(&mut post, &[n, hc]),
                    comb: f32s(&mut comb, &[n, hc, hc]),
                    out: f32s(&mut streams, &[n, hc, hidden]),
                };
                // SAFETY: the tensors above are as the contract says.
                let mut view = unsafe { views::MhcPost::from_raw(&args) }.unwrap();
                self.kernel("mhc.post", || mhc::post(par, &mut view));
            }
        }
        streams
    }

    fn pre(
        &mut self,
        par: &dyn Parallel,
        batch: &Batch,
        l: usize,
        block: usize,
        streams: &mut [f32],
        x: &mut [f32],
        post: &mut [f32],
        comb: &mut [f32],
    ) {
        let (n, hc, hidden, layer) =
            (batch.n_rows as usize, self.shape.hc, self.shape.hidden, &mut self.layers[l]);
        let mix = (2 + hc) * hc;
        let args = abi::MhcPreArgs {
            size: size_of::<abi::MhcPreArgs>() as u32,
            iters: self.shape.iters,
            hc_eps: EPS,
            norm_eps: EPS,
            batch,
            streams: f32s(streams, &[n, hc, hidden]),
            fn_weight: f32s(&mut layer.hc_fn[block], &[mix, hc * hidden]),
            base: f32s(&mut layer.hc_base[block], &[mix]),
            scale: f32s(&mut layer.hc_scale, &[3]),
            next_norm: f32s(&mut layer.norms[block], &[hidden]),
            x: f32s(x, &[n, hidden]),
            post: f32s(post, &[n, hc]),
            comb: f32s(comb, &[n, hc, hc]),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::MhcPre::from_raw(&args) }.unwrap();
        self.kernel("mhc.pre", || mhc::pre(par, &mut view));
    }

    fn attention(
        &mut self,
        par: &dyn Parallel,
        batch: &Batch,
        l: usize,
        positions: &[i32],
        x: &mut [f32],
        f: &mut [f32],
    ) {
        let shape = self.shape.clone();
        let (n, dim, heads) = (positions.len(), shape.dim, shape.heads);
        let tables = self.rope_tables();
        let half = shape.rope / 2;
        let start = Instant::now();
        let mut low = vec![f32::NAN; n * shape.q_rank];
        linear(par, x, n, mat(&self.layers[l].wq_a, shape.hidden), &mut low);
        let mut q_lora = vec![f32::NAN; n * shape.q_rank];
        norm_rows(par, &low, &vec![1.0; shape.q_rank], &mut q_lora);
        let mut q = vec![f32::NAN; n * heads * dim];
        linear(par, &q_lora, n, mat(&self.layers[l].wq_b, shape.q_rank), &mut q);
        let turn = |heads_of: &mut [f32], row: usize, inverse: bool| {
            let at = positions[row] as usize * half..(positions[row] as usize + 1) * half;
            for head in heads_of.chunks_exact_mut(dim) {
                rope(head, &self.cos[at.clone()], &self.sin[at.clone()], inverse);
            }
        };
        let mut normed = q.clone();
        norm_rows(par, &q, &vec![1.0; dim], &mut normed);
        normed.chunks_exact_mut(heads * dim).enumerate().for_each(|(row, q)| turn(q, row, false));
        let mut kv = vec![f32::NAN; n * dim];
        linear(par, x, n, mat(&self.layers[l].wkv, shape.hidden), &mut kv);
        self.add("host", start.elapsed());
        let (ratio, kv_layout) = (shape.ratios[l], self.layers[l].kv_layout);
        let entry = layouts::Shape { dim, rope_dim: shape.rope };
        let args = abi::StoreArgs {
            size: size_of::<abi::StoreArgs>() as u32,
            norm_eps: EPS,
            batch,
            kv: f32s(&mut kv, &[n, dim]),
            norm_weight: f32s(&mut self.layers[l].kv_norm, &[dim]),
            rope: tables,
            out_slots: positions.as_ptr(),
            pool: args::pool(&mut self.layers[l].swa, kv_layout, entry, &[]),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::Store::from_raw(&args) }.unwrap();
        self.kernel("attention.store", || attention::store(par, &mut view));
        let mut ids = vec![-7; n * shape.topk];
        if ratio > 0 {
            self.compress(par, batch, l, positions, x, false);
        }
        if ratio == 4 {
            self.compress(par, batch, l, positions, x, true);
            let layer = &mut self.layers[l];
            let key = layouts::Shape { dim: shape.index_dim, rope_dim: shape.rope };
            let keys = args::pool(&mut layer.keys, layer.key_layout, key, &self.table);
            let args = abi::SelectArgs {
                size: size_of::<abi::SelectArgs>() as u32,
                ratio: 4,
                heads: shape.index_heads as u32,
                topk: shape.topk as u32,
                scores_width: 0,
                batch,
                q_lora: f32s(&mut q_lora, &[n, shape.q_rank]),
                x: f32s(x, &[n, shape.hidden]),
                wq_b: args::weight(&mut layer.index_wq_b, shape.q_rank),
                weights_proj: args::bf16s(&mut layer.index_weights, shape.hidden),
                rope: tables,
                keys,
                ids: ids.as_mut_ptr(),
                scores: std::ptr::null_mut(),
            };
            // SAFETY: the tensors above are as the contract says.
            let mut view = unsafe { views::Select::from_raw(&args) }.unwrap();
            self.kernel("indexer.select", || indexer::select(par, &mut view));
        }
        let mut o = vec![f32::NAN; n * heads * dim];
        let layer = &mut self.layers[l];
        let args = abi::CoreArgs {
            size: size_of::<abi::CoreArgs>() as u32,
            window: shape.window as u32,
            ratio,
            ids_width: shape.topk as u32,
            scale: (dim as f32).sqrt().recip(),
            batch,
            q: f32s(&mut normed, &[n, heads, dim]),
            sinks: f32s(&mut layer.sinks, &[heads]),
            swa: args::pool(&mut layer.swa, kv_layout, entry, &self.table),
            entries: args::pool(&mut layer.entries, kv_layout, entry, &self.table),
            ids: if ratio == 4 { ids.as_ptr() } else { std::ptr::null() },
            rope: tables,
            out: f32s(&mut o, &[n, heads, dim]),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::Core::from_raw(&args) }.unwrap();
        let class = ["attention.core window", "attention.core csa", "attention.core hca"];
        let class = class[[0, 4, 128].iter().position(|r| *r == ratio).unwrap_or(0)];
        self.kernel(class, || attention::core(par, &mut view));
        let start = Instant::now();
        o.chunks_exact_mut(heads * dim)
            .enumerate()
            .for_each(|(row, o)| turn_inverse(o, row, positions, self, dim));
        let (group_in, rank) = (heads * dim / shape.o_groups, shape.o_rank);
        let mut mid = vec![f32::NAN; n * shape.o_groups * rank];
        for g in 0..shape.o_groups {
            let w = mat(&self.layers[l].wo_a[g], group_in);
            linear_into(
                par,
                &o[g * group_in..],
                heads * dim,
                n,
                w,
                &mut mid[g * rank..],
                shape.o_groups * rank,
            );
        }
        linear(par, &mid, n, mat(&self.layers[l].wo_b, shape.o_groups * rank), f);
        self.add("host", start.elapsed());
    }

    fn compress(
        &mut self,
        par: &dyn Parallel,
        batch: &Batch,
        l: usize,
        positions: &[i32],
        x: &mut [f32],
        index: bool,
    ) {
        let (shape, tables) = (self.shape.clone(), self.rope_tables());
        let (n, ratio, capacity) = (positions.len(), shape.ratios[l] as usize, self.positions);
        let overlap = ratio == 4;
        let dim = if index { shape.index_dim } else { shape.dim };
        let channels = dim * (1 + overlap as usize);
        let begin = positions[0] as usize;
        let layer = &mut self.layers[l];
        let (kv_layout, key_layout) = (layer.kv_layout, layer.key_layout);
        let part = &mut layer.compressors[index as usize];
        let start = Instant::now();
        let (mut kv, mut gate) = (vec![f32::NAN; n * channels], vec![f32::NAN; n * channels]);
        linear(par, x, n, mat(&part.wkv, shape.hidden), &mut kv);
        linear(par, x, n, mat(&part.wgate, shape.hidden), &mut gate);
        let host = start.elapsed();
        let entries: Vec<usize> = (begin / ratio..(begin + n) / ratio).collect();
        let mut sources = Vec::new();
        for e in &entries {
            let first = (e * ratio) as i64 - if overlap { ratio as i64 } else { 0 };
            // State row = position; a token before the first is absent.
            sources.extend((first..((e + 1) * ratio) as i64).map(|p| match p {
                p if p < 0 => -1,
                p if p >= begin as i64 => (p - begin as i64) as i32,
                p => -(p as i32) - 2,
            }));
        }
        let entry_positions: Vec<i32> = entries.iter().map(|e| (e * ratio) as i32).collect();
        let out_slots: Vec<i32> = entries.iter().map(|e| *e as i32).collect();
        let (pool, layout) = match index {
            true => (&mut layer.keys, key_layout),
            false => (&mut layer.entries, kv_layout),
        };
        let entry = layouts::Shape { dim, rope_dim: shape.rope };
        let args = abi::CompressArgs {
            size: size_of::<abi::CompressArgs>() as u32,
            ratio: ratio as u32,
            overlap: overlap as u32,
            n_entries: entries.len() as u32,
            norm_eps: EPS,
            batch,
            kv: f32s(&mut kv, &[n, channels]),
            gate: f32s(&mut gate, &[n, channels]),
            ape: f32s(&mut part.ape, &[ratio, channels]),
            norm_weight: f32s(&mut part.norm, &[dim]),
            rope: tables,
            sources: sources.as_ptr(),
            entry_positions: entry_positions.as_ptr(),
            out_slots: out_slots.as_ptr(),
            state_dst: positions.as_ptr(),
            state: f32s(&mut part.state, &[capacity, 2 * channels]),
            pool: args::pool(pool, layout, entry, &[]),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::Compress::from_raw(&args) }.unwrap();
        let name = if index { "indexer.compress" } else { "attention.compress" };
        self.kernel(name, || compress(par, &mut view));
        self.add("host", host);
    }

    fn experts(
        &mut self,
        par: &dyn Parallel,
        batch: &Batch,
        l: usize,
        tokens: &[i32],
        x: &mut [f32],
        f: &mut [f32],
    ) {
        let shape = self.shape.clone();
        let (n, topk, hidden) = (tokens.len(), shape.expert_topk, shape.hidden);
        let (mut ids, mut weights) = (vec![-7; n * topk], vec![f32::NAN; n * topk]);
        let layer = &mut self.layers[l];
        let hash = l < shape.hash_layers;
        let args = abi::RouteArgs {
            size: size_of::<abi::RouteArgs>() as u32,
            topk: topk as u32,
            routed_scale: 1.5,
            batch,
            x: f32s(x, &[n, hidden]),
            gate: args::bf16s(&mut layer.gate, hidden),
            bias: if hash { abi::TensorRef::NONE } else { f32s(&mut layer.gate_bias, &[shape.experts]) },
            tid2eid: if hash { args::i32s(&mut layer.tid2eid, topk) } else { abi::TensorRef::NONE },
            input_ids: tokens.as_ptr(),
            ids: ids.as_mut_ptr(),
            weights: weights.as_mut_ptr(),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::Route::from_raw(&args) }.unwrap();
        self.kernel("moe.route", || moe::route(par, &mut view));
        let layer = &mut self.layers[l];
        let experts: Vec<abi::ExpertRef> = (layer.experts.iter_mut())
            .map(|[w1, w2, w3]| abi::ExpertRef {
                w1: args::weight(w1, hidden),
                w2: args::weight(w2, shape.inter),
                w3: args::weight(w3, hidden),
            })
            .collect();
        let args = abi::ExpertsArgs {
            size: size_of::<abi::ExpertsArgs>() as u32,
            topk: topk as u32,
            n_experts: experts.len() as u32,
            swiglu_limit: 10.0,
            routed_scale: 1.5,
            batch,
            x: f32s(x, &[n, hidden]),
            ids: ids.as_ptr(),
            weights: weights.as_ptr(),
            experts: experts.as_ptr(),
            experts_device: std::ptr::null(),
            out: f32s(f, &[n, hidden]),
        };
        // SAFETY: the tensors above are as the contract says.
        let mut view = unsafe { views::Experts::from_raw(&args) }.unwrap();
        self.kernel("moe.experts", || moe::experts(par, &mut view));
        let start = Instant::now();
        let [w1, w2, w3] = &self.layers[l].shared;
        let (mut gate, mut up) = (vec![f32::NAN; n * shape.inter], vec![f32::NAN; n * shape.inter]);
        linear(par, x, n, mat(w1, hidden), &mut gate);
        linear(par, x, n, mat(w3, hidden), &mut up);
        let mut mid = vec![f32::NAN; n * shape.inter];
        swiglu(&gate, &up, 10.0, &mut mid);
        let mut y = vec![f32::NAN; n * hidden];
        linear(par, &mid, n, mat(w2, shape.inter), &mut y);
        f.iter_mut().zip(&y).for_each(|(f, y)| *f += y);
        self.add("host", start.elapsed());
    }
}

fn turn_inverse(heads_of: &mut [f32], row: usize, positions: &[i32], network: &Network, dim: usize) {
    let half = network.shape.rope / 2;
    let at = positions[row] as usize * half..(positions[row] as usize + 1) * half;
    for head in heads_of.chunks_exact_mut(dim) {
        rope(head, &network.cos[at.clone()], &network.sin[at.clone()], true);
    }
}

fn norm_rows(par: &dyn Parallel, x: &[f32], weight: &[f32], out: &mut [f32]) {
    let width = weight.len();
    let out = hotseam_sdk::SharedMut::new(out);
    par.run(x.len() / width, 64, &|rows| {
        for row in rows {
            // SAFETY: rows do not overlap.
            let out = unsafe { out.slice(row * width..(row + 1) * width) };
            rms_norm(&x[row * width..][..width], Some(weight), EPS, out);
        }
    });
}

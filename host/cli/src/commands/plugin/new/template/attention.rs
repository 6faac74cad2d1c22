//! {{description}}.
//!
//! `core` is a plain working kernel to start from; `store` and `compress` come from `attention/cpu-stock`.

use hotseam_sdk::abi::layout;
use hotseam_sdk::layouts::Shape;
use hotseam_sdk::ops::{Parallel, axpy, dot, scale};
use hotseam_sdk::views::{Core, Pool};
use hotseam_sdk::{Attention, Ctx, Error, Host, Info, NoOptions, Plugin, Result, SharedMut, export_plugin};

/// The variant `attention/{{name}}`.
#[derive(Debug)]
pub struct Variant;

impl Plugin for Variant {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }

    fn info(&self, shape: Shape) -> Info {
        Info::of_layout(layout::KV_F32, shape)
    }
}

impl Attention for Variant {
    fn core(&self, ctx: &Ctx, mut a: Core<'_>) -> Result<()> {
        for pool in [Some(&a.swa), a.entries.as_ref()].into_iter().flatten() {
            if pool.form.layout != layout::KV_F32 {
                let found = pool.form.layout;
                return Err(Error::argument(format!("layout {found}, expected {}", layout::KV_F32)));
            }
        }
        let (heads, dim) = (a.heads, a.dim);
        let out = std::mem::take(&mut a.out);
        let out = SharedMut::new(out);
        ctx.host().run(a.rows.len() * heads, 1, &|pieces| {
            for piece in pieces {
                // SAFETY: each (row, head) has its own part of the output.
                let out = unsafe { out.slice(piece * dim..(piece + 1) * dim) };
                attend(&a, piece / heads, piece % heads, out);
            }
        });
        Ok(())
    }
}

/// One head of one row: one softmax over the sink, the window and the compressed entries.
fn attend(a: &Core<'_>, row: usize, head: usize, out: &mut [f32]) {
    out.fill(0.0);
    if a.rows.positions[row] < 0 {
        return;
    }
    let (seq, dim) = (a.rows.seq(row), a.dim);
    let q = &a.q[(row * a.heads + head) * dim..][..dim];
    // The sink is a key with logit `sinks[head]` and a value of zeros.
    let (mut largest, mut total) = (a.sinks[head], 1.0f32);
    let mut add = |pool: &Pool<'_>, entry: usize| {
        let kv = pool.f32(pool.slot(seq, entry));
        let score = dot(q, kv) * a.scale;
        if score > largest {
            let shrink = (largest - score).exp();
            total *= shrink;
            scale(shrink, out);
            largest = score;
        }
        let weight = (score - largest).exp();
        total += weight;
        axpy(weight, kv, out);
    };
    a.window_of(row).for_each(|position| add(&a.swa, position));
    if let Some(entries) = &a.entries {
        a.for_each_entry(row, |entry| add(entries, entry));
    }
    scale(total.recip(), out);
}

export_plugin! {
    seam: attention, plugin: Variant, ops: [core],
    name: "attention/{{name}}", description: "{{description}}", base: "attention/cpu-stock",
    options: "{}",
    cpu: "[]"
}

//! {{description}}.
//!
//! `post` is a plain working kernel to start from; `pre` and `head` come from `mhc/cpu-stock`.

use hotseam_sdk::ops::Parallel;
use hotseam_sdk::views::MhcPost;
use hotseam_sdk::{Ctx, Host, Mhc, NoOptions, Plugin, Result, SharedMut, export_plugin};

/// Most streams that the views let through.
const STREAMS: usize = 16;

/// The variant `mhc/{{name}}`.
#[derive(Debug)]
pub struct Variant;

impl Plugin for Variant {
    type Options = NoOptions;

    fn create(_host: Host, _options: NoOptions) -> Result<Self> {
        Ok(Self)
    }
}

impl Mhc for Variant {
    fn post(&self, ctx: &Ctx, mut a: MhcPost<'_>) -> Result<()> {
        let width = a.hc * a.hidden;
        let streams = std::mem::take(&mut a.streams);
        let streams = SharedMut::new(streams);
        ctx.host().run(a.rows.len(), 1, &|rows| {
            for row in rows {
                // SAFETY: each row has its own part of the streams.
                mix(&a, row, unsafe { streams.slice(row * width..(row + 1) * width) });
            }
        });
        Ok(())
    }
}

/// `streams_k = post_k * f + sum_i comb[i, k] * streams_i`, channel by channel.
fn mix(a: &MhcPost<'_>, row: usize, streams: &mut [f32]) {
    let (hc, hidden) = (a.hc, a.hidden);
    let f = &a.f[row * hidden..(row + 1) * hidden];
    let post = &a.post[row * hc..(row + 1) * hc];
    let comb = &a.comb[row * hc * hc..(row + 1) * hc * hc];
    for channel in 0..hidden {
        let mut old = [0.0; STREAMS];
        (0..hc).for_each(|i| old[i] = streams[i * hidden + channel]);
        for k in 0..hc {
            let kept: f32 = (0..hc).map(|i| comb[i * hc + k] * old[i]).sum();
            streams[k * hidden + channel] = post[k] * f[channel] + kept;
        }
    }
}

export_plugin! {
    seam: mhc, plugin: Variant, ops: [post],
    name: "mhc/{{name}}", description: "{{description}}", base: "mhc/cpu-stock",
    options: "{}",
    cpu: "[]"
}

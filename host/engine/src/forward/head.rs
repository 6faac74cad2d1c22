//! Last collapse, final norm and output head, for the rows whose logits are wanted, and the choice of tokens where a device makes it.

use super::lists::Lists;
use super::ops::StepError;
use super::{Answer, Forward, Step, refs};
use crate::sampler::{Chosen, NotFinite};
use hotseam_abi::MhcHeadArgs;
use hotseam_model::LayerClass;

impl Forward {
    pub(super) fn head(&mut self, step: &Step<'_>, lists: &Lists) -> Result<Answer<'_>, StepError> {
        let c = &self.model.config;
        let weights = &self.model.weights;
        let (hc, hidden, vocab, n) = (c.hc_mult, c.hidden_size, c.vocab_size, step.wanted.len());
        if n == 0 {
            self.settle()?;
            return Ok(Answer::Logits(&[]));
        }
        if self.ws.logits.bytes < n * vocab * 4 {
            // Freeing the old ones waits for the device.
            self.settle()?;
            self.ws.logits = self.ops.memory(n * vocab * 4, "logits")?;
        }
        let (ops, ws) = (&self.ops, &self.ws);
        ops.gather(lists, hc * hidden, &ws.streams, &ws.head_streams)?;
        let args = MhcHeadArgs {
            size: size_of::<MhcHeadArgs>() as u32,
            hc_eps: c.hc_eps,
            norm_eps: c.rms_norm_eps,
            batch: &raw const lists.head,
            streams: ws.head_streams.f32([n, hc, hidden]),
            fn_weight: refs::tensor(&weights.hc_head.fn_weight),
            base: refs::tensor(&weights.hc_head.base),
            scale: refs::tensor(&weights.hc_head.scale),
            x: ws.x.f32([n, hidden]),
        };
        let ctx = self.context(step, u32::MAX, LayerClass::Window);
        step.probe.call(step.snapshot.head(step.phase), &ctx, &args, n)?;
        ops.rms_norm(n, &ws.x, &weights.norm, c.rms_norm_eps, &ws.x)?;
        ops.project(n, &ws.x, &weights.head, &ws.logits)?;
        let draws = step.draws;
        let chosen = !draws.is_empty() && ops.choose(draws, vocab, &ws.logits, &ws.chosen)?;
        self.settle()?;
        if !chosen {
            return Ok(Answer::Logits(self.ops.read(&self.ws.logits, n * vocab, &mut self.copy)?));
        }
        let pairs = self.ops.read(&self.ws.chosen, 2 * draws.len(), &mut self.copy)?.chunks_exact(2);
        self.chosen.clear();
        self.chosen.extend(pairs.map(|pair| match pair[0].to_bits() as i32 {
            ..0 => Err(NotFinite),
            id => Ok(Chosen { id: id as u32, logprob: pair[1] }),
        }));
        Ok(Answer::Chosen(&self.chosen))
    }
}

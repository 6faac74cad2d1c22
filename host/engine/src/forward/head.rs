//! Last collapse, final norm and output head, for the rows whose logits are wanted.

use super::rows::mat;
use super::{Forward, Step, context, norm_in_place, refs};
use hotseam_abi::{Batch, MhcHeadArgs, SeqSpan};
use hotseam_model::LayerClass;
use hotseam_ops::{Parallel, linear};
use hotseam_slots::CallError;

impl Forward {
    pub(super) fn head(
        &mut self,
        par: &dyn Parallel,
        step: &Step<'_>,
        batch: &Batch,
    ) -> Result<&[f32], CallError> {
        let c = &self.model.config;
        let weights = &self.model.weights;
        let (hc, hidden, vocab, n) = (c.hc_mult, c.hidden_size, c.vocab_size, step.wanted.len());
        if n == 0 {
            return Ok(&[]);
        }
        if self.ws.logits.len() < n * vocab {
            self.ws.logits.resize(n * vocab, 0.0);
        }
        let width = hc * hidden;
        self.ws.head_spans.clear();
        for (i, row) in step.wanted.iter().enumerate() {
            self.ws.head_streams[i * width..(i + 1) * width]
                .copy_from_slice(&self.ws.streams[row * width..(row + 1) * width]);
            self.ws.head_positions[i] = step.plan.positions[*row];
            // Each wanted row stands for itself: rows of one sequence need not be neighbours.
            self.ws.head_seqs[i] = i as i32;
            let seq = step.plan.seqs[step.plan.row_seq[*row] as usize];
            let position = step.plan.positions[*row] as u32;
            self.ws.head_spans.push(SeqSpan {
                row_begin: i as u32,
                row_count: 1,
                position,
                chunk: seq.chunk,
            });
        }
        let rows = Batch {
            n_rows: n as u32,
            n_seqs: n as u32,
            seqs: self.ws.head_spans.as_ptr(),
            positions: self.ws.head_positions.as_ptr(),
            row_seq: self.ws.head_seqs.as_ptr(),
            ..*batch
        };
        let args = MhcHeadArgs {
            size: size_of::<MhcHeadArgs>() as u32,
            hc_eps: c.hc_eps,
            norm_eps: c.rms_norm_eps,
            batch: &raw const rows,
            streams: refs::f32s(&self.ws.head_streams[..n * width], [n, hc, hidden]),
            fn_weight: refs::tensor(&weights.hc_head.fn_weight),
            base: refs::tensor(&weights.hc_head.base),
            scale: refs::tensor(&weights.hc_head.scale),
            x: refs::f32s_mut(&mut self.ws.x[..n * hidden], [n, hidden]),
        };
        let ctx = context(step, u32::MAX, LayerClass::Window);
        step.probe.call(step.snapshot.head(step.phase), &ctx, &args, n)?;
        norm_in_place(par, &mut self.ws.x[..n * hidden], weights.norm.f32(), c);
        let logits = &mut self.ws.logits[..n * vocab];
        linear(par, &self.ws.x[..n * hidden], n, mat(&weights.head), logits);
        Ok(logits)
    }
}

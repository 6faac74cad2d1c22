//! The work of a layer, in the parts between sums over ranks.

use super::lists::Lists;
use super::ops::{Done, Work};
use super::{Block, Forward, Step};
use hotseam_abi::StepCtx;
use hotseam_slots::LayerCells;

/// One layer of a step: streams to streams.
pub(super) struct LayerWork<'a> {
    pub(super) forward: &'a Forward,
    pub(super) step: &'a Step<'a>,
    pub(super) cells: &'a LayerCells,
    pub(super) lists: &'a Lists,
    pub(super) layer: usize,
}

impl LayerWork<'_> {
    fn context(&self) -> StepCtx {
        let class = self.forward.model.config.class(self.layer);
        self.forward.context(self.step, self.layer as u32, class)
    }

    /// Streams to the output of the attention block.
    fn attention(&self) -> Done {
        let Self { forward, step, cells, lists, layer } = *self;
        let (ctx, weights) = (self.context(), &forward.model.weights.layers[layer]);
        let block = Block { hc: &weights.hc_attn, norm: &weights.attn_norm };
        forward.collapse(&ctx, cells, lists, step.probe, block)?;
        forward.attention(&ctx, cells, lists, step, layer)
    }

    /// Streams to the output of the experts block.
    fn experts(&self) -> Done {
        let Self { forward, step, cells, lists, layer } = *self;
        let (ctx, weights) = (self.context(), &forward.model.weights.layers[layer]);
        let block = Block { hc: &weights.hc_ffn, norm: &weights.ffn_norm };
        forward.collapse(&ctx, cells, lists, step.probe, block)?;
        forward.ffn(&ctx, cells, lists, step, layer)
    }

    /// A block's output into the streams.
    fn expand(&self) -> Done {
        self.forward.expand(&self.context(), self.cells, self.lists, self.step.probe)
    }
}

impl Work for LayerWork<'_> {
    fn parts(&self) -> usize {
        if self.forward.group.is_some() { 3 } else { 1 }
    }

    fn part(&self, part: usize) -> Done {
        match (part, self.parts()) {
            (_, 1) => {
                self.attention()?;
                self.expand()?;
                self.experts()?;
                self.expand()
            }
            (0, _) => self.attention(),
            (1, _) => {
                self.expand()?;
                self.experts()
            }
            _ => self.expand(),
        }
    }

    fn after(&self, part: usize) -> Done {
        match part {
            0 | 1 => self.forward.sum_ranks(self.lists.rows()),
            _ => Ok(()),
        }
    }
}

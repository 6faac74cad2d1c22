//! The cases of each op.

mod compress;
mod core;
mod experts;
mod matrix;
mod mhc;
mod route;
mod select;
mod store;
mod transport;

use crate::batch::{Rows, Span, Tables};
use crate::buffer::{Buffer, POISON};
use crate::random::Random;
use crate::runner::Runner;
use crate::{Level, Op};
use hotseam_abi::{phase, seam};

pub(crate) use matrix::Matrix;

/// Makes inputs for one op in one phase.
pub(crate) struct Gen {
    pub(crate) rng: Random,
    pub(crate) phase: u32,
    pub(crate) level: Level,
    /// Layout of the subject's pool.
    pub(crate) layout: u32,
    /// Whether the subject works on the memory of a device.
    pub(crate) on_device: bool,
}

impl Gen {
    pub(crate) fn full(&self) -> bool {
        self.level == Level::Full
    }

    /// Rope tables for `2 * half` channels.
    pub(crate) fn tables(&self, half: usize) -> Tables {
        // Of each thread, since a case that runs on a device gives them a place there for its time.
        thread_local! {
            static TABLES: [Tables; 2] = [Tables::new(8), Tables::new(32)];
        }
        TABLES.with(|all| all.iter().find(|t| t.half == half).expect("tables for 16 or 64 channels").clone())
    }

    pub(crate) fn rows(&self, spans: &[Span], padding: usize) -> Rows {
        Rows::new(self.phase, spans, padding)
    }

    /// Batches with every boundary: first groups, window edge, page edges, past 512 and 1,024.
    pub(crate) fn batches(&self) -> Vec<Rows> {
        let each = |positions: &[usize]| -> Vec<Span> {
            positions.iter().enumerate().map(|(i, p)| Span::new(*p, 1, 1 + i as u32 % 3)).collect()
        };
        let s = Span::new;
        let (first, more) = match self.phase {
            phase::PREFILL => (
                self.rows(&[s(0, 5, 0), s(126, 4, 1), s(254, 7, 2), s(1021, 5, 3)], 2),
                vec![
                    self.rows(&[s(0, 1, 0)], 0),
                    self.rows(&[s(0, 130, 0)], 0),
                    self.rows(&[s(500, 65, 2)], 0),
                    self.rows(&[s(1020, 8, 2), s(3, 64, 1), s(255, 2, 1)], 1),
                ],
            ),
            phase::DECODE => (
                self.rows(&each(&[127, 128, 259, 1023]), 1),
                vec![
                    self.rows(&each(&[1023]), 0),
                    self.rows(&each(&[0, 1, 2, 3, 4, 5]), 0),
                    self.rows(&each(&[126, 127, 128, 129, 254, 255, 256, 259, 260]), 2),
                    self.rows(&each(&[511, 512, 513, 1022, 1024, 1025]), 0),
                ],
            ),
            _ => (
                self.rows(&[s(2, 4, 1), s(126, 4, 2), s(254, 6, 1), s(1020, 5, 3)], 1),
                vec![self.rows(&[s(1022, 3, 1)], 0)],
            ),
        };
        let mut batches = vec![first];
        if self.full() {
            batches.extend(more);
        }
        batches
    }

    /// A batch without rows.
    pub(crate) fn empty(&self) -> Rows {
        self.rows(&[], 0)
    }

    /// A few batches that only differ in their number of rows.
    pub(crate) fn row_counts(&self) -> Vec<Rows> {
        let counts: &[usize] = match (self.full(), self.phase) {
            (false, _) => &[3],
            (true, phase::PREFILL) => &[1, 3, 65],
            (true, _) => &[1, 3, 8],
        };
        let span = |i: usize, n: usize| match self.phase {
            phase::PREFILL if i > 0 => None,
            phase::PREFILL => Some(Span::new(40, n, 1)),
            _ => Some(Span::new(100 + 31 * i, 1, 1)),
        };
        counts
            .iter()
            .map(|n| self.rows(&(0..*n).filter_map(|i| span(i, *n)).collect::<Vec<_>>(), 2))
            .collect()
    }

    /// `[rows, width]` normal values; padded rows are NaN.
    pub(crate) fn by_row(&mut self, name: &'static str, rows: &Rows, width: usize, scale: f32) -> Buffer {
        let mut values = self.rng.normals(rows.len() * width, scale);
        for row in (0..rows.len()).filter(|r| rows.position(*r).is_none()) {
            values[row * width..(row + 1) * width].fill(f32::from_bits(POISON));
        }
        Buffer::f32s(name, values).by_row(width)
    }

    /// `n` values near 1, for norm weights.
    pub(crate) fn norm_weight(&mut self, n: usize) -> Buffer {
        let values = self.rng.normals(n, 0.2).into_iter().map(|v| 1.0 + v).collect();
        Buffer::f32s("norm_weight", values)
    }
}

/// The buffer with row `row` only.
pub(crate) fn row_of(buffer: &Buffer, row: usize) -> Buffer {
    let width = buffer.row_words;
    let values = buffer.f32()[row * width..(row + 1) * width].to_vec();
    Buffer::f32s(buffer.name, values).by_row(width)
}

/// Runs the cases of every op that the subject serves.
pub(crate) fn run_all(runner: &mut Runner<'_>) {
    let (subject, level) = (runner.subject, runner.level);
    if subject.seam == seam::KV_TRANSPORT {
        return transport::run(runner);
    }
    let attention = subject.attention;
    let (indexer, moe, mhc) = (subject.indexer, subject.moe, subject.mhc);
    for phase in [phase::PREFILL, phase::DECODE, phase::VERIFY] {
        if subject.info.phases & (1 << phase) == 0 {
            continue;
        }
        // A seed for each op and phase: an op's inputs do not depend on which others are served.
        let generator = |op: Op| Gen {
            rng: Random::new(0x4057 + 16 * op as u64 + u64::from(phase)),
            phase,
            level,
            layout: subject.info.layout,
            on_device: subject.device.is_some(),
        };
        if attention.is_some_and(|a| a.store.is_some()) {
            store::run(runner, generator(Op::AttentionStore));
        }
        if attention.is_some_and(|a| a.compress.is_some()) {
            compress::run(runner, generator(Op::AttentionCompress), Op::AttentionCompress);
        }
        if attention.is_some_and(|a| a.core.is_some()) {
            core::run(runner, generator(Op::AttentionCore));
        }
        if indexer.is_some_and(|a| a.compress.is_some()) {
            compress::run(runner, generator(Op::IndexerCompress), Op::IndexerCompress);
        }
        if indexer.is_some_and(|a| a.select.is_some()) {
            select::run(runner, generator(Op::IndexerSelect));
        }
        if moe.is_some_and(|a| a.route.is_some()) {
            route::run(runner, generator(Op::MoeRoute));
        }
        if moe.is_some_and(|a| a.experts.is_some()) {
            experts::run(runner, generator(Op::MoeExperts));
        }
        if mhc.is_some_and(|a| a.pre.is_some()) {
            mhc::run_pre(runner, generator(Op::MhcPre));
        }
        if mhc.is_some_and(|a| a.post.is_some()) {
            mhc::run_post(runner, generator(Op::MhcPost));
        }
        if mhc.is_some_and(|a| a.head.is_some()) {
            mhc::run_head(runner, generator(Op::MhcHead));
        }
    }
}

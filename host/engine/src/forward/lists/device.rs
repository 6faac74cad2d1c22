//! The index lists of a step in device memory, each at an address that does not change from step to step.

use super::{CompressLists, HeadRows, Lists};
use hotseam_abi::{Batch, SeqSpan};
use hotseam_cuda::{Buffer, CudaError, Stream, copy_to_device_on};
use hotseam_kv::{CompressPlan, PAGE_TOKENS, Plan};

/// A list: its first word in the memory, and its words at most.
#[derive(Debug, Clone, Copy)]
struct Part {
    at: usize,
    words: usize,
}

#[derive(Debug, Clone, Copy)]
struct Compress {
    sources: Part,
    entry_positions: Part,
    out_slots: Part,
    state_dst: Part,
}

/// Memory for the lists of steps up to a size, and a copy of it in host memory that they are written to first.
#[derive(Debug)]
pub(crate) struct DeviceLists {
    positions: Part,
    row_seq: Part,
    seqs: Part,
    tokens: Part,
    window_slots: Part,
    c4: Compress,
    c128: Compress,
    head_rows: Part,
    head_positions: Part,
    head_seqs: Part,
    head_spans: Part,
    table: Part,
    window_table: Part,
    table_width: usize,
    /// Whether rows, sequences and entries are padded to few different numbers, for graphs.
    padded: bool,
    words: Vec<u32>,
    memory: Buffer,
}

/// Hands out the words of the memory.
struct Cursor(usize);

impl Cursor {
    /// The next `words`, from a multiple of 4 on.
    fn take(&mut self, words: usize) -> Part {
        let at = self.0.next_multiple_of(4);
        self.0 = at + words;
        Part { at, words }
    }

    fn compress(&mut self, rows: usize, seqs: usize, ratio: usize) -> Compress {
        // A sequence closes at most one group more than its rows fill.
        let entries = rows / ratio + seqs;
        Compress {
            sources: self.take(entries * if ratio == 4 { 8 } else { ratio }),
            entry_positions: self.take(entries),
            out_slots: self.take(entries),
            state_dst: self.take(rows),
        }
    }
}

/// Words of a span.
const SPAN: usize = size_of::<SeqSpan>() / 4;

impl DeviceLists {
    /// For steps of at most `rows` rows of `seqs` sequences of `max_context` positions.
    ///
    /// # Errors
    /// If the device has not the memory.
    pub(crate) fn new(rows: usize, seqs: usize, max_context: usize) -> Result<Self, CudaError> {
        let table_width = max_context.div_ceil(PAGE_TOKENS).max(1);
        let mut c = Cursor(0);
        let (positions, row_seq, seqs_part) = (c.take(rows), c.take(rows), c.take(seqs * SPAN));
        let (tokens, window_slots) = (c.take(rows), c.take(rows));
        let (c4, c128) = (c.compress(rows, seqs, 4), c.compress(rows, seqs, 128));
        let (head_rows, head_positions) = (c.take(rows), c.take(rows));
        let (head_seqs, head_spans) = (c.take(rows), c.take(rows * SPAN));
        let (table, window_table) = (c.take(seqs * table_width), c.take(seqs * table_width));
        Ok(Self {
            positions,
            row_seq,
            seqs: seqs_part,
            tokens,
            window_slots,
            c4,
            c128,
            head_rows,
            head_positions,
            head_seqs,
            head_spans,
            table,
            window_table,
            table_width,
            padded: false,
            words: vec![0; c.0],
            memory: Buffer::zeroed(c.0 * 4, "the index lists of a step")?,
        })
    }

    /// With steps of one row a sequence padded to a power of two rows, each with an entry of either ratio.
    pub(crate) fn padded(self, padded: bool) -> Self {
        Self { padded, ..self }
    }

    /// Copies the lists of a step to the device, in order with `stream`; padded only if the step `repeats`.
    ///
    /// # Errors
    /// If the driver refuses.
    pub(crate) fn put(
        &mut self,
        plan: &Plan,
        tokens: &[i32],
        head: &HeadRows,
        repeats: bool,
        stream: &Stream,
    ) -> Result<Lists, CudaError> {
        self.set(self.positions, &plan.positions);
        self.set(self.row_seq, &plan.row_seq);
        self.set_spans(self.seqs, &plan.seqs);
        self.set(self.tokens, tokens);
        self.set(self.window_slots, &plan.window_slots);
        self.set_compress(self.c4, &plan.c4);
        self.set_compress(self.c128, &plan.c128);
        self.set(self.head_rows, &head.rows);
        self.set(self.head_positions, &head.positions);
        self.set(self.head_seqs, &head.seqs);
        self.set_spans(self.head_spans, &head.spans);
        self.set_table(self.table, &plan.table, plan.table_width);
        self.set_table(self.window_table, &plan.window_table, plan.table_width);
        let live = plan.rows();
        let (mut rows, mut seqs) = (live, plan.seqs.len());
        let (mut c4, mut c128) = (plan.c4.out_slots.len(), plan.c128.out_slots.len());
        if self.padded && repeats && rows == seqs {
            rows = rows.next_power_of_two().min(self.positions.words);
            self.pad(live, rows, [c4, c128]);
            (seqs, c4, c128) = (rows, rows, rows);
        }
        copy_to_device_on(self.memory.address(), &self.words, stream.raw())?;
        Ok(Lists {
            batch: self.batch(rows, seqs, [self.positions, self.row_seq, self.seqs]),
            live,
            tokens: self.address(self.tokens),
            window_slots: self.address(self.window_slots),
            c4: self.compress(self.c4, c4),
            c128: self.compress(self.c128, c128),
            table: self.address(self.table),
            window_table: self.address(self.window_table),
            table_width: self.table_width,
            head: self.batch(
                head.rows.len(),
                head.rows.len(),
                [self.head_positions, self.head_seqs, self.head_spans],
            ),
            head_rows: self.address(self.head_rows),
        })
    }

    /// Writes what stands in the lists for rows `live..rows`, and for entries up to `rows`.
    fn pad(&mut self, live: usize, rows: usize, [c4, c128]: [usize; 2]) {
        let mut fill = |part: Part, from: usize, value: u32| {
            self.words[part.at + from..part.at + rows].fill(value);
        };
        let none = u32::MAX;
        fill(self.positions, live, none);
        fill(self.tokens, live, 0);
        for list in [self.window_slots, self.c4.state_dst, self.c128.state_dst] {
            fill(list, live, none);
        }
        for (parts, entries) in [(self.c4, c4), (self.c128, c128)] {
            fill(parts.out_slots, entries, none);
            fill(parts.entry_positions, entries, 0);
        }
        for row in live..rows {
            self.words[self.row_seq.at + row] = row as u32;
        }
        let spans = self.words[self.seqs.at..].chunks_exact_mut(SPAN).enumerate();
        for (row, span) in spans.take(rows).skip(live) {
            span.copy_from_slice(&[row as u32, 1, 0, 0]);
        }
        for part in [self.table, self.window_table] {
            let width = self.table_width;
            self.words[part.at + live * width..part.at + rows * width].fill(none);
        }
    }

    fn address<T>(&self, part: Part) -> *const T {
        (self.memory.address() + 4 * part.at as u64) as *const T
    }

    fn batch(&self, rows: usize, seqs: usize, [positions, row_seq, spans]: [Part; 3]) -> Batch {
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: rows as u32,
            n_seqs: seqs as u32,
            positions: self.address(positions),
            row_seq: self.address(row_seq),
            seqs: self.address(spans),
        }
    }

    fn compress(&self, parts: Compress, n_entries: usize) -> CompressLists {
        CompressLists {
            n_entries,
            sources: self.address(parts.sources),
            entry_positions: self.address(parts.entry_positions),
            out_slots: self.address(parts.out_slots),
            state_dst: self.address(parts.state_dst),
        }
    }

    fn set(&mut self, part: Part, values: &[i32]) {
        assert!(values.len() <= part.words, "a list of {} for {} words", values.len(), part.words);
        for (to, value) in self.words[part.at..].iter_mut().zip(values) {
            *to = value.cast_unsigned();
        }
    }

    fn set_spans(&mut self, part: Part, spans: &[SeqSpan]) {
        assert!(spans.len() * SPAN <= part.words, "{} spans for {} words", spans.len(), part.words);
        for (to, span) in self.words[part.at..].chunks_exact_mut(SPAN).zip(spans) {
            to.copy_from_slice(&[span.row_begin, span.row_count, span.position, span.chunk]);
        }
    }

    fn set_compress(&mut self, parts: Compress, plan: &CompressPlan) {
        self.set(parts.sources, &plan.sources);
        self.set(parts.entry_positions, &plan.entry_positions);
        self.set(parts.out_slots, &plan.out_slots);
        self.set(parts.state_dst, &plan.state_dst);
    }

    fn set_table(&mut self, part: Part, table: &[i32], width: usize) {
        assert_eq!(width, self.table_width, "tables of the context that the lists are for");
        self.set(part, table);
    }
}

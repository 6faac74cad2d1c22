//! From sequences and row counts to the index lists of a step. The same lists serve every layer.

use crate::seq::{c4_kept, c128_kept};
use crate::{C4_RING, C128_RING, KvError, KvStore, PAGE_TOKENS, SeqKv};
use hotseam_abi::{Batch, SeqSpan};

/// Lists of one compressor ratio; see [`hotseam_abi::CompressArgs`].
#[derive(Debug, Default)]
pub struct CompressPlan {
    /// `[n_entries, ratio * (1 + overlap)]`.
    pub sources: Vec<i32>,
    /// `[n_entries]` first position of each group.
    pub entry_positions: Vec<i32>,
    /// `[n_entries]` slot of each entry.
    pub out_slots: Vec<i32>,
    /// `[rows]` state row to write, or -1.
    pub state_dst: Vec<i32>,
}

impl CompressPlan {
    fn clear(&mut self) {
        self.sources.clear();
        self.entry_positions.clear();
        self.out_slots.clear();
        self.state_dst.clear();
    }
}

/// Everything a step's calls need to address rows, pages and states. Reused from step to step without allocation once
/// it has grown to the largest step.
#[derive(Debug, Default)]
pub struct Plan {
    /// `[rows]`.
    pub positions: Vec<i32>,
    /// `[rows]`.
    pub row_seq: Vec<i32>,
    /// `[n_seqs]`.
    pub seqs: Vec<SeqSpan>,
    /// `[rows]` window slot of each row.
    pub window_slots: Vec<i32>,
    /// Ratio-4 lists, for `attention.compress` and `indexer.compress`.
    pub c4: CompressPlan,
    /// Ratio-128 lists.
    pub c128: CompressPlan,
    /// `[n_seqs, table_width]` full pages.
    pub table: Vec<i32>,
    /// `[n_seqs, table_width]` window pages.
    pub window_table: Vec<i32>,
    /// Row length of both tables.
    pub table_width: usize,
}

impl Plan {
    /// Starts an empty step of sequences that hold at most `max_tokens` positions each.
    pub fn begin(&mut self, max_tokens: usize) {
        self.positions.clear();
        self.row_seq.clear();
        self.seqs.clear();
        self.window_slots.clear();
        self.c4.clear();
        self.c128.clear();
        self.table.clear();
        self.window_table.clear();
        self.table_width = max_tokens.div_ceil(PAGE_TOKENS).max(1);
    }

    /// Adds `rows` new positions of a sequence. `chunk` is the number of its prefill chunk.
    ///
    /// # Errors
    /// If window pages or state rows run out; the sequence must then be aborted or closed.
    pub fn add(
        &mut self,
        store: &mut KvStore,
        seq: &mut SeqKv,
        rows: usize,
        chunk: u32,
    ) -> Result<(), KvError> {
        let (start, end) = (seq.len, seq.len + rows);
        let row_begin = self.positions.len();
        let seq_index = self.seqs.len() as i32;
        self.seqs.push(SeqSpan {
            row_begin: row_begin as u32,
            row_count: rows as u32,
            position: start as u32,
            chunk,
        });
        for page in start / PAGE_TOKENS..end.div_ceil(PAGE_TOKENS) {
            if seq.window_pages[page] < 0 {
                seq.window_pages[page] = store.window_pages.take()?;
            }
        }
        for position in start..end {
            self.positions.push(position as i32);
            self.row_seq.push(seq_index);
            let page = seq.window_pages[position / PAGE_TOKENS] as usize;
            self.window_slots.push((page * PAGE_TOKENS + position % PAGE_TOKENS) as i32);
        }
        let source = |ring: &[i32], position: i64| match position {
            p if p < 0 => -1,
            p if p >= start as i64 => (p as usize - start + row_begin) as i32,
            p => -(ring[p as usize % ring.len()] + 2),
        };
        for group in start / 4..end / 4 {
            for position in group as i64 * 4 - 4..group as i64 * 4 + 4 {
                self.c4.sources.push(source(&seq.c4_ring, position));
            }
            push_entry(&mut self.c4, seq, group, 4);
        }
        for group in start / 128..end / 128 {
            for position in group as i64 * 128..group as i64 * 128 + 128 {
                self.c128.sources.push(source(&seq.c128_ring, position));
            }
            push_entry(&mut self.c128, seq, group, 128);
        }
        let (c4, c128) = (c4_kept(end), c128_kept(end));
        debug_assert!(c4.len() <= C4_RING && c128.len() <= C128_RING);
        for position in start..end {
            let fresh =
                |kept: bool, rows: &mut crate::alloc::FreeList, list: &mut Vec<(usize, i32)>| match kept {
                    false => Ok::<_, KvError>(-1),
                    true => {
                        let row = rows.take()?;
                        list.push((position, row));
                        Ok(row)
                    }
                };
            self.c4.state_dst.push(fresh(c4.contains(&position), &mut store.c4_rows, &mut seq.c4_fresh)?);
            self.c128.state_dst.push(fresh(
                c128.contains(&position),
                &mut store.c128_rows,
                &mut seq.c128_fresh,
            )?);
        }
        push_row(&mut self.table, &seq.pages, self.table_width);
        push_row(&mut self.window_table, &seq.window_pages, self.table_width);
        Ok(())
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.positions.len()
    }

    /// The rows as a contract batch. It borrows this plan.
    pub fn batch(&self) -> Batch {
        Batch {
            size: size_of::<Batch>() as u32,
            n_rows: self.positions.len() as u32,
            n_seqs: self.seqs.len() as u32,
            positions: self.positions.as_ptr(),
            row_seq: self.row_seq.as_ptr(),
            seqs: self.seqs.as_ptr(),
        }
    }
}

fn push_entry(plan: &mut CompressPlan, seq: &SeqKv, group: usize, ratio: usize) {
    let per_page = PAGE_TOKENS / ratio;
    plan.entry_positions.push((group * ratio) as i32);
    plan.out_slots.push(seq.pages[group / per_page] * per_page as i32 + (group % per_page) as i32);
}

fn push_row(table: &mut Vec<i32>, pages: &[i32], width: usize) {
    let n = pages.len().min(width);
    table.extend_from_slice(&pages[..n]);
    table.extend(std::iter::repeat_n(-1, width - n));
}

//! Cutting a batch into runs of rows that see nearly the same entries.

use hotseam_sdk::views::Rows;

/// Cuts the rows into runs of one sequence with consecutive positions, at most `limit` rows each; writes where each run
/// ends and returns how many there are. A padded row is a run of its own.
pub(crate) fn cut(rows: &Rows<'_>, limit: usize, ends: &mut [usize]) -> usize {
    let (mut count, mut begin) = (0, 0);
    for end in 1..=rows.len() {
        let goes_on = end < rows.len() && end - begin < limit && follows(rows, end - 1, end);
        if !goes_on {
            ends[count] = end;
            (count, begin) = (count + 1, end);
        }
    }
    count
}

/// Whether row `b` is the next token after row `a`.
fn follows(rows: &Rows<'_>, a: usize, b: usize) -> bool {
    let (p, q) = (rows.positions[a], rows.positions[b]);
    p >= 0 && q == p + 1 && rows.row_seq[a] == rows.row_seq[b]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_end_where_the_sequence_or_the_position_does() {
        let positions = [5, 6, 7, 8, 0, 1, -1, -1, 2, 4, 3];
        let row_seq = [0, 0, 0, 0, 1, 1, -1, -1, 1, 1, 2];
        let rows = Rows { positions: &positions, row_seq: &row_seq, seqs: &[] };
        for (limit, expected) in [
            (3, &[3, 4, 6, 7, 8, 9, 10, 11][..]),
            (16, &[4, 6, 7, 8, 9, 10, 11]),
            (1, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]),
        ] {
            let mut ends = [0; 11];
            let count = cut(&rows, limit, &mut ends);
            assert_eq!(&ends[..count], expected, "limit {limit}");
        }
        let none = Rows { positions: &[], row_seq: &[], seqs: &[] };
        assert_eq!(cut(&none, 4, &mut []), 0);
    }
}

//! Few rows: the weights are read once and used straight from where they lie.

use super::tile::{Direct, Element, for_row_tiles, strided, tile};
use super::{Area, Product};
use crate::lanes::Lanes;

/// Computes an area of `y` with the weights `[n, k]` at `w`.
///
/// # Safety
/// The area is in bounds of all operands, and nobody else touches it in `y`.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, T: Element>(lanes: L, p: &Product, w: *const T, area: Area) {
    let end = area.col + area.cols;
    let mut col = area.col;
    // SAFETY: columns col..end and the rows of the area are in bounds.
    unsafe {
        // Eight columns stay in the L1 cache for all rows.
        while col + 8 <= end {
            for_row_tiles!(row in area.row, area.rows, threes: !T::WIDENS; M => if M == 1 {
                columns::<L, T, 1, 8>(lanes, p, w, row, col);
            } else {
                columns::<L, T, M, 4>(lanes, p, w, row, col);
                columns::<L, T, M, 4>(lanes, p, w, row, col + 4);
            });
            col += 8;
        }
        while col < end {
            for_row_tiles!(row in area.row, area.rows, threes: !T::WIDENS; M => {
                columns::<L, T, M, 1>(lanes, p, w, row, col);
            });
            col += 1;
        }
    }
}

/// One tile.
///
/// # Safety
/// As [`multiply`].
#[inline(always)]
unsafe fn columns<L: Lanes, T: Element, const M: usize, const N: usize>(
    lanes: L,
    p: &Product,
    w: *const T,
    row: usize,
    col: usize,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let x = strided::<f32, M>(p.x.add(row * p.x_stride), p.x_stride);
        let w = Direct(strided::<T, N>(w.add(col * p.k), p.k));
        p.store(row, col, tile(lanes, x, w, p.k));
    }
}

impl Product {
    /// Writes one tile of `y`.
    ///
    /// # Safety
    /// The tile is in bounds of `y` and ours.
    #[inline(always)]
    pub(super) unsafe fn store<const M: usize, const N: usize>(
        &self,
        row: usize,
        col: usize,
        values: [[f32; N]; M],
    ) {
        for (m, values) in values.iter().enumerate() {
            // SAFETY: as promised by the caller; an array of f32 has the alignment of f32.
            unsafe { self.y.add((row + m) * self.y_stride + col).cast::<[f32; N]>().write(*values) };
        }
    }
}

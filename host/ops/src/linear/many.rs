//! Many rows: panels of weights that fit the L1 cache are used for a whole block of rows. bf16 weights are
//! widened and interleaved into a buffer first; f32 weights are used where they lie.

use std::cell::RefCell;

use super::tile::{Columns, Direct, Element, Packed, for_row_tiles, load_tail, strided, tile};
use super::{Area, Product, few};
use crate::lanes::{LANES, Lanes};

/// Bytes of a packed panel: half of the L1 cache, so that rows of `x` pass beside it.
const PANEL_BYTES: usize = 16 * 1024;
/// Bytes of a block of rows of `x`: half of the L2 cache.
const BLOCK_BYTES: usize = 256 * 1024;
/// Fewest rows of a block: below, packing would cost too much of the time.
const MIN_BLOCK: usize = 48;
/// Weight rows interleaved with each other.
const QUAD: usize = 4;

thread_local! {
    /// Packed panel of this thread; grows to the largest panel seen.
    static PANEL: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

/// Values of a cache line.
const LINE: usize = 16;

/// One cache line, so that panels are aligned to it.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Line(#[expect(dead_code, reason = "storage, accessed through a pointer")] [f32; LINE]);

/// Weight rows of a panel: a multiple of 4.
pub(super) fn panel_rows(k: usize) -> usize {
    (PANEL_BYTES / size_of::<f32>() / k.max(1)).clamp(QUAD, 64) / QUAD * QUAD
}

/// Rows of `x` that are multiplied with a panel before the next one is packed.
pub(super) fn row_block(rows: usize, k: usize) -> usize {
    let most = (BLOCK_BYTES / size_of::<f32>() / k.max(1)).max(MIN_BLOCK);
    let blocks = rows.div_ceil(most);
    rows.div_ceil(blocks).next_multiple_of(3)
}

/// Computes an area of `y` with the weights `[n, k]` at `w`.
///
/// # Safety
/// The area is in bounds of all operands, and nobody else touches it in `y`.
#[inline(always)]
pub(super) unsafe fn multiply<L: Lanes, T: Element>(lanes: L, p: &Product, w: *const T, area: Area) {
    let most = panel_rows(p.k);
    let whole = area.cols / QUAD * QUAD;
    // SAFETY: the columns of the panels, and those that fill no quad, are columns of the area.
    unsafe {
        for first in (0..whole).step_by(most) {
            let panel = Area { col: area.col + first, cols: most.min(whole - first), ..area };
            let w = w.add(panel.col * p.k);
            if T::WIDENS {
                packed(lanes, p, w, panel);
            } else {
                block(lanes, p, InPlace(w), panel);
            }
        }
        few::multiply(lanes, p, w, Area { col: area.col + whole, cols: area.cols - whole, ..area });
    }
}

/// Widens the weights of an area, whose first row is at `w`, into the panel of this thread and multiplies.
///
/// # Safety
/// As [`multiply`]; the columns fill quads.
#[inline(always)]
unsafe fn packed<L: Lanes, T: Element>(lanes: L, p: &Product, w: *const T, area: Area) {
    let quad = QUAD * p.k.next_multiple_of(LANES);
    let lines = (area.cols / QUAD * quad).div_ceil(LINE);
    let mut scratch = PANEL.take();
    if scratch.len() < lines {
        scratch.resize(lines, Line([0.0; LINE]));
    }
    let panel = scratch.as_mut_ptr().cast::<f32>();
    // SAFETY: the scratch holds all quads of the area.
    unsafe {
        for first in (0..area.cols).step_by(QUAD) {
            pack(lanes, w.add(first * p.k), p.k, panel.add(first / QUAD * quad));
        }
        block(lanes, p, Interleaved { at: panel, quad }, area);
    }
    PANEL.set(scratch);
}

/// Packs four rows at `w` as a quad `[ceil(k / 8), 4, 8]`.
///
/// # Safety
/// The rows exist, and `to` has room for a quad.
#[inline(always)]
unsafe fn pack<L: Lanes, T: Element>(lanes: L, w: *const T, k: usize, to: *mut f32) {
    let whole = k - k % LANES;
    for j in 0..QUAD {
        // SAFETY: i + 8 <= k in the loop; the quad has ceil(k / 8) steps of 4 x 8 values.
        unsafe {
            let (row, to) = (w.add(j * k), to.add(j * LANES));
            for i in (0..whole).step_by(LANES) {
                lanes.store(T::load(lanes, row.add(i)), to.add(i * QUAD));
            }
            if whole < k {
                lanes.store(load_tail(lanes, row.add(whole), k - whole), to.add(whole * QUAD));
            }
        }
    }
}

/// Weight rows that a block of rows of `x` is multiplied with.
trait Panel: Copy {
    /// Four of them.
    type Quad: Columns<QUAD>;
    /// The four from `first` on, which is a multiple of 4.
    ///
    /// # Safety
    /// They exist.
    unsafe fn quad(self, first: usize, k: usize) -> Self::Quad;
}

/// Weights where they lie.
#[derive(Clone, Copy)]
struct InPlace<T>(*const T);

impl<T: Element> Panel for InPlace<T> {
    type Quad = Direct<T, QUAD>;

    #[inline(always)]
    unsafe fn quad(self, first: usize, k: usize) -> Self::Quad {
        // SAFETY: as promised by the caller.
        Direct(unsafe { strided(self.0.add(first * k), k) })
    }
}

/// Weights packed by [`pack`], `quad` values apart.
#[derive(Clone, Copy)]
struct Interleaved {
    at: *const f32,
    quad: usize,
}

impl Panel for Interleaved {
    type Quad = Packed;

    #[inline(always)]
    unsafe fn quad(self, first: usize, _k: usize) -> Packed {
        // SAFETY: as promised by the caller.
        Packed(unsafe { self.at.add(first / QUAD * self.quad) })
    }
}

/// Multiplies the rows of the area with a panel that holds its columns.
///
/// # Safety
/// The area is in bounds and ours; its columns fill quads.
#[inline(always)]
unsafe fn block<L: Lanes, P: Panel>(lanes: L, p: &Product, panel: P, area: Area) {
    // SAFETY: the rows of the area are in bounds.
    unsafe {
        for_row_tiles!(row in area.row, area.rows, threes: true; M => stripe::<L, P, M>(lanes, p, panel, row, area))
    }
}

/// `M` rows times all columns of the panel.
///
/// # Safety
/// As [`block`].
#[inline(always)]
unsafe fn stripe<L: Lanes, P: Panel, const M: usize>(
    lanes: L,
    p: &Product,
    panel: P,
    row: usize,
    area: Area,
) {
    // SAFETY: as promised by the caller.
    unsafe {
        let x = strided::<f32, M>(p.x.add(row * p.x_stride), p.x_stride);
        for first in (0..area.cols).step_by(QUAD) {
            let values = tile::<L, P::Quad, M, QUAD>(lanes, x, panel.quad(first, p.k), p.k);
            p.store(row, area.col + first, values);
        }
    }
}

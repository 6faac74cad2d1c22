//! What multiplies tiles: the processor, and in tests plain arithmetic.

use crate::amx::Amx;

/// Rows of a tile: columns of `y`, or rows of `x`.
pub(super) const SIDE: usize = 16;
/// Numbers along `k` of a tile of weights.
pub(super) const DEPTH: usize = 32;
/// Bytes of a full tile.
pub(super) const TILE: usize = 1024;
/// Parts into which a number of `x` is cut.
pub(super) const PARTS: usize = 3;

/// Tiles that are multiplied in one go. Each tile of weights holds 16 columns of `y` and 32 numbers along `k`, row after
/// row; each tile of `x` has 16 rows of two numbers along `k` for each of its rows of `x`; a tile of sums has a row for
/// each column of `y`.
#[derive(Clone, Copy)]
pub(super) struct Stripe {
    /// First tile of weights of the first 16 columns; tiles that follow along `k` follow in memory.
    pub w: *const u8,
    /// Bytes to the tiles of the next 16 columns.
    pub w_step: usize,
    /// First tile of the first rows of `x`: for each tile along `k` the parts of its numbers, the least first.
    pub x: *const u8,
    /// Bytes to the tiles of the next rows.
    pub x_step: usize,
    /// First tile of sums, of 16 x 16 f32 whatever the width.
    pub sums: *mut f32,
    /// Bytes to the sums of the next 16 columns; those of the next rows are [`TILE`] further.
    pub sums_step: usize,
    /// Tiles along `k`, at least 1.
    pub count: usize,
    /// Whether to add to sums that are there.
    pub more: bool,
}

/// Which tiles are multiplied at once; at most four tiles of sums fit the registers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    /// Four tiles of columns, one of rows.
    Columns,
    /// Two and two.
    Square,
    /// Two tiles of columns, one of rows.
    Half,
}

impl Shape {
    /// Tiles of columns and of rows.
    pub(super) const fn tiles(self) -> (usize, usize) {
        match self {
            Self::Columns => (4, 1),
            Self::Square => (2, 2),
            Self::Half => (2, 1),
        }
    }
}

/// Multiplies tiles.
pub(super) trait Unit: Copy {
    /// Gets ready for tiles of so many rows of `x`, 1 to 16.
    fn start(self, width: usize);
    /// Adds the products of a stripe to its sums: for each tile along `k`, for each part of `x`, one tile product.
    ///
    /// # Safety
    /// [`Self::start`] was called on this thread with `width`, and everything the stripe names is readable, its sums
    /// writable.
    unsafe fn multiply(self, width: usize, shape: Shape, stripe: Stripe);
    /// Gives the tiles back.
    fn end(self);
}

#[cfg(target_arch = "x86_64")]
mod processor {
    use super::{Amx, SIDE, Shape, Stripe, Unit};
    use std::arch::asm;

    /// What `LDTILECFG` reads.
    #[repr(C, align(64))]
    struct TileConfig {
        palette: u8,
        start_row: u8,
        reserved: [u8; 14],
        /// Bytes of a row of each tile.
        row_bytes: [u16; 16],
        /// Rows of each tile.
        rows: [u8; 16],
    }

    impl Unit for Amx {
        fn start(self, width: usize) {
            let narrow = 4 * width as u16;
            let mut config =
                TileConfig { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
            config.row_bytes[..8].fill(narrow);
            config.rows[..8].fill(SIDE as u8);
            // Tile 4 holds weights, and so may tile 5 if all are full.
            config.row_bytes[4] = 64;
            // SAFETY: self proves that the processor has tiles and that they may be used; the configuration is valid.
            unsafe { asm!("ldtilecfg [{}]", in(reg) &raw const config, options(nostack, readonly)) };
        }

        unsafe fn multiply(self, width: usize, shape: Shape, s: Stripe) {
            // SAFETY: self proves that the processor has tiles; the caller promises the memory and the configuration.
            unsafe {
                match shape {
                    Shape::Columns => columns(width, s),
                    Shape::Square => square(s),
                    Shape::Half => half(s),
                }
            }
        }

        fn end(self) {
            // SAFETY: self proves that the processor has tiles.
            unsafe { asm!("tilerelease", options(nostack, nomem)) };
        }
    }

    /// Four tiles of columns times one of rows.
    ///
    /// # Safety
    /// As [`Unit::multiply`].
    unsafe fn columns(width: usize, s: Stripe) {
        // SAFETY: as promised by the caller.
        unsafe {
            asm!(
                "test {more}, {more}",
                "jz 2f",
                "tileloadd tmm0, [{s0} + {line}]",
                "tileloadd tmm1, [{s1} + {line}]",
                "tileloadd tmm2, [{s2} + {line}]",
                "tileloadd tmm3, [{s3} + {line}]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm5, [{x} + {narrow}]",
                "add {x}, {part}",
                "tileloadd tmm6, [{x} + {narrow}]",
                "add {x}, {part}",
                "tileloadd tmm7, [{x} + {narrow}]",
                "add {x}, {part}",
                "tileloadd tmm4, [{w} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm5",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "add {w}, {step}",
                "tileloadd tmm4, [{w} + {line}]",
                "tdpbf16ps tmm1, tmm4, tmm5",
                "tdpbf16ps tmm1, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "add {w}, {step}",
                "tileloadd tmm4, [{w} + {line}]",
                "tdpbf16ps tmm2, tmm4, tmm5",
                "tdpbf16ps tmm2, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm4, tmm7",
                "add {w}, {step}",
                "tileloadd tmm4, [{w} + {line}]",
                "tdpbf16ps tmm3, tmm4, tmm5",
                "tdpbf16ps tmm3, tmm4, tmm6",
                "tdpbf16ps tmm3, tmm4, tmm7",
                "sub {w}, {back}",
                "dec {count}",
                "jnz 3b",
                "tilestored [{s0} + {line}], tmm0",
                "tilestored [{s1} + {line}], tmm1",
                "tilestored [{s2} + {line}], tmm2",
                "tilestored [{s3} + {line}], tmm3",
                more = in(reg) usize::from(s.more),
                s0 = in(reg) s.sums,
                s1 = in(reg) s.sums.byte_add(s.sums_step),
                s2 = in(reg) s.sums.byte_add(2 * s.sums_step),
                s3 = in(reg) s.sums.byte_add(3 * s.sums_step),
                line = in(reg) 64_usize,
                narrow = in(reg) 4 * width,
                part = in(reg) 64 * width,
                step = in(reg) s.w_step,
                back = in(reg) 3 * s.w_step - super::TILE,
                w = inout(reg) s.w => _,
                x = inout(reg) s.x => _,
                count = inout(reg) s.count => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Two tiles of columns times two of rows, all full.
    ///
    /// # Safety
    /// As [`Unit::multiply`].
    unsafe fn square(s: Stripe) {
        // SAFETY: as promised by the caller.
        unsafe {
            asm!(
                "test {more}, {more}",
                "jz 2f",
                "tileloadd tmm0, [{s0} + {line}]",
                "tileloadd tmm1, [{s0} + {line} + 1024]",
                "tileloadd tmm2, [{s1} + {line}]",
                "tileloadd tmm3, [{s1} + {line} + 1024]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3",
                "3:",
                "tileloadd tmm4, [{w0} + {line}]",
                "tileloadd tmm5, [{w1} + {line}]",
                "tileloadd tmm6, [{x0} + {line}]",
                "tileloadd tmm7, [{x1} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{x0} + {line} + 1024]",
                "tileloadd tmm7, [{x1} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "tileloadd tmm6, [{x0} + {line} + 2048]",
                "tileloadd tmm7, [{x1} + {line} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                "add {x0}, 3072",
                "add {x1}, 3072",
                "add {w0}, 1024",
                "add {w1}, 1024",
                "dec {count}",
                "jnz 3b",
                "tilestored [{s0} + {line}], tmm0",
                "tilestored [{s0} + {line} + 1024], tmm1",
                "tilestored [{s1} + {line}], tmm2",
                "tilestored [{s1} + {line} + 1024], tmm3",
                more = in(reg) usize::from(s.more),
                s0 = in(reg) s.sums,
                s1 = in(reg) s.sums.byte_add(s.sums_step),
                line = in(reg) 64_usize,
                w0 = inout(reg) s.w => _,
                w1 = inout(reg) s.w.add(s.w_step) => _,
                x0 = inout(reg) s.x => _,
                x1 = inout(reg) s.x.add(s.x_step) => _,
                count = inout(reg) s.count => _,
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }

    /// Two tiles of columns times one of rows, all full.
    ///
    /// # Safety
    /// As [`Unit::multiply`].
    unsafe fn half(s: Stripe) {
        // SAFETY: as promised by the caller.
        unsafe {
            asm!(
                "test {more}, {more}",
                "jz 2f",
                "tileloadd tmm0, [{s0} + {line}]",
                "tileloadd tmm2, [{s1} + {line}]",
                "jmp 3f",
                "2:",
                "tilezero tmm0",
                "tilezero tmm2",
                "3:",
                "tileloadd tmm4, [{w0} + {line}]",
                "tileloadd tmm5, [{w1} + {line}]",
                "tileloadd tmm6, [{x} + {line}]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tileloadd tmm7, [{x} + {line} + 1024]",
                "tdpbf16ps tmm0, tmm4, tmm7",
                "tdpbf16ps tmm2, tmm5, tmm7",
                "tileloadd tmm6, [{x} + {line} + 2048]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "add {x}, 3072",
                "add {w0}, 1024",
                "add {w1}, 1024",
                "dec {count}",
                "jnz 3b",
                "tilestored [{s0} + {line}], tmm0",
                "tilestored [{s1} + {line}], tmm2",
                more = in(reg) usize::from(s.more),
                s0 = in(reg) s.sums,
                s1 = in(reg) s.sums.byte_add(s.sums_step),
                line = in(reg) 64_usize,
                w0 = inout(reg) s.w => _,
                w1 = inout(reg) s.w.add(s.w_step) => _,
                x = inout(reg) s.x => _,
                count = inout(reg) s.count => _,
                out("tmm0") _, out("tmm2") _, out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
                options(nostack),
            );
        }
    }
}

/// Without an x86-64 processor nobody has an [`Amx`].
#[cfg(not(target_arch = "x86_64"))]
impl Unit for Amx {
    fn start(self, _width: usize) {}
    unsafe fn multiply(self, _width: usize, _shape: Shape, _stripe: Stripe) {}
    fn end(self) {}
}

/// The same products one number after the other, for machines without tiles.
#[cfg(test)]
#[derive(Clone, Copy)]
pub(super) struct Plain;

#[cfg(test)]
impl Unit for Plain {
    fn start(self, _width: usize) {}

    unsafe fn multiply(self, width: usize, shape: Shape, s: Stripe) {
        let (columns, rows) = shape.tiles();
        let wide = |bits: u16| f32::from_bits(u32::from(bits) << 16);
        for (column, row) in (0..columns).flat_map(|c| (0..rows).map(move |r| (c, r))) {
            // SAFETY: as promised by the caller.
            unsafe {
                let w = s.w.add(column * s.w_step).cast::<u16>();
                let x = s.x.add(row * s.x_step).cast::<u16>();
                let sums = s.sums.byte_add(column * s.sums_step + row * TILE);
                for (n, m) in (0..SIDE).flat_map(|n| (0..width).map(move |m| (n, m))) {
                    let mut sum = if s.more { *sums.add(n * SIDE + m) } else { 0.0 };
                    for step in 0..s.count * PARTS {
                        let w = w.add(step / PARTS * TILE / 2 + n * DEPTH);
                        let x = x.add(step * DEPTH * width + 2 * m);
                        let mut halves = [0.0_f32; 2];
                        for pair in 0..SIDE {
                            for (side, half) in halves.iter_mut().enumerate() {
                                let (w, x) = (*w.add(2 * pair + side), *x.add(2 * pair * width + side));
                                *half = wide(w).mul_add(wide(x), *half);
                            }
                        }
                        sum += halves[0] + halves[1];
                    }
                    *sums.add(n * SIDE + m) = sum;
                }
            }
        }
    }

    fn end(self) {}
}

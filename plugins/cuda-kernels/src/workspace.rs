//! Parts of the memory that a call may use for itself.

use hotseam_sdk::{Ctx, Error, Result};

/// Alignment of a part.
const ALIGN: u64 = 256;

/// What is left of the workspace of a call.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Workspace {
    address: u64,
    bytes: u64,
}

impl Workspace {
    /// All of it.
    pub(crate) fn of(ctx: &Ctx) -> Self {
        let (address, bytes) = ctx.workspace();
        Self { address, bytes }
    }

    /// Units of which each takes `bytes` in `parts` parts, as many as fit, at most `wanted`, which is not 0.
    ///
    /// # Errors
    /// If none fits.
    pub(crate) fn units(&self, bytes: u64, parts: u64, wanted: u32) -> Result<u32> {
        let fit = self.bytes.saturating_sub(2 * parts * ALIGN) / bytes.max(1);
        match fit.min(u64::from(wanted)) as u32 {
            0 => Err(Error::argument(format!(
                "a row needs {bytes} bytes of workspace, there are {}",
                self.bytes
            ))),
            units => Ok(units),
        }
    }

    /// Takes `bytes` off.
    ///
    /// # Errors
    /// If there are fewer.
    pub(crate) fn take(&mut self, bytes: u64) -> Result<u64> {
        let skip = self.address.next_multiple_of(ALIGN) - self.address;
        let Some(left) = self.bytes.checked_sub(skip).and_then(|left| left.checked_sub(bytes)) else {
            return Err(Error::argument(format!(
                "{bytes} bytes of workspace needed, {} are left",
                self.bytes
            )));
        };
        let part = self.address + skip;
        (self.address, self.bytes) = (part + bytes, left);
        Ok(part)
    }
}

/// Chunks `(first, count)` of `rows` rows, each of at most `most`.
pub(crate) fn chunks(rows: u32, most: u32) -> impl Iterator<Item = (u32, u32)> {
    (0..rows).step_by(most.max(1) as usize).map(move |first| (first, most.min(rows - first)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_aligned_and_end_with_the_memory() {
        let mut workspace = Workspace { address: 1000, bytes: 1000 };
        assert_eq!(workspace.units(100, 1, 50), Ok(4));
        assert_eq!(workspace.units(100, 1, 3), Ok(3));
        assert!(workspace.units(500, 1, 3).is_err());
        assert_eq!(workspace.take(10), Ok(1024));
        assert_eq!(workspace.take(720), Ok(1280));
        assert!(workspace.take(1).is_err());
    }

    #[test]
    fn chunks_cover_all_rows() {
        assert_eq!(chunks(7, 3).collect::<Vec<_>>(), [(0, 3), (3, 3), (6, 1)]);
        assert_eq!(chunks(0, 3).count(), 0);
    }
}

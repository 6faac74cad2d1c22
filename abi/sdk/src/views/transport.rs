//! Views of `kv_transport.put` and `kv_transport.accept`.

use crate::Result;
use crate::tensor::raw;
use hotseam_abi::{AcceptArgs, PutArgs};

/// `kv_transport.put`.
#[derive(Debug, Clone, Copy)]
pub struct Put<'a> {
    /// `bootstrap_room` of the request.
    pub room: u64,
    /// One of [`hotseam_abi::component`].
    pub component: u32,
    /// Layer number.
    pub layer: u32,
    /// Items on the sending side.
    pub src_items: &'a [i32],
    /// Items on the receiving side, as many.
    pub dst_items: &'a [i32],
    /// Number of the receiving side; 0 for the one that is registered here.
    pub peer: u64,
}

/// Items that follow each other on both sides of a put: one descriptor moves them all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// First item of the sending side.
    pub src: i32,
    /// First item of the receiving side.
    pub dst: i32,
    /// Number of items.
    pub items: usize,
}

impl Put<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &PutArgs) -> Result<Self> {
        // SAFETY: the caller's contract.
        unsafe {
            Ok(Self {
                room: a.room,
                component: a.component,
                layer: a.layer,
                src_items: raw(a.src_items, a.n_items as usize, "src_items")?,
                dst_items: raw(a.dst_items, a.n_items as usize, "dst_items")?,
                peer: a.peer,
            })
        }
    }

    /// The items, as few runs as there can be in their order.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let (mut from, mut to) = (self.src_items, self.dst_items);
        std::iter::from_fn(move || {
            let (src, dst) = (*from.first()?, *to.first()?);
            let follows = |(n, (s, d)): &(usize, (&i32, &i32))| {
                (i64::from(**s), i64::from(**d)) == (i64::from(src) + *n as i64, i64::from(dst) + *n as i64)
            };
            let items = from.iter().zip(to).enumerate().take_while(follows).count();
            (from, to) = (&from[items..], &to[items..]);
            Some(Run { src, dst, items })
        })
    }
}

/// `kv_transport.accept`.
#[derive(Debug, Clone, Copy)]
pub struct Accept<'a> {
    /// `bootstrap_room` of the request.
    pub room: u64,
    /// One of [`hotseam_abi::component`].
    pub component: u32,
    /// Layer number.
    pub layer: u32,
    /// Items on the receiving side.
    pub items: &'a [i32],
}

impl Accept<'_> {
    /// # Safety
    /// The arguments are as the contract says for the view's life.
    pub unsafe fn from_raw(a: &AcceptArgs) -> Result<Self> {
        // SAFETY: the caller's contract.
        let items = unsafe { raw(a.items, a.n_items as usize, "items")? };
        Ok(Self { room: a.room, component: a.component, layer: a.layer, items })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contiguous_items_are_one_run() {
        let runs = |src: &[i32], dst: &[i32]| -> Vec<(i32, i32, usize)> {
            let put = Put { room: 1, component: 0, layer: 0, src_items: src, dst_items: dst, peer: 0 };
            put.runs().map(|run| (run.src, run.dst, run.items)).collect()
        };
        assert_eq!(runs(&[], &[]), []);
        assert_eq!(runs(&[3, 4, 5], &[7, 8, 9]), [(3, 7, 3)]);
        assert_eq!(runs(&[3, 4, 5], &[7, 8, 8]), [(3, 7, 2), (5, 8, 1)]);
        assert_eq!(runs(&[3, 2, 1], &[7, 6, 5]), [(3, 7, 1), (2, 6, 1), (1, 5, 1)]);
        assert_eq!(runs(&[0, 1, 5, 6, 7], &[0, 1, 2, 3, 4]), [(0, 0, 2), (5, 2, 3)]);
        assert_eq!(runs(&[i32::MAX, i32::MIN], &[1, 2]), [(i32::MAX, 1, 1), (i32::MIN, 2, 1)]);
    }
}

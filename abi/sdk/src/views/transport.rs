//! View of `kv_transport.put`.

use crate::Result;
use crate::tensor::raw;
use hotseam_abi::PutArgs;

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
            })
        }
    }
}

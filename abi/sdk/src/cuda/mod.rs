//! Plugins whose ops run on a CUDA device.
//!
//! Such a plugin implements the trait of its seam here instead of the one of the crate's root, and names its device to
//! [`export_plugin!`](crate::export_plugin). Its ops get the contract's own argument structs: what they point to is device
//! memory, which only kernels read, and a kernel can take the structs as they are (`abi/contract/include`). Shapes, dtypes,
//! contiguity and devices were checked; the values of arrays were not.

mod check;
pub mod shims;

pub use check::{Rows, pool};

use crate::{Ctx, Error, Plugin, Result};
use hotseam_abi::{
    Batch, CompressArgs, CoreArgs, ExpertsArgs, MhcHeadArgs, MhcPostArgs, MhcPreArgs, RouteArgs, SelectArgs,
    StoreArgs,
};

fn not_served<T>(op: &str) -> Result<T> {
    Err(Error::unsupported(format!("{op} is not served by this plugin")))
}

macro_rules! seam {
    ($(#[$doc:meta])* $seam:ident { $($op:ident: $args:ty = $name:literal),+ $(,)? }) => {
        $(#[$doc])*
        pub trait $seam: Plugin {
            $(
                #[doc = concat!("See [`", stringify!($args), "`](hotseam_abi::", stringify!($args), ").")]
                fn $op(&self, _ctx: &Ctx, _a: &$args, _batch: &Batch) -> Result<()> {
                    not_served($name)
                }
            )+
        }
    };
}

seam!(
    /// The attention seam on a device.
    Attention {
        store: StoreArgs = "attention.store",
        compress: CompressArgs = "attention.compress",
        core: CoreArgs = "attention.core",
    }
);
seam!(
    /// The indexer seam on a device.
    Indexer { compress: CompressArgs = "indexer.compress", select: SelectArgs = "indexer.select" }
);
seam!(
    /// The mixture-of-experts seam on a device.
    Moe { route: RouteArgs = "moe.route", experts: ExpertsArgs = "moe.experts" }
);
seam!(
    /// The hyper-connection seam on a device.
    Mhc { pre: MhcPreArgs = "mhc.pre", post: MhcPostArgs = "mhc.post", head: MhcHeadArgs = "mhc.head" }
);

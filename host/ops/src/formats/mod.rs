//! The small number formats of packed weights (OCP Microscaling Formats 1.0): [`e2m1`] elements and [`ue8m0`]
//! scales. FP8 elements are in [`crate::e4m3`].

pub mod e2m1;
pub mod ue8m0;

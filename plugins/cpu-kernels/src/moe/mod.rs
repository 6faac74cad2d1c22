//! Mixture of experts: the router and the routed experts.

mod experts;
mod route;

pub use experts::experts;
pub use route::route;

//! One module a command.

pub(crate) mod bench;
pub(crate) mod bisect;
pub(crate) mod capture;
pub(crate) mod checkpoint;
pub(crate) mod compare;
pub(crate) mod completion;
pub(crate) mod config;
pub(crate) mod graft;
pub(crate) mod kv_map;
pub(crate) mod live;
pub(crate) mod needle;
pub(crate) mod plugin;
pub(crate) mod rank;
pub(crate) mod serve;
pub(crate) mod why;

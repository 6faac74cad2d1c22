//! A small model, and plugins for all its seams.
#![allow(dead_code, reason = "no test uses all of it")]

#[path = "../../../loader/tests/common/mod.rs"]
pub(crate) mod fixture;

use fixture::{build, manifest_with, variant};
use hotseam_abi::{StepCtx, seam};
use hotseam_loader::{Loader, file_name, host_services};
use hotseam_slots::{Geometry, LayerClass, Registry, Rule, Slots, Topology};
use std::path::Path;
use tempfile::TempDir;

/// Layers 0 window, 1 csa, 2 hca, 3 csa, 4 hca; the first two route by token id.
pub(crate) fn geometry(topology: Topology) -> Geometry {
    use LayerClass::{Csa, Hca, Window};
    Geometry {
        classes: vec![Window, Csa, Hca, Csa, Hca],
        hash: vec![true, true, false, false, false],
        head_dim: 64,
        index_head_dim: 32,
        rope_dim: 16,
        topology,
        ranks: 1,
        rank: 0,
    }
}

/// A directory with a `stock` of every seam.
pub(crate) fn stock() -> TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    for (number, name) in seam::NAMES.iter().enumerate() {
        variant(dir.path(), &format!("{name}/stock"), number as u32, &[]);
    }
    dir
}

/// Adds a variant with a base.
pub(crate) fn patched(dir: &Path, name: &str, seam: u32, base: &str, defines: &[&str]) {
    let file = file_name(name).expect("a variant name");
    build(dir, &file, seam, &manifest_with(name, &format!("{base:?}"), ""), defines);
}

pub(crate) fn slots(dir: &Path, topology: Topology) -> Slots {
    let loader = Loader::new(vec![dir.to_owned()]).expect("a loader");
    Slots::new(Registry::new(loader, geometry(topology)))
}

/// A rule of `selector` and variant, or of a healing selector and "".
pub(crate) fn rule(selector: &str, variant: &str) -> Rule {
    let variant = (!variant.is_empty()).then(|| variant.parse().expect("a variant"));
    Rule::new(selector.parse().expect("a selector"), variant).expect("a rule")
}

/// Rules that give every seam its stock, and then `more`.
pub(crate) fn rules(more: &[(&str, &str)]) -> Vec<Rule> {
    let stock =
        ["attention", "indexer", "moe", "mhc", "kv_transport"].map(|s| rule(s, &format!("{s}/stock")));
    stock.into_iter().chain(more.iter().map(|(selector, variant)| rule(selector, variant))).collect()
}

pub(crate) fn step(number: u64) -> StepCtx {
    StepCtx {
        size: size_of::<StepCtx>() as u32,
        phase: 0,
        layer: 0,
        layer_class: 0,
        rank: 0,
        world: 1,
        step: number,
        stream: 0,
        workspace: std::ptr::null_mut(),
        workspace_bytes: 0,
        host: host_services(),
    }
}

/// Arguments that the fixture does not look at.
pub(crate) fn no_args<A>() -> A {
    // SAFETY: the argument structs hold numbers and raw pointers, for which zero is a value.
    unsafe { std::mem::zeroed() }
}

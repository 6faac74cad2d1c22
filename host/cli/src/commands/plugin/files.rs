//! The loader of commands about plugin files.

use hotseam_config::{PluginPolicy, PluginsSection};
use hotseam_loader::Loader;
use hotseam_slots::{Generation, Geometry, LayerClass, Registry, Topology, VariantSpec};
use std::sync::Arc;

use crate::args::{PluginFiles, PolicyName};
use crate::failure::Failure;
use crate::host;

/// Dimensions of entries outside a model: cases bring their own tensors, of these sizes.
pub(crate) const HEAD_DIM: u32 = 64;
const INDEX_HEAD_DIM: u32 = 32;
/// Roped values of both.
pub(crate) const ROPE_DIM: u32 = 16;

/// The loader that the options ask for.
///
/// # Errors
/// Usage, if a file or directory cannot be used.
pub(crate) fn loader(files: &PluginFiles) -> Result<Loader, Failure> {
    let mut section = match &files.config {
        Some(path) => host::load_config(path, &[])?.plugins,
        None => PluginsSection::default(),
    };
    if !files.dirs.is_empty() {
        section.dirs.clone_from(&files.dirs);
    }
    if !files.keys.is_empty() {
        section.keys.clone_from(&files.keys);
    }
    if files.state_dir.is_some() {
        section.state_dir.clone_from(&files.state_dir);
    }
    if let Some(policy) = files.policy {
        section.policy = match policy {
            PolicyName::Open => PluginPolicy::Open,
            PolicyName::Manifest => PluginPolicy::Manifest,
            PolicyName::Signed => PluginPolicy::Signed,
        };
    }
    section.probe.enabled &= !files.no_probe;
    host::loader(&section).map_err(|unusable| Failure::usage(unusable.error))
}

/// A registry outside a model.
///
/// # Errors
/// As [`loader`].
pub(crate) fn registry(files: &PluginFiles) -> Result<Registry, Failure> {
    let geometry = Geometry {
        classes: vec![LayerClass::Csa],
        hash: vec![false],
        head_dim: HEAD_DIM,
        index_head_dim: INDEX_HEAD_DIM,
        rope_dim: ROPE_DIM,
        topology: Topology::Paired,
        ranks: 1,
        rank: 0,
    };
    Ok(Registry::new(loader(files)?, geometry))
}

/// A generation of the variant that `text` names.
///
/// # Errors
/// Usage, if it is refused.
pub(crate) fn generation(registry: &Registry, text: &str) -> Result<Arc<Generation>, Failure> {
    let spec: VariantSpec = text.parse().map_err(Failure::usage)?;
    registry.generation(&spec).map_err(Failure::usage)
}

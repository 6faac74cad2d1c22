//! What a checkpoint holds, by class and format, from the headers of its shards alone.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

use crate::convert::{Class, module, role, stored};
use crate::error::CheckpointError;
use crate::shards::Shards;

/// Tensors of one class in one format.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holding {
    /// Class of the tensors.
    pub class: &'static str,
    /// Format of matrices, or the element type of other tensors.
    pub format: String,
    /// Matrices or tensors; scales are not counted apart.
    pub count: usize,
    /// Values, without scales.
    pub values: u64,
    /// Bytes, with scales.
    pub bytes: u64,
}

/// Sums up the tensors of a checkpoint, in the order of [`Class::ALL`].
///
/// # Errors
/// [`CheckpointError`] if a shard is missing or malformed.
pub fn inspect(dir: &Path) -> Result<Vec<Holding>, CheckpointError> {
    Ok(sum(&Shards::open(dir)?))
}

fn sum(shards: &Shards) -> Vec<Holding> {
    let order = |class: Class| Class::ALL.iter().position(|c| *c == class);
    let mut all = BTreeMap::new();
    for (name, entry) in &shards.tensors {
        let (class, matrix) = (Class::of(name), module(name));
        let weight = shards.tensors.get(&format!("{matrix}.weight")).filter(|_| role(matrix).is_some());
        let (format, count, values) = match weight {
            Some(weight) => {
                let (format, [n, k]) = stored(shards, matrix, weight);
                let own = std::ptr::eq(weight, entry);
                (format.name().to_owned(), usize::from(own), if own { n as u64 * k as u64 } else { 0 })
            }
            None => {
                (entry.dtype.to_string().to_lowercase(), 1, entry.shape.iter().map(|&n| n as u64).product())
            }
        };
        let holding = all.entry((order(class), format.clone())).or_insert_with(|| Holding {
            class: class.name(),
            format,
            count: 0,
            values: 0,
            bytes: 0,
        });
        holding.count += count;
        holding.values += values;
        holding.bytes += entry.len as u64;
    }
    all.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convert::Form;
    use crate::random::Preset;

    #[test]
    fn packed_values_are_counted_and_scales_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let config = Preset::FlashLike.config();
        Preset::FlashLike.write_as(dir.path(), Form::Nvfp4).unwrap();
        let found = inspect(dir.path()).unwrap();
        let experts = &found[0];
        let matrices = config.num_hidden_layers * config.n_routed_experts * 3;
        let values = (matrices * config.hidden_size * config.moe_intermediate_size) as u64;
        assert_eq!(
            *experts,
            Holding {
                class: "routed experts",
                format: "nvfp4".to_owned(),
                count: matrices,
                values,
                bytes: values / 2 + values / 16 + 4 * matrices as u64,
            }
        );
        let attention: Vec<_> = found.iter().filter(|h| h.class == "attention").collect();
        assert_eq!((attention.len(), attention[0].format.as_str(), attention[0].count), (1, "fp8", 35));
        // The sums are those of the files.
        let listed: usize = crate::list(dir.path()).unwrap().iter().map(|t| t.bytes).sum();
        assert_eq!(found.iter().map(|h| h.bytes).sum::<u64>(), listed as u64);
        assert!(found.iter().any(|h| h.class == "small tensors" && h.format == "i64"));
    }
}

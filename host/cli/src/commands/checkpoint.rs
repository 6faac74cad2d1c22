//! `hotseam checkpoint`.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::json;

use crate::args::{CheckpointArgs, CheckpointCommand, Format};
use crate::failure::Failure;
use crate::terminal;

/// Shows what a checkpoint holds.
pub(crate) fn run(args: &CheckpointArgs) -> Result<u8, Failure> {
    let CheckpointCommand::Inspect { dir, format } = &args.command;
    inspect(dir, *format)
}

fn inspect(dir: &Path, format: Format) -> Result<u8, Failure> {
    let config = hotseam_checkpoint::read_config(dir).map_err(Failure::usage)?;
    let tensors = hotseam_checkpoint::list(dir).map_err(Failure::usage)?;
    let bytes: usize = tensors.iter().map(|tensor| tensor.bytes).sum();
    let parameters: usize = tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
    if format == Format::Json {
        let list: Vec<_> = tensors
            .iter()
            .map(|t| json!({"name": t.name, "dtype": t.dtype, "shape": t.shape, "bytes": t.bytes, "shard": t.shard}))
            .collect();
        terminal::json(&json!({
            "layers": config.num_hidden_layers,
            "hidden_size": config.hidden_size,
            "vocab_size": config.vocab_size,
            "compress_ratios": config.compress_ratios,
            "bytes": bytes,
            "elements": parameters,
            "tensors": list,
        }))?;
        return Ok(0);
    }
    let classes: Vec<&str> = (0..config.num_hidden_layers).map(|layer| config.class(layer).name()).collect();
    let mut text = format!(
        "{} layers ({}), hidden {}, {} heads of {}, vocabulary {}\n{} experts, {} a token, {} hash-routed layers; \
         index_topk {}\n{} tensors, {parameters} elements, {:.1} MB\n\n",
        config.num_hidden_layers,
        classes.join(" "),
        config.hidden_size,
        config.num_attention_heads,
        config.head_dim,
        config.vocab_size,
        config.n_routed_experts,
        config.num_experts_per_tok,
        config.num_hash_layers,
        config.index_topk,
        tensors.len(),
        bytes as f64 / 1e6,
    );
    let width = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    for tensor in &tensors {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "{:<width$}  {:<5} {:<14} {:>10}",
            tensor.name,
            tensor.dtype,
            format!("[{}]", shape.join(", ")),
            tensor.bytes
        );
    }
    terminal::data(&text)?;
    Ok(0)
}

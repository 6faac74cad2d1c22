//! `hotseam checkpoint inspect`.

use std::fmt::Write as _;

use serde_json::json;

use super::{count, size};
use crate::args::{Format, InspectArgs};
use crate::failure::Failure;
use crate::terminal;

/// Shows what a checkpoint holds.
pub(super) fn run(args: &InspectArgs) -> Result<u8, Failure> {
    let dir = &args.dir;
    let config = hotseam_checkpoint::read_config(dir).map_err(Failure::usage)?;
    let tensors = hotseam_checkpoint::list(dir).map_err(Failure::usage)?;
    let holdings = hotseam_checkpoint::inspect(dir).map_err(Failure::usage)?;
    let bytes: u64 = holdings.iter().map(|h| h.bytes).sum();
    let values: u64 = holdings.iter().map(|h| h.values).sum();
    if args.format == Format::Json {
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
            "values": values,
            "classes": holdings,
            "tensors": list,
        }))?;
        return Ok(0);
    }
    let classes: Vec<&str> = (0..config.num_hidden_layers).map(|layer| config.class(layer).name()).collect();
    let mut text = format!(
        "{} layers ({}), hidden {}, {} heads of {}, vocabulary {}\n{} experts, {} a token, {} hash-routed layers; \
         index_topk {}\n{} tensors, {} values, {}\n\n",
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
        count(values),
        size(bytes),
    );
    let _ = writeln!(text, "{:<24}{:<8}{:>8}{:>14}{:>12}", "class", "format", "count", "values", "size");
    for h in &holdings {
        let (values, bytes) = (count(h.values), size(h.bytes));
        let _ = writeln!(text, "{:<24}{:<8}{:>8}{values:>14}{bytes:>12}", h.class, h.format, h.count);
    }
    text.push('\n');
    let width = tensors.iter().map(|tensor| tensor.name.len()).max().unwrap_or(0);
    for tensor in &tensors {
        let shape: Vec<String> = tensor.shape.iter().map(ToString::to_string).collect();
        let _ = writeln!(
            text,
            "{:<width$}  {:<7} {:<14} {:>10}",
            tensor.name,
            tensor.dtype,
            format!("[{}]", shape.join(", ")),
            tensor.bytes
        );
    }
    terminal::data(&text)?;
    Ok(0)
}

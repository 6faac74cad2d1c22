//! Module patterns of quantisation lists: `*.attn.*`, `layers.3.ffn.experts`, `head`.

/// Whether `pattern` covers `module`, a dotted path without `.weight`: the whole path, with `*` for any run of characters
/// and `?` for one, or a path above it (`layers.3.ffn.experts` covers each expert of the layer).
pub(crate) fn covers(pattern: &str, module: &str) -> bool {
    let pattern = pattern.strip_prefix("model.").unwrap_or(pattern);
    let above = module.match_indices('.').any(|(end, _)| matches(pattern, &module[..end]));
    above || matches(pattern, module)
}

/// Whether a path ends in the parts of `pattern`: `wo_b` covers `layers.0.attn.wo_b`.
pub(crate) fn ends(pattern: &str, module: &str) -> bool {
    module.match_indices('.').any(|(end, _)| matches(pattern, &module[end + 1..]))
}

/// Glob over bytes, in time linear in each part: after a mismatch only the last `*` takes one byte more.
fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut p, mut t) = (0, 0);
    let mut retry: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some(b'*') => {
                retry = Some((p, t));
                p += 1;
            }
            Some(&c) if c == b'?' || c == text[t] => {
                p += 1;
                t += 1;
            }
            _ => {
                let Some((star, from)) = retry else { return false };
                retry = Some((star, from + 1));
                p = star + 1;
                t = from + 1;
            }
        }
    }
    pattern[p..].iter().all(|&c| c == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_of_published_checkpoints() {
        let expert = "layers.11.ffn.experts.7.w1";
        assert!(covers("layers.11.ffn.experts", expert) && !covers("layers.1.ffn.experts", expert));
        assert!(covers("model.layers.11.ffn.experts.*", expert) && covers("layers.*.ffn.experts", expert));
        assert!(!covers("*.attn.*", expert) && covers("*.attn.*", "layers.0.attn.wq_a"));
        assert!(covers("*.ffn.shared_experts.*", "layers.2.ffn.shared_experts.w3"));
        assert!(
            covers("mtp.*", "mtp.0.attn.wq_a")
                && covers("head", "head")
                && !covers("head", "layers.0.head_x")
        );
        assert!(ends("wo_b", "layers.0.attn.wo_b") && !ends("o_b", "layers.0.attn.wo_b"));
        assert!(
            covers("*", "x")
                && covers("la?ers.*", "layers.0")
                && !covers("", "x")
                && !covers("layers.", "layers.0")
        );
        let long = "a".repeat(4000);
        assert!(!covers(&format!("{}b", "*a".repeat(200)), &long), "no exponential search");
    }
}

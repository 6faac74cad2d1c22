//! What both ends of a pair must have alike for bytes of one to mean the same to the other.

use hotseam_ops::Checksum;
use serde::{Deserialize, Serialize};

/// Differences that a message names, at most.
const NAMED: usize = 3;

/// Names with values, such as `layer 2 index_keys` and `key_f32, 256 bytes an entry, 16384 a page`. Equal fingerprints have
/// equal lists.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Fingerprint(Vec<(String, String)>);

impl Fingerprint {
    /// Adds a property.
    pub fn push(&mut self, name: impl Into<String>, value: impl ToString) {
        self.0.push((name.into(), value.to_string()));
    }

    /// The properties.
    pub fn properties(&self) -> &[(String, String)] {
        &self.0
    }

    /// Number that tells fingerprints of one pair apart.
    pub fn digest(&self) -> u64 {
        let mut sum = Checksum::default();
        for text in self.0.iter().flat_map(|(name, value)| [name, value]) {
            sum.update(&(text.len() as u64).to_le_bytes());
            sum.update(text.as_bytes());
        }
        sum.finish()
    }

    /// Where that of a prefill worker (`self`) and of a decode worker differ, with both values; `None` if nowhere.
    pub fn differences(&self, decode: &Self) -> Option<String> {
        let value = |of: &Self, name: &str| {
            of.0.iter().find(|(known, _)| known == name).map(|(_, value)| format!("`{value}`"))
        };
        let mut names: Vec<&str> = self.0.iter().map(|(name, _)| name.as_str()).collect();
        names.extend(
            decode.0.iter().map(|(name, _)| name.as_str()).filter(|name| value(self, name).is_none()),
        );
        let mut found: Vec<String> = Vec::new();
        let mut count = 0;
        for name in names {
            let (here, there) = (value(self, name), value(decode, name));
            if here != there {
                count += 1;
                if found.len() < NAMED {
                    let text = |value: Option<String>| value.unwrap_or_else(|| "nothing".to_owned());
                    let (here, there) = (text(here), text(there));
                    found.push(format!("{name}: prefill has {here}, decode has {there}"));
                }
            }
        }
        let more = count - found.len();
        match count {
            0 => None,
            _ if more > 0 => Some(format!("{}; and {more} more", found.join("; "))),
            _ => Some(found.join("; ")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(properties: &[(&str, &str)]) -> Fingerprint {
        let mut print = Fingerprint::default();
        properties.iter().for_each(|(name, value)| print.push(*name, value));
        print
    }

    #[test]
    fn both_values_of_a_difference_are_named() {
        let base = [("page_tokens", "256"), ("c4_ring", "8"), ("index_topk", "512")];
        let prefill = of(&base);
        assert_eq!(prefill.differences(&of(&base)), None);
        let decode = of(&[("page_tokens", "64"), ("c4_ring", "8"), ("layer 2 c4", "kv_f32")]);
        assert_eq!(
            prefill.differences(&decode).unwrap(),
            "page_tokens: prefill has `256`, decode has `64`; index_topk: prefill has `512`, decode has nothing; \
             layer 2 c4: prefill has nothing, decode has `kv_f32`"
        );
        let nothing = Fingerprint::default();
        let many = of(&[("a", "1"), ("b", "2"), ("c", "3"), ("d", "4"), ("e", "5")]);
        assert!(many.differences(&nothing).unwrap().ends_with("; and 2 more"));
        assert_ne!(prefill.digest(), decode.digest());
    }
}

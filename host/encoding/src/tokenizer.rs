//! Text to ids and back, for byte-level BPE.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use tokenizers::AddedVocabulary;

use crate::error::EncodingError;

/// A token that structures a conversation. Never the result of encoding a user's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Control {
    /// Start of every prompt.
    Bos,
    /// End of an assistant turn.
    Eos,
    /// Start of a user turn.
    User,
    /// Start of an assistant turn.
    Assistant,
    /// Start of reasoning.
    Think,
    /// End of reasoning.
    EndThink,
}

impl Control {
    /// All of them.
    pub const ALL: [Control; 6] =
        [Control::Bos, Control::Eos, Control::User, Control::Assistant, Control::Think, Control::EndThink];

    /// The token's text in the vocabulary (the bar is U+FF5C, the low block U+2581).
    pub const fn name(self) -> &'static str {
        match self {
            Control::Bos => "<｜begin▁of▁sentence｜>",
            Control::Eos => "<｜end▁of▁sentence｜>",
            Control::User => "<｜User｜>",
            Control::Assistant => "<｜Assistant｜>",
            Control::Think => "<think>",
            Control::EndThink => "</think>",
        }
    }
}

/// A tokenizer with its control tokens resolved. Cheap to clone.
#[derive(Clone)]
pub struct Tokenizer(Arc<Inner>);

struct Inner {
    /// Knows added tokens by their text.
    full: tokenizers::Tokenizer,
    /// The same model without added tokens: their names are ordinary text to it.
    plain: tokenizers::Tokenizer,
    control: [u32; Control::ALL.len()],
    /// Bytes of every id; empty for ids that do not exist.
    bytes: Vec<Box<[u8]>>,
    /// Ids that produce no visible text, sorted.
    hidden: Vec<u32>,
    /// Ids of all added tokens, sorted.
    added: Vec<u32>,
}

impl Tokenizer {
    /// Loads `path`, a `tokenizer.json` or a checkpoint directory that holds one.
    ///
    /// # Errors
    /// [`EncodingError::Read`], [`EncodingError::Malformed`], [`EncodingError::Decoder`] or
    /// [`EncodingError::MissingToken`], each naming the file.
    pub fn load(path: &Path) -> Result<Self, EncodingError> {
        let path = if path.is_dir() { path.join("tokenizer.json") } else { path.to_owned() };
        if path.exists() && !path.is_file() {
            let source = std::io::Error::other("not a regular file");
            return Err(EncodingError::Read { path, source });
        }
        let text =
            std::fs::read(&path).map_err(|source| EncodingError::Read { path: path.clone(), source })?;
        let full = tokenizers::Tokenizer::from_bytes(&text)
            .map_err(|error| EncodingError::Malformed { path: path.clone(), message: error.to_string() })?;
        match full.get_decoder() {
            Some(tokenizers::DecoderWrapper::ByteLevel(_)) => {}
            other => {
                let found = serde_json::to_value(other).ok();
                let found = found.as_ref().and_then(|decoder| decoder["type"].as_str()).unwrap_or("none");
                return Err(EncodingError::Decoder { path, found: found.to_owned() });
            }
        }
        let mut plain = full.clone();
        plain.with_added_vocabulary(AddedVocabulary::new());

        let mut control = [0; Control::ALL.len()];
        for token in Control::ALL {
            control[token as usize] = full
                .token_to_id(token.name())
                .ok_or_else(|| EncodingError::MissingToken { path: path.clone(), name: token.name() })?;
        }
        let tokens = full.get_added_tokens_decoder();
        let mut added: Vec<u32> = tokens.keys().copied().collect();
        added.sort_unstable();
        let mut hidden: Vec<u32> =
            tokens.iter().filter(|(_, token)| token.special).map(|(id, _)| *id).chain(control).collect();
        hidden.sort_unstable();
        hidden.dedup();
        let bytes = token_bytes(&full, &added);
        Ok(Self(Arc::new(Inner { full, plain, control, bytes, hidden, added })))
    }

    /// The id of a control token.
    pub fn control(&self, token: Control) -> u32 {
        self.0.control[token as usize]
    }

    /// One more than the largest id.
    pub fn vocab_size(&self) -> usize {
        self.0.bytes.len()
    }

    /// Encodes a text in which names of added tokens are ordinary characters: use it for everything that a
    /// user of a chat wrote.
    ///
    /// # Errors
    /// [`EncodingError::Encode`] if the library refuses the text or gives an added token in spite of it.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, EncodingError> {
        let ids = encode(&self.0.plain, text)?;
        match ids.iter().find(|id| self.0.added.binary_search(id).is_ok()) {
            Some(id) => Err(EncodingError::Encode(format!("it contains the reserved token {id}"))),
            None => Ok(ids),
        }
    }

    /// Encodes a text in which names of added tokens become those tokens: for raw prompts, whose author is
    /// responsible for their whole form. Adds nothing at either end.
    ///
    /// # Errors
    /// [`EncodingError::Encode`] if the library refuses the text.
    pub fn encode_raw(&self, text: &str) -> Result<Vec<u32>, EncodingError> {
        encode(&self.0.full, text)
    }

    /// Decodes `ids` as a whole, without control and special tokens; malformed UTF-8 becomes U+FFFD.
    ///
    /// # Errors
    /// [`EncodingError::UnknownId`].
    pub fn decode(&self, ids: &[u32]) -> Result<String, EncodingError> {
        let mut bytes = Vec::new();
        for &id in ids {
            let token = self.bytes(id)?;
            if !self.is_hidden(id) {
                bytes.extend_from_slice(token);
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// The bytes of one token, which need not be UTF-8 by themselves. Control tokens give their name.
    ///
    /// # Errors
    /// [`EncodingError::UnknownId`].
    pub fn bytes(&self, id: u32) -> Result<&[u8], EncodingError> {
        let size = self.0.bytes.len();
        self.0.bytes.get(id as usize).map(AsRef::as_ref).ok_or(EncodingError::UnknownId { id, size })
    }

    /// Bytes of the longest token: a text of n bytes has at least n over this many tokens.
    pub fn longest_token(&self) -> usize {
        self.0.bytes.iter().map(|token| token.len()).max().unwrap_or(1).max(1)
    }

    /// True for tokens that are left out of decoded text.
    pub fn is_hidden(&self, id: u32) -> bool {
        self.0.hidden.binary_search(&id).is_ok()
    }
}

fn encode(tokenizer: &tokenizers::Tokenizer, text: &str) -> Result<Vec<u32>, EncodingError> {
    let encoding =
        tokenizer.encode_fast(text, false).map_err(|error| EncodingError::Encode(error.to_string()))?;
    Ok(encoding.get_ids().to_vec())
}

/// The bytes of every id: added tokens are their text, others go through the inverse of the byte-level map.
fn token_bytes(tokenizer: &tokenizers::Tokenizer, added: &[u32]) -> Vec<Box<[u8]>> {
    let map = byte_of_char();
    let vocabulary = tokenizer.get_vocab(true);
    let size = vocabulary.values().max().map_or(0, |max| *max as usize + 1);
    let mut bytes = vec![Box::default(); size];
    for (token, id) in vocabulary {
        let mapped: Option<Box<[u8]>> = token.chars().map(|c| map.get(&c).copied()).collect();
        bytes[id as usize] = match mapped {
            Some(mapped) if added.binary_search(&id).is_err() => mapped,
            _ => token.into_bytes().into_boxed_slice(),
        };
    }
    bytes
}

/// Inverse of GPT-2's byte-to-character map: printable Latin-1 stands for itself, the other bytes for the
/// characters from U+0100 in order.
fn byte_of_char() -> HashMap<char, u8> {
    let mut shifted = 0x100..;
    (0..=255u8)
        .filter_map(|byte| {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable { u32::from(byte) } else { shifted.next()? };
            Some((char::from_u32(code)?, byte))
        })
        .collect()
}

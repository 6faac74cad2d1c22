//! Messages of the control connection: a length, a checksum, and JSON.

use crate::{Fingerprint, GroupMessage};
use hotseam_ops::checksum;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::io::{self, Read, Write};

const MAGIC: [u8; 4] = *b"HSPD";
/// Number of this protocol; both ends have the same.
pub(crate) const VERSION: u32 = 2;
/// Bytes of a message, at most.
pub const MOST_MESSAGE: usize = 4 << 20;
/// Components of a hand-off, in the order of their numbers in the plugin contract.
pub const COMPONENTS: usize = 7;

/// What a decode worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToPrefill {
    /// The first message.
    Hello {
        /// Number of the protocol.
        version: u32,
        /// Name of the worker, for messages.
        worker: String,
        /// Its swap group, if it has one.
        #[serde(default)]
        group: Option<String>,
    },
    /// A fingerprint that reservations name by its digest.
    Layout(Fingerprint),
    /// Asks for the KV of a room.
    Reserve(Box<Reserve>),
    /// Wants nothing more of a room.
    Abort {
        /// The room.
        room: u64,
        /// Why.
        reason: String,
    },
    /// Says that it lives.
    Ping,
    /// Something about swaps of the group that both workers are in.
    Group(GroupMessage),
}

/// Where the KV of a prompt is to go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Reserve {
    /// `bootstrap_room`.
    pub room: u64,
    /// Assignment that serves the request.
    pub assignment: String,
    /// Tokens of the prompt.
    pub prompt_tokens: usize,
    /// Checksum of its token ids: both workers must have read the same prompt.
    pub prompt_sum: u64,
    /// Digest of the fingerprint of the decode worker's layouts.
    pub layout: u64,
    /// Name of the transport.
    pub transport: String,
    /// Where its receiving side is.
    pub endpoint: String,
    /// Items of each component on the decode worker: pages in order of position, or rows of the states that are kept.
    pub items: [Vec<i32>; COMPONENTS],
    /// Whether checksums of the items are wanted.
    pub audit: bool,
}

/// What a prefill worker says.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToDecode {
    /// Answers the hello.
    Welcome {
        /// Name of the worker, for messages.
        worker: String,
        /// The swap group of the hello, if the worker is in it too.
        group: Option<String>,
    },
    /// Answers the hello of a worker that it does not talk to.
    Refused {
        /// Why.
        message: String,
    },
    /// The KV of a room is in place.
    Done(Box<Done>),
    /// There will be no KV for a room.
    Failed {
        /// The room.
        room: u64,
        /// Stable code.
        code: String,
        /// Why.
        message: String,
    },
    /// A room cannot be served as it was asked for, since a swap is being taken back: ask for it once more.
    Again {
        /// The room.
        room: u64,
    },
    /// Answers a ping.
    Pong,
    /// Something about swaps of the group that both workers are in.
    Group(GroupMessage),
}

/// What goes beside the KV of a room.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Done {
    /// `bootstrap_room`.
    pub room: u64,
    /// First token of the answer.
    pub token: u32,
    /// Bits of its natural-log probability in f32.
    pub logprob: u32,
    /// Most likely tokens with theirs, best first.
    pub top: Vec<(u32, u32)>,
    /// Chunks that prefilled the prompt.
    pub chunks: u32,
    /// Items that were moved, over all components and layers.
    pub items: u64,
    /// Bytes of them.
    pub bytes: u64,
    /// Checksums of the items on the prefill worker, if they were asked for.
    pub sums: Vec<Sums>,
    /// Who wrote the KV, in order of position.
    pub writers: Vec<Writer>,
}

/// Checksums of the items of one component and layer, in the order of the reservation's list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sums {
    /// Component number of the plugin contract.
    pub component: u32,
    /// Layer.
    pub layer: u32,
    /// XXH64 of each item.
    pub sums: Vec<u64>,
}

/// Who wrote positions, from the end of the writer before.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Writer {
    /// First position after them.
    pub end: usize,
    /// Digest of all cells of the assignment, in hexadecimal.
    pub digest: String,
    /// Its variants that write KV, with their hashes.
    pub codes: Vec<(String, String)>,
    /// For each layer who of them wrote and read it.
    pub layers: Vec<WriterLayer>,
}

/// Indices in [`Writer::codes`] of what served the cells of one layer; absent where the layer has no such cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WriterLayer {
    /// `attention.store`.
    pub store: usize,
    /// `attention.core`.
    pub core: usize,
    /// `attention.compress`.
    pub compress: Option<usize>,
    /// `indexer.compress`.
    pub index_compress: Option<usize>,
    /// `indexer.select`.
    pub select: Option<usize>,
}

/// A message that cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum WireError {
    /// The connection.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The other side has ended.
    #[error("the connection was closed")]
    Closed,
    /// The bytes are no message.
    #[error("what came is no message of this protocol: {0}")]
    Malformed(String),
}

impl WireError {
    /// Whether it only means that nothing came within the time limit of a read.
    pub fn is_quiet(&self) -> bool {
        matches!(self, Self::Io(error) if error.kind() == io::ErrorKind::WouldBlock)
    }
}

/// Writes a message.
///
/// # Errors
/// If it is too large, or the connection breaks.
pub fn write(to: &mut impl Write, message: &impl Serialize) -> Result<(), WireError> {
    let body = serde_json::to_vec(message).map_err(|error| WireError::Malformed(error.to_string()))?;
    if body.len() > MOST_MESSAGE {
        return Err(WireError::Malformed(format!("{} bytes, at most {MOST_MESSAGE} are sent", body.len())));
    }
    let mut bytes = Vec::with_capacity(16 + body.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&(body.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&checksum(&body).to_le_bytes());
    bytes.extend_from_slice(&body);
    Ok(to.write_all(&bytes)?)
}

/// Reads a message. A time limit that passes before its first byte is [`WireError::is_quiet`]; within a message it is not.
///
/// # Errors
/// If the connection breaks, or what comes is no message.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<T, WireError> {
    let mut header = [0; 16];
    match fill(from, &mut header) {
        Err((0, WireError::Io(error))) => return Err(error.into()),
        Err((0, _)) => return Err(WireError::Closed),
        Err((_, error)) => return Err(late(error)),
        Ok(()) => {}
    }
    let (magic, rest) = header.split_at(4);
    let len = u32::from_le_bytes(rest[..4].try_into().expect("4 bytes")) as usize;
    let sum = u64::from_le_bytes(rest[4..].try_into().expect("8 bytes"));
    if magic != MAGIC {
        return Err(WireError::Malformed("it does not begin as one".to_owned()));
    }
    if len > MOST_MESSAGE {
        return Err(WireError::Malformed(format!(
            "it says to have {len} bytes, at most {MOST_MESSAGE} are read"
        )));
    }
    let mut body = vec![0; len];
    fill(from, &mut body).map_err(|(_, error)| late(error))?;
    if checksum(&body) != sum {
        return Err(WireError::Malformed("its checksum is wrong".to_owned()));
    }
    serde_json::from_slice(&body).map_err(|error| WireError::Malformed(error.to_string()))
}

/// A time limit in the middle of a message is an error like others.
fn late(error: WireError) -> WireError {
    match error.is_quiet() {
        true => WireError::Malformed("its end did not come in time".to_owned()),
        false => error,
    }
}

/// Fills `bytes`; beside an error stands how many came.
fn fill(from: &mut impl Read, bytes: &mut [u8]) -> Result<(), (usize, WireError)> {
    let mut at = 0;
    while at < bytes.len() {
        match from.read(&mut bytes[at..]) {
            Ok(0) => return Err((at, WireError::Closed)),
            Ok(n) => at += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err((at, error.into())),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_read_as_they_are_written() {
        let reserve = Reserve {
            room: u64::MAX >> 1,
            assignment: "live".into(),
            prompt_tokens: 5,
            prompt_sum: u64::MAX,
            layout: 1,
            transport: "kv_transport/tcp".into(),
            endpoint: "tcp 127.0.0.1:1 00".into(),
            items: std::array::from_fn(|i| vec![i as i32]),
            audit: true,
        };
        let message = ToPrefill::Reserve(Box::new(reserve));
        let mut bytes = Vec::new();
        write(&mut bytes, &message).unwrap();
        assert_eq!(read::<ToPrefill>(&mut &bytes[..]).unwrap(), message);
        for cut in 0..bytes.len() {
            assert!(read::<ToPrefill>(&mut &bytes[..cut]).is_err(), "{cut} bytes");
        }
        for at in 0..bytes.len() {
            let mut hurt = bytes.clone();
            hurt[at] ^= 1;
            assert!(read::<ToPrefill>(&mut &hurt[..]).is_err(), "byte {at}");
        }
    }

    #[test]
    fn long_messages_are_not_read() {
        let mut bytes = MAGIC.to_vec();
        bytes.extend_from_slice(&u32::MAX.to_le_bytes());
        bytes.extend_from_slice(&[0; 8]);
        let error = read::<ToDecode>(&mut &bytes[..]).unwrap_err().to_string();
        assert!(error.contains("says to have 4294967295 bytes, at most 4194304"), "{error}");
        let long = ToPrefill::Abort { room: 1, reason: "x".repeat(MOST_MESSAGE) };
        assert!(write(&mut Vec::new(), &long).is_err());
    }
}

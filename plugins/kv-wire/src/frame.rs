//! Bytes on the connection, little endian. The sender opens with a [`Hello`]; then come frames one way and [`Ack`]s the other.

use crate::carrier::{MOST_CARD, MOST_PARTS};
use hotseam_ops::checksum;
use std::fmt;

const MAGIC: u32 = u32::from_le_bytes(*b"HSKV");
const VERSION: u8 = 3;

/// Bytes of a [`Frame`]'s header; its table follows.
pub(crate) const FRAME: usize = 64;
/// Bytes of a [`Hello`].
pub(crate) const HELLO: usize = 64;
/// Bytes of an [`Ack`].
pub(crate) const ACK: usize = 32;
/// Bytes that one frame moves over the connection, at most: what is sent again if it was damaged.
pub(crate) const MOST: u64 = 4 << 20;
/// Bytes that one frame moves beside the connection, at most.
pub(crate) const MOST_BESIDE: u64 = MOST_PARTS as u64;
/// Ranges of a frame, at most.
pub(crate) const RANGES: usize = 512;
/// Bytes of a range in the table behind the header.
const RANGE: usize = 16;
/// Segments of shared memory that a sender names, at most.
pub(crate) const SEGMENTS: usize = 16;

/// Proof that the sender was given the endpoint.
pub(crate) type Token = [u8; 16];

/// Where the bytes of a frame are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Behind the table, with their checksum after them.
    Inline,
    /// In shared memory of the sender: which of the segments named after the hello.
    Shared(u32),
    /// At addresses of the sender, from which a carrier fetches them.
    Carried,
}

impl Place {
    /// Bytes that a frame may move.
    pub(crate) fn most(self) -> u64 {
        match self {
            Self::Inline => MOST,
            Self::Shared(_) | Self::Carried => MOST_BESIDE,
        }
    }
}

/// Items that follow each other on both sides.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Range {
    /// First item of the receiving side.
    pub(crate) first: u32,
    pub(crate) items: u32,
    /// First byte in the sender's memory: in the segment, of its region, or its address.
    pub(crate) offset: u64,
}

/// Items of one component and layer: a header, then a table of ranges.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Frame {
    pub(crate) seq: u64,
    pub(crate) room: u64,
    pub(crate) component: u32,
    pub(crate) layer: u32,
    pub(crate) item_bytes: u32,
    pub(crate) place: Place,
    pub(crate) ranges: Vec<Range>,
}

/// Opens a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Hello {
    pub(crate) token: Token,
    /// Who sends, by a random number.
    pub(crate) sender: Token,
    /// Which of its connections this is: with each it gives those before up.
    pub(crate) connection: u64,
    pub(crate) brings: Brings,
}

/// What follows a hello.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Brings {
    /// The files of so many segments of shared memory, with the next message.
    Segments(u32),
    /// What the carrier's other end tells: so many bytes, and their checksum.
    Card(u32),
}

/// Answer to a hello (sequence 0) or a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) seq: u64,
    pub(crate) answer: Answer,
}

/// What became of a frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Its items are in place.
    Done,
    /// Its bytes were damaged on the way: send it again.
    Damaged,
    /// It is not taken, and will not be.
    Refused(Refusal),
}

/// Why a frame or a hello is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refusal {
    UnknownRoom,
    NotAccepted,
    ItemBytes,
    Segment,
    Token,
    Busy,
}

impl Refusal {
    const ALL: [Self; 6] =
        [Self::UnknownRoom, Self::NotAccepted, Self::ItemBytes, Self::Segment, Self::Token, Self::Busy];
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::UnknownRoom => "the receiving side has closed this room or never had it",
            Self::NotAccepted => "the receiving side did not ask for these items",
            Self::ItemBytes => "an item has another size on the receiving side",
            Self::Segment => "the receiving side cannot map this memory",
            Self::Token => "the receiving side does not know this token; it was started anew",
            Self::Busy => "the receiving side has too many connections",
        })
    }
}

/// Writes fields one after the other, and their checksum last.
struct Out<const N: usize> {
    bytes: [u8; N],
    at: usize,
}

impl<const N: usize> Out<N> {
    fn new(kind: u8, detail: u16) -> Self {
        let out = Self { bytes: [0; N], at: 0 };
        out.put(&MAGIC.to_le_bytes()).put(&[VERSION, kind]).put(&detail.to_le_bytes())
    }

    fn put(mut self, field: &[u8]) -> Self {
        self.bytes[self.at..self.at + field.len()].copy_from_slice(field);
        self.at += field.len();
        self
    }

    fn seal(mut self) -> [u8; N] {
        let sum = checksum(&self.bytes[..N - 8]);
        self.bytes[N - 8..].copy_from_slice(&sum.to_le_bytes());
        self.bytes
    }
}

/// Reads them back.
struct In<'a> {
    bytes: &'a [u8],
    kind: u8,
    detail: u16,
}

impl<'a> In<'a> {
    /// `None` if the bytes are not whole or not of this version.
    fn new(bytes: &'a [u8]) -> Option<Self> {
        let (fields, sum) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        let whole = checksum(fields).to_le_bytes() == *sum;
        let (magic, rest) = fields.split_at_checked(8)?;
        let known = magic[..4] == MAGIC.to_le_bytes() && magic[4] == VERSION;
        (whole && known).then(|| Self {
            bytes: rest,
            kind: magic[5],
            detail: u16::from_le_bytes([magic[6], magic[7]]),
        })
    }

    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (field, rest) = self.bytes.split_first_chunk::<N>()?;
        self.bytes = rest;
        Some(*field)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
}

const INLINE: u8 = 1;
const SHARED: u8 = 2;
const HELLO_KIND: u8 = 3;
const DONE: u8 = 4;
const DAMAGED: u8 = 5;
const REFUSED: u8 = 6;
const CARRIED: u8 = 7;
const CARD: u8 = 8;

impl Frame {
    /// Bytes of a range.
    pub(crate) fn bytes_of(&self, range: &Range) -> u64 {
        u64::from(range.items) * u64::from(self.item_bytes)
    }

    /// Bytes that it moves.
    pub(crate) fn bytes(&self) -> u64 {
        self.ranges.iter().map(|range| self.bytes_of(range)).sum()
    }

    /// Header and table.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let (kind, segment) = match self.place {
            Place::Inline => (INLINE, 0),
            Place::Shared(segment) => (SHARED, segment),
            Place::Carried => (CARRIED, 0),
        };
        let out = Out::new(kind, 0).put(&self.seq.to_le_bytes()).put(&self.room.to_le_bytes());
        let fields = [self.component, self.layer, self.item_bytes, segment, self.ranges.len() as u32];
        let out: Out<FRAME> = fields.iter().fold(out, |out, field| out.put(&field.to_le_bytes()));
        let mut bytes = out.seal().to_vec();
        for range in &self.ranges {
            bytes.extend_from_slice(&range.first.to_le_bytes());
            bytes.extend_from_slice(&range.items.to_le_bytes());
            bytes.extend_from_slice(&range.offset.to_le_bytes());
        }
        bytes.extend_from_slice(&checksum(&bytes[FRAME..]).to_le_bytes());
        bytes
    }

    /// Reads a header; `table` fills the bytes that follow it. `None` if they make no frame.
    pub(crate) fn decode<E>(
        header: &[u8; FRAME],
        table: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<Option<Self>, E> {
        let Some((head, n)) = Self::head(header) else { return Ok(None) };
        let mut bytes = vec![0; n * RANGE + 8];
        table(&mut bytes)?;
        let (ranges, sum) = bytes.split_at(n * RANGE);
        if checksum(ranges).to_le_bytes() != *sum {
            return Ok(None);
        }
        let range = |bytes: &[u8]| {
            let (first, rest) = bytes.split_first_chunk()?;
            let (items, offset) = rest.split_first_chunk()?;
            let offset = u64::from_le_bytes(offset.try_into().ok()?);
            Some(Range { first: u32::from_le_bytes(*first), items: u32::from_le_bytes(*items), offset })
        };
        let Some(ranges) = ranges.chunks_exact(RANGE).map(range).collect() else { return Ok(None) };
        let frame = Self { ranges, ..head };
        // Each is small enough that the sum of all is no larger than a number can be.
        let most = frame.place.most();
        let sized = frame.ranges.iter().all(|range| (1..=most).contains(&frame.bytes_of(range)));
        Ok((sized && (1..=most).contains(&frame.bytes())).then_some(frame))
    }

    /// The header without its table, and the number of ranges in that.
    fn head(header: &[u8; FRAME]) -> Option<(Self, usize)> {
        let mut fields = In::new(header)?;
        let (seq, room) = (fields.u64()?, fields.u64()?);
        let (component, layer, item_bytes) = (fields.u32()?, fields.u32()?, fields.u32()?);
        let (segment, n) = (fields.u32()?, fields.u32()? as usize);
        let place = match fields.kind {
            INLINE => Place::Inline,
            SHARED => Place::Shared(segment),
            CARRIED => Place::Carried,
            _ => return None,
        };
        let frame = Self { seq, room, component, layer, item_bytes, place, ranges: Vec::new() };
        (1..=RANGES).contains(&n).then_some((frame, n))
    }
}

impl Hello {
    pub(crate) fn encode(&self) -> [u8; HELLO] {
        let (kind, n) = match self.brings {
            Brings::Segments(n) => (HELLO_KIND, n),
            Brings::Card(n) => (CARD, n),
        };
        let out = Out::new(kind, 0).put(&self.token).put(&self.sender);
        out.put(&self.connection.to_le_bytes()).put(&n.to_le_bytes()).seal()
    }

    pub(crate) fn decode(bytes: &[u8; HELLO]) -> Option<Self> {
        let mut fields = In::new(bytes)?;
        let (token, sender, connection) = (fields.take()?, fields.take()?, fields.u64()?);
        let n = fields.u32()?;
        let brings = match fields.kind {
            HELLO_KIND if n as usize <= SEGMENTS => Brings::Segments(n),
            CARD if n as usize <= MOST_CARD => Brings::Card(n),
            _ => return None,
        };
        Some(Self { token, sender, connection, brings })
    }
}

impl Ack {
    pub(crate) fn encode(&self) -> [u8; ACK] {
        let (kind, detail) = match self.answer {
            Answer::Done => (DONE, 0),
            Answer::Damaged => (DAMAGED, 0),
            Answer::Refused(why) => (REFUSED, why as u16),
        };
        Out::new(kind, detail).put(&self.seq.to_le_bytes()).seal()
    }

    pub(crate) fn decode(bytes: &[u8; ACK]) -> Option<Self> {
        let mut fields = In::new(bytes)?;
        let answer = match fields.kind {
            DONE => Answer::Done,
            DAMAGED => Answer::Damaged,
            REFUSED => Answer::Refused(*Refusal::ALL.get(usize::from(fields.detail))?),
            _ => return None,
        };
        Some(Self { seq: fields.u64()?, answer })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame() -> Frame {
        let ranges =
            vec![Range { first: 7, items: 5, offset: 9 }, Range { first: 1, items: 1, offset: u64::MAX }];
        let place = Place::Inline;
        Frame { seq: 9, room: u64::MAX, component: 3, layer: 42, item_bytes: 1024, place, ranges }
    }

    fn hello(brings: Brings) -> Hello {
        Hello { token: [7; 16], sender: [8; 16], connection: u64::MAX, brings }
    }

    fn decode(bytes: &[u8]) -> Option<Frame> {
        let (header, rest) = bytes.split_first_chunk()?;
        let table =
            |table: &mut [u8]| (rest.len() == table.len()).then(|| table.copy_from_slice(rest)).ok_or(());
        Frame::decode(header, table).ok().flatten()
    }

    #[test]
    fn what_is_written_is_read() {
        for place in [Place::Inline, Place::Shared(3), Place::Carried] {
            let frame = Frame { place, ..frame() };
            assert_eq!(decode(&frame.encode()), Some(frame));
        }
        for brings in [Brings::Segments(2), Brings::Card(3), Brings::Card(MOST_CARD as u32)] {
            let hello = hello(brings);
            assert_eq!(Hello::decode(&hello.encode()), Some(hello));
        }
        for brings in [Brings::Segments(SEGMENTS as u32 + 1), Brings::Card(MOST_CARD as u32 + 1)] {
            assert_eq!(Hello::decode(&hello(brings).encode()), None);
        }
        let refusals = Refusal::ALL.map(Answer::Refused);
        for answer in [Answer::Done, Answer::Damaged].into_iter().chain(refusals) {
            let ack = Ack { seq: 77, answer };
            assert_eq!(Ack::decode(&ack.encode()), Some(ack));
        }
    }

    #[test]
    fn any_flipped_bit_is_seen() {
        let bytes = frame().encode();
        for bit in 0..bytes.len() * 8 {
            let mut hurt = bytes.clone();
            hurt[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(decode(&hurt), None, "bit {bit}");
        }
    }

    #[test]
    fn frames_without_items_or_beyond_the_limit_are_refused() {
        for (items, item_bytes) in [(0, 8), (8, 0), (5, 1 << 20), (u32::MAX, u32::MAX)] {
            let ranges = vec![Range { first: 0, items, offset: 0 }];
            let frame = Frame { item_bytes, ranges, ..frame() };
            assert_eq!(decode(&frame.encode()), None, "{items} items of {item_bytes}");
        }
        for n in [0, RANGES + 1] {
            let ranges = vec![Range { first: 0, items: 1, offset: 0 }; n];
            assert_eq!(decode(&Frame { ranges, ..frame() }.encode()), None, "{n} ranges");
        }
    }
}

//! What may stand in inputs and outputs.

use super::report::ViolationKind;
use crate::observe::{Args, Entry, Kind, Memory, POISON, Place, Scratch, Stray, rows};
use hotseam_abi::{MhcPreArgs, RouteArgs, SelectArgs, capability, layout};
use hotseam_cuda::CudaError;
use hotseam_slots::CellId;

/// How far sums of gates and weights may be from what they should be.
const SUM: f32 = 1e-3;

/// Something that breaks the contract.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) kind: ViolationKind,
    pub(super) argument: &'static str,
    pub(super) place: String,
    pub(super) detail: String,
}

impl Finding {
    /// A write outside.
    pub(super) fn stray(stray: Stray) -> Self {
        let kind = match stray.place.contains("bytes") {
            true => ViolationKind::OutOfBounds,
            false => ViolationKind::StrayWrite,
        };
        let detail = "the call wrote there, and nothing of it is its own".to_owned();
        Self { kind, argument: stray.output, place: stray.place, detail }
    }
}

/// Where byte `at` of a gathered place is, in words.
pub(super) fn locate(place: &Place, at: usize) -> String {
    let (item, offset) = (at / place.item_bytes.max(1), at % place.item_bytes.max(1));
    let number = place.items.get(item).map_or(item, |(number, _)| *number);
    let mut text = format!("{} {number}", place.axis);
    if place.inner.is_empty() {
        return format!("{text}, byte {offset}");
    }
    let mut left = offset / 4;
    let mut strides: Vec<usize> = vec![1; place.inner.len()];
    for i in (1..strides.len()).rev() {
        strides[i - 1] = strides[i] * place.inner[i].1.max(1);
    }
    for ((name, _), stride) in place.inner.iter().zip(strides) {
        text += &format!(", {name} {}", left / stride);
        left %= stride;
    }
    text
}

fn word(bytes: &[u8]) -> u32 {
    u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]])
}

/// The first number of `bytes` that is not finite: its offset, and what it is.
fn not_finite(kind: Kind, item_bytes: usize, bytes: &[u8]) -> Option<(usize, String)> {
    let f32s = |bytes: &[u8]| {
        let values = bytes.chunks_exact(4).map(|b| f32::from_bits(word(b)));
        values.enumerate().find(|(_, v)| !v.is_finite()).map(|(i, v)| (4 * i, v.to_string()))
    };
    match kind {
        Kind::I32 => None,
        Kind::F32 => f32s(bytes),
        Kind::Entry(kind) => bytes.chunks_exact(item_bytes.max(1)).enumerate().find_map(|(item, bytes)| {
            let (data, scale) = bytes.split_at(kind.data_bytes.min(bytes.len()));
            bad_value(kind, data, scale).map(|(at, what)| (item * item_bytes + at, what))
        }),
    }
}

/// The first number of an entry that is not finite.
fn bad_value(kind: Entry, data: &[u8], scale: &[u8]) -> Option<(usize, String)> {
    let nan = "NaN".to_owned();
    let f32s = |bytes: &[u8]| {
        let values = bytes.chunks_exact(4).map(|b| f32::from_bits(word(b)));
        values.enumerate().find(|(_, v)| !v.is_finite()).map(|(i, v)| (4 * i, v.to_string()))
    };
    let bf16s = |bytes: &[u8]| {
        let values = bytes.chunks_exact(2).map(|b| u16::from_ne_bytes([b[0], b[1]]));
        let (i, v) = values.enumerate().find(|(_, v)| v & 0x7f80 == 0x7f80)?;
        Some((2 * i, f32::from_bits(u32::from(v) << 16).to_string()))
    };
    let codes = |bytes: &[u8]| bytes.iter().position(|c| c & 0x7f == 0x7f).map(|i| (i, nan.clone()));
    let powers = || {
        let at = scale.iter().position(|s| *s == 255)?;
        Some((data.len() + at, format!("scale {nan}")))
    };
    match kind.layout {
        layout::KV_F32 | layout::KEY_F32 => f32s(data),
        layout::KV_BF16 | layout::KEY_BF16 => bf16s(data),
        layout::KV_FP8_DS_MLA => {
            let (nope, rope) = data.split_at(kind.dim.saturating_sub(kind.rope_dim).min(data.len()));
            codes(nope).or_else(|| bf16s(rope).map(|(i, v)| (nope.len() + i, v))).or_else(powers)
        }
        layout::KEY_FP8_HADAMARD => {
            codes(data).or_else(|| f32s(scale).map(|(_, v)| (data.len(), format!("scale {v}"))))
        }
        layout::KEY_FP4_HADAMARD => powers(),
        // Bytes of a layout that the host does not read.
        _ => None,
    }
}

/// What came in before the call. `last` is the cell that passed before it.
pub(super) fn inputs(places: &[Place], bytes: &[Vec<u8>], last: Option<CellId>) -> Option<Finding> {
    places.iter().zip(bytes).filter(|(place, _)| place.kind == Kind::F32).find_map(|(place, bytes)| {
        let (at, what) = not_finite(place.kind, place.item_bytes, bytes)?;
        let last = last.map_or_else(|| "no call yet".to_owned(), |cell| cell.to_string());
        Some(Finding {
            kind: ViolationKind::InputNotFinite,
            argument: place.name,
            place: locate(place, at),
            detail: format!(
                "{what} before the call; not its fault: it comes from a weight, or from the host's arithmetic after {last}"
            ),
        })
    })
}

/// What a call left in the outputs of `scratch`, which is one of `args`.
///
/// # Errors
/// If the device failed.
///
/// # Safety
/// `args` are as the contract says, in the memory of the scratch.
pub(super) unsafe fn outputs(
    args: Args<'_>,
    scratch: &Scratch,
    capabilities: u64,
) -> Result<Option<Finding>, CudaError> {
    let (memory, places, gathered) = (scratch.memory(), scratch.places(), scratch.outputs()?);
    // SAFETY: the caller's contract, here and below.
    let positions = unsafe { memory.read((*args.batch()).positions, rows(args.batch()))? };
    for (place, bytes) in places.iter().zip(&gathered) {
        if let Some(finding) = unwritten_or_not_finite(place, bytes, &positions) {
            return Ok(Some(finding));
        }
    }
    let numbers = |i: usize| gathered[i].chunks_exact(4).map(|b| word(b) as i32).collect::<Vec<_>>();
    let values = |i: usize| gathered[i].chunks_exact(4).map(|b| f32::from_bits(word(b))).collect::<Vec<_>>();
    Ok(match args {
        Args::Select(a) => selected(a, &positions, &numbers(0)),
        Args::Route(a) => {
            // SAFETY: as above.
            let own = unsafe { prescribed(a, &positions, memory)? };
            routed(a, &positions, own.as_deref(), &numbers(0), &values(1), capabilities)
        }
        Args::Pre(a) => gates(a, &positions, &values(1), &values(2)),
        _ => None,
    })
}

/// Rows of padding may hold anything.
fn unwritten_or_not_finite(place: &Place, bytes: &[u8], positions: &[i32]) -> Option<Finding> {
    let padded = |number: usize| place.axis == "row" && positions.get(number).is_some_and(|p| *p < 0);
    for (item, bytes) in bytes.chunks_exact(place.item_bytes.max(1)).enumerate() {
        let number = place.items.get(item).map_or(item, |(number, _)| *number);
        if padded(number) {
            continue;
        }
        let finding = |kind, at: usize, detail: String| {
            let mut text = locate(place, item * place.item_bytes + at);
            if let Some(position) = positions.get(number).filter(|_| place.axis == "row") {
                text += &format!(" (position {position})");
            }
            Some(Finding { kind, argument: place.name, place: text, detail })
        };
        let poisoned = |word_bytes: &[u8]| word(word_bytes) == POISON;
        let words = bytes.chunks_exact(4);
        let count = words.clone().filter(|w| poisoned(w)).count();
        let all = words.len();
        // Any bits are fp4 values, so that only an entry without any other word shows that nobody wrote it.
        let fp4 = matches!(place.kind, Kind::Entry(Entry { layout: layout::KEY_FP4_HADAMARD, .. }));
        let unwritten = words.clone().position(poisoned).filter(|_| !fp4 || count == all);
        if let Some(first) = unwritten {
            return finding(
                ViolationKind::Unwritten,
                4 * first,
                format!("{count} of {all} words left unwritten"),
            );
        }
        if let Some((at, what)) = not_finite(place.kind, place.item_bytes, bytes) {
            return finding(ViolationKind::NotFinite, at, format!("the call wrote {what}"));
        }
    }
    None
}

/// A finding about a row.
fn at_row(
    kind: ViolationKind,
    argument: &'static str,
    row: usize,
    positions: &[i32],
    place: &str,
    detail: String,
) -> Option<Finding> {
    let place = format!("row {row}{place} (position {})", positions[row]);
    Some(Finding { kind, argument, place, detail })
}

fn selected(a: &SelectArgs, positions: &[i32], ids: &[i32]) -> Option<Finding> {
    let topk = a.topk as usize;
    let mut seen = Vec::new();
    for (row, (ids, position)) in ids.chunks_exact(topk.max(1)).zip(positions).enumerate() {
        let complete = ((position + 1).max(0) as usize) / (a.ratio as usize).max(1);
        let want = complete.min(topk);
        let fail = |kind, rank: usize, detail| {
            at_row(kind, "ids", row, positions, &format!(", rank {rank}"), detail)
        };
        seen.clear();
        seen.resize(complete, false);
        let used = ids.iter().position(|id| *id == -1).unwrap_or(topk);
        for (rank, id) in ids.iter().enumerate() {
            match usize::try_from(*id).ok().filter(|id| *id < complete) {
                Some(_) if rank >= used => {
                    return fail(ViolationKind::OutOfRange, rank, format!("id {id} after a -1"));
                }
                Some(id) if std::mem::replace(&mut seen[id], true) => {
                    return fail(ViolationKind::Duplicate, rank, format!("id {id} a second time"));
                }
                Some(_) => {}
                None if *id == -1 => {}
                None => {
                    let detail = format!("id {id}, expected 0 to {complete} - 1");
                    return fail(ViolationKind::OutOfRange, rank, detail);
                }
            }
        }
        if used < want {
            return fail(ViolationKind::Missing, used, format!("{used} ids, expected {want}"));
        }
    }
    None
}

/// A token, and its experts in the table.
type TableRow = (i32, Vec<i32>);

/// Token and experts of each row as the table has them; `None` where there is no table.
///
/// # Errors
/// If the device failed.
///
/// # Safety
/// The arguments are as the contract says, in `memory`.
unsafe fn prescribed(
    a: &RouteArgs,
    positions: &[i32],
    memory: Memory,
) -> Result<Option<Vec<TableRow>>, CudaError> {
    if a.tid2eid.data.is_null() {
        return Ok(None);
    }
    let (table, topk) = (a.tid2eid.data.cast::<i32>().cast_const(), a.topk as usize);
    // SAFETY: the caller's contract.
    let tokens = unsafe { memory.read(a.input_ids, positions.len())? };
    let known = |token: i32| (0..a.tid2eid.shape[0]).contains(&i64::from(token));
    let row = |(token, position): (i32, &i32)| {
        let read = *position >= 0 && known(token);
        let at = table.wrapping_add(token.max(0) as usize * topk);
        // SAFETY: as above; the table has a row of that number.
        Ok((token, unsafe { memory.read(at, if read { topk } else { 0 })? }))
    };
    tokens.into_iter().zip(positions).map(row).collect::<Result<_, _>>().map(Some)
}

fn routed(
    a: &RouteArgs,
    positions: &[i32],
    prescribed: Option<&[(i32, Vec<i32>)]>,
    ids: &[i32],
    weights: &[f32],
    capabilities: u64,
) -> Option<Finding> {
    let (topk, experts) = (a.topk as usize, a.gate.shape[0] as i32);
    let hashed = prescribed.is_some();
    let scales = if hashed { capability::ROUTE_SCALES_HASH } else { capability::ROUTE_SCALES_TOPK };
    let want = if capabilities & scales != 0 { a.routed_scale } else { 1.0 };
    let rows = ids.chunks_exact(topk.max(1)).zip(weights.chunks_exact(topk.max(1)));
    for (row, (ids, weights)) in rows.enumerate().filter(|(row, _)| positions[*row] >= 0) {
        let fail = |kind, argument, rank: usize, detail| {
            at_row(kind, argument, row, positions, &format!(", rank {rank}"), detail)
        };
        if let Some(rank) = ids.iter().position(|id| !(0..experts).contains(id)) {
            let detail = format!("expert {}, expected 0 to {experts} - 1", ids[rank]);
            return fail(ViolationKind::OutOfRange, "ids", rank, detail);
        }
        if let Some((token, own)) = prescribed.map(|rows| &rows[row]) {
            let sorted = |ids: &[i32]| {
                let mut ids = ids.to_vec();
                ids.sort_unstable();
                ids
            };
            if sorted(own) != sorted(ids) {
                let detail = format!("experts {ids:?} for token {token}, whose table row is {own:?}");
                return fail(ViolationKind::Missing, "ids", 0, detail);
            }
        } else if let Some(rank) = (1..topk).find(|i| ids[..*i].contains(&ids[*i])) {
            return fail(
                ViolationKind::Duplicate,
                "ids",
                rank,
                format!("expert {} a second time", ids[rank]),
            );
        }
        if let Some(rank) = weights.iter().position(|w| *w < 0.0) {
            return fail(ViolationKind::OutOfRange, "weights", rank, format!("{} is below 0", weights[rank]));
        }
        let sum: f32 = weights.iter().sum();
        if (sum - want).abs() > SUM * want.abs() {
            return fail(
                ViolationKind::OutOfRange,
                "weights",
                0,
                format!("they sum to {sum}, expected {want}"),
            );
        }
    }
    None
}

fn gates(a: &MhcPreArgs, positions: &[i32], post: &[f32], comb: &[f32]) -> Option<Finding> {
    let hc = a.post.shape[1].max(1) as usize;
    let rows = post.chunks_exact(hc).zip(comb.chunks_exact(hc * hc));
    for (row, (post, comb)) in rows.enumerate().filter(|(row, _)| positions[*row] >= 0) {
        let fail = |argument, place: String, detail: String| {
            at_row(ViolationKind::OutOfRange, argument, row, positions, &place, detail)
        };
        if let Some(k) = post.iter().position(|p| !(0.0..=2.0 + SUM).contains(p)) {
            return fail("post", format!(", stream {k}"), format!("{}, expected 0 to 2", post[k]));
        }
        if let Some(i) = comb.iter().position(|c| !(0.0..=1.0 + SUM).contains(c)) {
            let place = format!(", from {}, to {}", i / hc, i % hc);
            return fail("comb", place, format!("{}, expected 0 to 1", comb[i]));
        }
        for to in 0..hc {
            let sum: f32 = (0..hc).map(|from| comb[from * hc + to]).sum();
            if (sum - 1.0).abs() > SUM {
                return fail("comb", format!(", to {to}"), format!("its column sums to {sum}, expected 1"));
            }
        }
    }
    None
}

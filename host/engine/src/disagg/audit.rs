//! The audit of a hand-off: destinations are poisoned before anything is sent, and every item is compared by checksum with what
//! the sending side had. It does not trust the transport, and works for any of them.

use hotseam_abi::{Region, component};
use hotseam_kv::{Items, KvStore};
use hotseam_ops::checksum;
use hotseam_pd::Sums;
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::fmt;

/// NaN as f32 and as two bf16, and no sensible value in the other forms of entries.
const POISON: [u8; 4] = 0x7fc1_7fc1_u32.to_le_bytes();
/// Findings that a map keeps.
const MOST_FINDINGS: usize = 64;

/// What arrived of one hand-off.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvMap {
    /// Room of the request.
    pub room: u64,
    /// Assignment that served it.
    pub assignment: String,
    /// Transport that moved it.
    pub transport: String,
    /// One row for each component and layer.
    pub rows: Vec<KvRow>,
    /// What is wrong, in the order of components and layers; at most 64 of them.
    pub findings: Vec<Finding>,
}

/// One component of one layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KvRow {
    /// Name of the component.
    pub component: String,
    /// Layer.
    pub layer: u32,
    /// Bytes of an item: a page, or a state row.
    pub item_bytes: u64,
    /// Items that were to be written.
    pub expected: usize,
    /// Items that arrived as they were sent.
    pub whole: usize,
    /// Numbers of the items in the receiving store.
    pub items: Vec<i32>,
}

/// One item that is not as it should be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Name of the component.
    pub component: String,
    /// Layer.
    pub layer: u32,
    /// Which of the request's pages, or state rows, from 0; absent for an item that is not the request's.
    pub page: Option<usize>,
    /// Its number in the receiving store.
    pub item: i32,
    /// What is wrong.
    pub kind: FindingKind,
}

/// What is wrong with an item.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingKind {
    /// It was to be written and was not.
    NeverWritten,
    /// Its first bytes were written and the rest was not.
    CutAt {
        /// Bytes that were written.
        bytes: usize,
        /// Bytes of an item.
        of: usize,
    },
    /// It holds another item of the same hand-off.
    Holds {
        /// Component of that item.
        component: String,
        /// Its layer.
        layer: u32,
        /// Which page or row of the request it is there.
        page: usize,
    },
    /// It holds an item of the hand-off before.
    Stale {
        /// Room of that hand-off.
        room: u64,
    },
    /// It was written, and its bytes are not those that were sent.
    Differs,
    /// Nobody asked for it, and it was written.
    NotExpected,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = |component: &str| if component.ends_with("_state") { "row" } else { "page" };
        write!(f, "{} layer {} {} ", self.component, self.layer, unit(&self.component))?;
        match self.page {
            Some(page) => write!(f, "{page}: ")?,
            None => write!(f, "number {} of no request: ", self.item)?,
        }
        match &self.kind {
            FindingKind::NeverWritten => f.write_str("expected but never written"),
            FindingKind::CutAt { bytes, of } => write!(f, "only {bytes} of {of} bytes were written"),
            FindingKind::Holds { component, layer, page } => {
                write!(f, "holds {component} layer {layer} {} {page}", unit(component))
            }
            FindingKind::Stale { room } => write!(f, "holds bytes of the hand-off before, of room {room}"),
            FindingKind::Differs => f.write_str("its bytes are not those that were sent"),
            FindingKind::NotExpected => f.write_str("written but not expected"),
        }
    }
}

impl KvMap {
    /// The findings in one sentence; `None` if there are none.
    pub fn verdict(&self) -> Option<String> {
        let first = self.findings.first()?;
        Some(match self.findings.len() {
            1 => format!("the audit of the hand-off found: {first}"),
            n => format!("the audit of the hand-off found {n} items, first: {first}"),
        })
    }
}

/// Remembers the hand-off before, to know its bytes again.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    /// Checksums of that hand-off, and its room.
    before: HashMap<u64, u64>,
    /// The pools whose free items were last poisoned, by the epoch of their store and the addresses of their regions: those of
    /// another layout are others.
    poisoned: (u64, Vec<usize>),
}

/// Bytes of an item of the receiving side. The caller gives only items of the region.
fn received(region: &Region, item: i32) -> &[u8] {
    let size = region.item_bytes as usize;
    // SAFETY: the item is in the region, which is memory of a store that only the engine thread frees; no transport writes to
    // it while it is looked at, since its room is closed or not yet open.
    unsafe { std::slice::from_raw_parts(region.dst.add(item as usize * size), size) }
}

/// As [`received`], to be written.
fn poison(region: &Region, item: i32) {
    let size = region.item_bytes as usize;
    // SAFETY: as for `received`; nobody else holds a reference, since this is the engine thread.
    let bytes = unsafe { std::slice::from_raw_parts_mut(region.dst.add(item as usize * size), size) };
    bytes.chunks_mut(4).for_each(|word| word.copy_from_slice(&POISON[..word.len()]));
}

/// Checksums of items of the sending side of a region.
pub(crate) fn sums(region: &Region, items: &[i32]) -> Vec<u64> {
    let size = region.item_bytes as usize;
    let sum = |item: &i32| {
        // SAFETY: the item is in the region, and nothing writes it until it was handed over.
        checksum(unsafe { std::slice::from_raw_parts(region.src.add(*item as usize * size), size) })
    };
    items.iter().map(sum).collect()
}

/// How many bytes at the end are poison.
fn poisoned(bytes: &[u8]) -> usize {
    bytes.iter().enumerate().rev().take_while(|(i, byte)| **byte == POISON[i % 4]).count()
}

impl Audit {
    /// Poisons the items that are to be written and all that are free. `regions` are those of the receiving store.
    pub(crate) fn begin(&mut self, store: &mut KvStore, regions: &[Region], items: &Items) {
        // An item has one number in the pools of all layouts, so its mark says nothing of pools that were not looked at.
        let pools = (store.epoch(), regions.iter().map(|region| region.dst.addr()).collect());
        let known = self.poisoned == pools;
        self.poisoned = pools;
        let free = [Some(store.free_items(true)), (!known).then(|| store.free_items(false))];
        for region in regions {
            let component = region.component as usize;
            let free = free.iter().flatten().flat_map(|free| &free[component]);
            items[component].iter().chain(free).for_each(|item| poison(region, *item));
        }
        store.mark_clean();
    }

    /// Compares what arrived with what was sent.
    pub(crate) fn check(
        &mut self,
        store: &KvStore,
        regions: &[Region],
        items: &Items,
        sent: &[Sums],
        (room, assignment, transport): (u64, &str, &str),
    ) -> KvMap {
        let mut places: HashMap<u64, (u32, u32, usize)> = HashMap::new();
        for of in sent {
            let each = of.sums.iter().enumerate();
            each.for_each(|(page, sum)| {
                places.entry(*sum).or_insert((of.component, of.layer, page));
            });
        }
        let free = store.free_items(false);
        let (assignment, transport) = (assignment.to_owned(), transport.to_owned());
        let mut map = KvMap { room, assignment, transport, rows: Vec::new(), findings: Vec::new() };
        for region in regions {
            let (component, layer) = (region.component, region.layer);
            let list = &items[component as usize];
            let name = component::NAMES[component as usize];
            let expected = sent.iter().find(|s| (s.component, s.layer) == (component, layer));
            let expected = expected.map_or(&[][..], |s| &s.sums);
            let mut whole = 0;
            let mut find = |page: Option<usize>, item: i32, kind: FindingKind| {
                if map.findings.len() < MOST_FINDINGS {
                    map.findings.push(Finding { component: name.to_owned(), layer, page, item, kind });
                }
            };
            for (page, item) in list.iter().enumerate() {
                let bytes = received(region, *item);
                let sum = checksum(bytes);
                if expected.get(page) == Some(&sum) {
                    whole += 1;
                } else {
                    find(Some(page), *item, self.explain(bytes, sum, &places));
                }
            }
            for item in &free[component as usize] {
                if poisoned(received(region, *item)) != region.item_bytes as usize {
                    find(None, *item, FindingKind::NotExpected);
                }
            }
            if !list.is_empty() {
                map.rows.push(KvRow {
                    component: name.to_owned(),
                    layer,
                    item_bytes: region.item_bytes,
                    expected: list.len(),
                    whole,
                    items: list.clone(),
                });
            }
        }
        self.before = places.into_keys().map(|sum| (sum, room)).collect();
        map
    }

    fn explain(&self, bytes: &[u8], sum: u64, places: &HashMap<u64, (u32, u32, usize)>) -> FindingKind {
        let rest = poisoned(bytes);
        if rest == bytes.len() {
            return FindingKind::NeverWritten;
        }
        if let Some((component, layer, page)) = places.get(&sum) {
            let component = component::NAMES.get(*component as usize).unwrap_or(&"unknown").to_string();
            return FindingKind::Holds { component, layer: *layer, page: *page };
        }
        match self.before.get(&sum) {
            Some(room) => FindingKind::Stale { room: *room },
            // A word of poison could be a value; a quarter of a kilobyte is none.
            None if rest >= 256.min(bytes.len()) => {
                FindingKind::CutAt { bytes: bytes.len() - rest, of: bytes.len() }
            }
            None => FindingKind::Differs,
        }
    }
}

/// The region of a component and layer among `regions`.
pub(crate) fn find(regions: &[Region], component: u32, layer: u32) -> Option<&Region> {
    regions.iter().find(|r| (r.component, r.layer) == (component, layer))
}

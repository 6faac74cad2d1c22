//! The plan against a slow model of what each list must say, over random chunkings.

use hotseam_checkpoint::random::Preset;
use hotseam_kv::{KvConfig, KvStore, LayerLayout, Layout, Place, Plan, SeqKv};
use hotseam_model::LayerClass;
use std::collections::HashMap;

fn layouts() -> Vec<LayerLayout> {
    let kv = Layout { id: 1, dim: 16, rope_dim: 8, data_bytes: 64, scale_bytes: 0 };
    let keys = Layout { id: 17, dim: 16, rope_dim: 8, data_bytes: 32, scale_bytes: 0 };
    let of = |class| LayerLayout { kv, keys: (class == LayerClass::Csa).then_some(keys) };
    vec![of(LayerClass::Window), of(LayerClass::Csa), of(LayerClass::Hca)]
}

fn store() -> KvStore {
    let mut store = KvStore::new(
        &Preset::Tiny.config(),
        KvConfig { pages: 64, max_seqs: 4, max_rows: 600, place: Place::Host },
    )
    .unwrap();
    store.ensure(&layouts()).unwrap();
    store
}

/// What position each state row and slot holds, as the plan told it to be written.
#[derive(Default)]
struct Shadow {
    state: HashMap<(u32, i32), i32>,
    window: HashMap<i32, (usize, i32)>,
}

impl Shadow {
    /// Checks the sources of the step against the shadow, then applies its writes.
    fn step(&mut self, plan: &Plan, ids: &[usize]) {
        for (ratio, width, lists) in [(4u32, 8, &plan.c4), (128, 128, &plan.c128)] {
            for (entry, first) in lists.entry_positions.iter().enumerate() {
                let sources = &lists.sources[entry * width..(entry + 1) * width];
                let expected = *first - (width as i32 - ratio as i32)..*first + ratio as i32;
                for (source, position) in sources.iter().zip(expected) {
                    let found = match *source {
                        -1 => -1,
                        row if row >= 0 => plan.positions[row as usize],
                        state => self.state[&(ratio, -(state + 2))],
                    };
                    assert_eq!(found, position.max(-1), "ratio {ratio}, entry at {first}");
                }
            }
        }
        for (ratio, lists) in [(4u32, &plan.c4), (128, &plan.c128)] {
            for (row, dst) in lists.state_dst.iter().enumerate().filter(|(_, dst)| **dst >= 0) {
                assert!(
                    !lists.sources.contains(&-(dst + 2)),
                    "a row that is read is written in the same step"
                );
                self.state.insert((ratio, *dst), plan.positions[row]);
            }
        }
        for (row, slot) in plan.window_slots.iter().enumerate() {
            let seq = plan.row_seq[row] as usize;
            self.window.insert(*slot, (ids[seq], plan.positions[row]));
        }
        for (row, position) in plan.positions.iter().enumerate() {
            let seq = plan.row_seq[row] as usize;
            for p in (position - 127).max(0)..=*position {
                let page = plan.window_table[seq * plan.table_width + p as usize / 256];
                assert_eq!(self.window[&(page * 256 + p % 256)], (ids[seq], p), "window of row {row}");
            }
        }
    }
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

#[test]
fn random_chunks_of_four_sequences_address_the_right_positions_and_leak_nothing() {
    let mut random = Random(7);
    for round in 0..20 {
        let mut store = store();
        let free = store.free_pages();
        let mut seqs: Vec<SeqKv> = (0..4).map(|_| store.open(2048).unwrap()).collect();
        let mut shadow = Shadow::default();
        let mut plan = Plan::default();
        for _ in 0..40 {
            plan.begin(2048);
            let mut planned = Vec::new();
            for (id, seq) in seqs.iter_mut().enumerate() {
                let rows = match random.below(4) {
                    0 => 0,
                    1 => 1,
                    _ => 1 + random.below(if round % 2 == 0 { 300 } else { 9 }),
                };
                if rows > 0 && seq.len() + rows <= 2048 {
                    plan.add(&mut store, seq, rows, 0).unwrap();
                    planned.push((id, rows));
                }
            }
            let ids: Vec<usize> = planned.iter().map(|(id, _)| *id).collect();
            let failed = random.below(5) == 0;
            if !failed {
                shadow.step(&plan, &ids);
            }
            for (id, rows) in planned {
                match failed {
                    true => store.abort(&mut seqs[id]),
                    false => store.commit(&mut seqs[id], rows),
                }
            }
        }
        seqs.into_iter().for_each(|seq| store.close(seq));
        assert_eq!(store.free_pages(), free);
        let mut again: Vec<SeqKv> = (0..4).map(|_| store.open(2048).unwrap()).collect();
        plan.begin(2048);
        for seq in &mut again {
            plan.add(&mut store, seq, 600, 0).expect("window pages and state rows came back");
        }
    }
}

#[test]
fn a_saved_or_received_sequence_goes_on_like_the_original() {
    for len in [1, 3, 4, 5, 127, 128, 129, 255, 256, 257, 260, 511, 600] {
        let (mut from, mut to) = (store(), store());
        let mut seq = from.open(1024).unwrap();
        let mut plan = Plan::default();
        plan.begin(1024);
        plan.add(&mut from, &mut seq, len, 0).unwrap();
        from.commit(&mut seq, len);
        let saved = from.save(&seq, &layouts()).unwrap();
        let restored = to.restore(&saved, &layouts(), 1024).unwrap();
        assert_eq!(restored.len(), len);
        let (received, transfers) = to.receive(&seq, &layouts(), 1024).unwrap();
        assert_eq!(received.len(), len);
        assert!(
            transfers
                .iter()
                .all(|t| t.src.len() == t.dst.len() && !t.dst.contains(&-1) && !t.src.contains(&-1))
        );
        let regions = from.regions(&to, &layouts());
        for t in &transfers {
            assert!(
                regions.iter().any(|r| (r.component, r.layer) == (t.component, t.layer)),
                "{t:?} has no region"
            );
        }
        let state = |component| {
            transfers.iter().filter(|t| t.component == component).map(|t| t.src.len()).sum::<usize>()
        };
        assert_eq!(state(hotseam_abi::component::C128_STATE), len % 128, "the open ratio-128 group of {len}");
        assert_eq!(
            state(hotseam_abi::component::C4_STATE),
            len - (len / 4 * 4).saturating_sub(4),
            "of {len}"
        );
        let (a, b) = (to.free_pages(), to.total_pages());
        to.close(restored);
        to.close(received);
        assert_eq!(to.free_pages(), b, "{a} were free before");
    }
}

#[test]
fn running_out_is_an_error_that_says_what() {
    let mut store = KvStore::new(
        &Preset::Tiny.config(),
        KvConfig { pages: 2, max_seqs: 1, max_rows: 16, place: Place::Host },
    )
    .unwrap();
    store.ensure(&layouts()).unwrap();
    let error = store.open(3 * 256).unwrap_err().to_string();
    assert_eq!(error, "KV pool: 3 pages wanted, 2 free; raise engine.pages or lower engine.max_context");
    assert_eq!(store.free_pages(), 2);
}

#[test]
fn a_long_sequence_is_made_of_copies_of_a_short_ones_pages() {
    let (mut store, mut plan) = (store(), Plan::default());
    let mut short = store.open(600).unwrap();
    plan.begin(600);
    plan.add(&mut store, &mut short, 512, 0).unwrap();
    store.commit(&mut short, 512);
    // Two pages that differ, in every pool.
    let held = store.incoming(&layouts());
    let words = |region: &hotseam_abi::Region, page: i32| {
        // SAFETY: the page is in the region, which nothing else uses.
        unsafe {
            std::slice::from_raw_parts_mut(
                region.dst.add(page as usize * region.item_bytes as usize),
                region.item_bytes as usize,
            )
        }
    };
    let of = |region: &hotseam_abi::Region, seq: &SeqKv| store.items(seq)[region.component as usize].clone();
    let pages: Vec<_> = held.iter().filter(|r| r.component <= 3).collect();
    for region in &pages {
        for (i, page) in of(region, &short).into_iter().enumerate() {
            words(region, page).fill(i as u8 + 1);
        }
    }
    let regions: Vec<hotseam_abi::Region> = pages.into_iter().copied().collect();
    let long = store.open_copies(&short, &layouts(), 7 * 256 + 9, 8 * 256).unwrap();
    assert_eq!(long.len(), 7 * 256 + 9);
    for region in &regions {
        for page in store.items(&long)[region.component as usize].clone() {
            let found = words(region, page);
            assert!(
                found[0] > 0 && found.iter().all(|byte| *byte == found[0]),
                "component {}",
                region.component
            );
        }
    }
}

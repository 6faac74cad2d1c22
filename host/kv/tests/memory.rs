//! What a store allocates, counted by the allocator, at the shape of DeepSeek-V4-Flash.

use hotseam_abi::layout;
use hotseam_checkpoint::random::Preset;
use hotseam_kv::{Footprint, KvConfig, KvStore, LayerLayout, Layout, PAGE_TOKENS, Place, Plan};
use hotseam_model::{LayerClass, ModelConfig};
use std::alloc::{GlobalAlloc, System};
use std::cell::Cell;

struct Counting;

thread_local! {
    /// Of this thread alone, because tests run beside each other.
    static BYTES: Cell<usize> = const { Cell::new(0) };
}

fn count(bytes: usize) {
    // At the end of a thread the counter may be gone.
    let _ = BYTES.try_with(|counted| counted.set(counted.get() + bytes));
}

// SAFETY: hands everything on to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: std::alloc::Layout) -> *mut u8 {
        count(layout.size());
        // SAFETY: the caller's contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: std::alloc::Layout) {
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static GLOBAL: Counting = Counting;

/// What 21 ratio-4 and 20 ratio-128 layers take for a position with entries of 584 bytes and keys of 132.
const FORMULA: f64 = 21.0 * (584.0 + 132.0) / 4.0 + 20.0 * 584.0 / 128.0;

/// Flash with the first `layers` layers: two of the window, then ratio 4 and 128 in turn.
fn flash(layers: usize) -> ModelConfig {
    let ratio = |layer: usize| match layer {
        0 | 1 => 0,
        even if even % 2 == 0 => 4,
        _ => 128,
    };
    ModelConfig {
        num_hidden_layers: layers,
        head_dim: 512,
        qk_rope_head_dim: 64,
        index_head_dim: 128,
        compress_ratios: (0..layers).map(ratio).collect(),
        ..Preset::Tiny.config()
    }
}

fn layouts(model: &ModelConfig) -> Vec<LayerLayout> {
    let kv = Layout { id: layout::KV_FP8_DS_MLA, dim: 512, rope_dim: 64, data_bytes: 576, scale_bytes: 8 };
    let key =
        Layout { id: layout::KEY_FP8_HADAMARD, dim: 128, rope_dim: 64, data_bytes: 128, scale_bytes: 4 };
    let keys = |layer| (model.class(layer) == LayerClass::Csa).then_some(key);
    (0..model.num_hidden_layers).map(|layer| LayerLayout { kv, keys: keys(layer) }).collect()
}

#[test]
fn a_position_of_flash_takes_what_the_formats_take() {
    let model = flash(43);
    let footprint = Footprint::of(&model, &layouts(&model));
    assert_eq!(FORMULA.round(), 3850.0);
    let share = footprint.per_position() / FORMULA;
    assert!((1.0..1.1).contains(&share), "{} bytes, {share:.3} of the formula", footprint.per_position());
    // The pages of the serving engines.
    assert_eq!(footprint.page, 21 * (37_440 + 8_448) + 20 * 1_728);
    assert_eq!(footprint.window_page, 43 * 149_760);
}

#[test]
fn the_allocator_counts_what_the_arithmetic_says() {
    let model = flash(5);
    let layouts = layouts(&model);
    let footprint = Footprint::of(&model, &layouts);
    let counted = |pages: usize| {
        let before = BYTES.get();
        let mut store =
            KvStore::new(&model, KvConfig { pages, max_seqs: 2, max_rows: 512, place: Place::Host }).unwrap();
        store.ensure(&layouts).unwrap();
        let window = store.total_window_pages();
        (BYTES.get() - before, window)
    };
    let (small, window) = counted(16);
    let (large, _) = counted(1016);
    let per_position = (large - small) as f64 / (1000 * PAGE_TOKENS) as f64;
    let excess = per_position / footprint.per_position();
    assert!((1.0..1.01).contains(&excess), "{per_position} bytes a position, {excess:.4} of the arithmetic");
    let fixed = window * footprint.window_page + 2 * footprint.states;
    let expected = fixed + 16 * footprint.page;
    let excess = small as f64 / expected as f64;
    assert!((1.0..1.01).contains(&excess), "{small} bytes, {expected} by arithmetic");
}

/// The window part does not grow with the context: pages that the window has left are free again.
#[test]
fn window_pages_come_back_as_the_window_moves() {
    let model = flash(3);
    let mut store =
        KvStore::new(&model, KvConfig { pages: 40, max_seqs: 1, max_rows: 512, place: Place::Host }).unwrap();
    store.ensure(&layouts(&model)).unwrap();
    let mut seq = store.open(40 * PAGE_TOKENS).expect("pages");
    let mut plan = Plan::default();
    while seq.len() + 512 <= 40 * PAGE_TOKENS {
        plan.begin(40 * PAGE_TOKENS);
        plan.add(&mut store, &mut seq, 512, 0).expect("window pages");
        store.commit(&mut seq, 512);
        let held = store.total_window_pages() - store.free_window_pages();
        assert!(held <= 2, "{held} window pages at {} positions", seq.len());
    }
    store.close(seq);
    assert_eq!(store.free_window_pages(), store.total_window_pages());
}

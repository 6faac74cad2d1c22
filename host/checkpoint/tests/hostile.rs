//! Files that were made to harm: the inputs that fuzzing kept (`fuzz/corpus/read`), and seeded changes of them, never
//! panic the reader and never cost much more memory than they have bytes.

#[path = "../fuzz/input.rs"]
mod input;

use input::{KINDS, Place};
use std::alloc::{GlobalAlloc, Layout, System};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts what is allocated, and the most there was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        MOST.fetch_max(NOW.fetch_add(layout.size(), Relaxed) + layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Bytes that a read may allocate: tables of a sound checkpoint, and parsed JSON, which is some tens of times its text.
fn allowed(input: usize) -> usize {
    (2 << 20) + 64 * input
}

/// A small generator of numbers (xorshift), seeded.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n.max(1) as u64) as usize
    }
}

/// Words that readers of JSON and of sizes trip over.
const WORDS: [&[u8]; 22] = [
    b"18446744073709551615",
    b"9223372036854775808",
    b"4294967296",
    b"-1",
    b"1e999",
    b"-0.0",
    b"null",
    b"true",
    b"{}",
    b"[]",
    b"\"\"",
    b"[[[[[[[[[[[[[[[[",
    b"\"\\u0000\"",
    b"\"F8_E8M0\"",
    b"\"F4\"",
    b"\"I64\"",
    b"0",
    b"\xff\xfe",
    b"\"data_offsets\":[0,18446744073709551615]",
    b"\"shape\":[4294967296,4294967296]",
    b"\"../x\"",
    b"\0",
];

/// One to four changes: cut, repeated, overwritten, a hostile word put in.
fn change(random: &mut Random, input: &[u8]) -> Vec<u8> {
    let mut bytes = input.to_vec();
    for _ in 0..=random.below(4) {
        if bytes.len() < 2 {
            break;
        }
        let at = 1 + random.below(bytes.len() - 1);
        match random.below(6) {
            0 => bytes.truncate(at),
            1 => bytes[at] ^= 1 << random.below(8),
            2 => bytes[at] = random.below(256) as u8,
            3 => {
                let end = (at + 1 + random.below(40)).min(bytes.len());
                bytes.drain(at..end);
            }
            4 => {
                let end = (at + 1 + random.below(200)).min(bytes.len());
                let part = bytes[at..end].to_vec();
                bytes.splice(at..at, part);
            }
            // In the place of a number, if there is one from here on.
            _ => {
                let digit = |i: &usize| bytes[*i].is_ascii_digit();
                let begin = (at..bytes.len()).find(digit).unwrap_or(at);
                let end = (begin..bytes.len()).find(|i| !digit(i)).unwrap_or(bytes.len());
                bytes.splice(begin..end, WORDS[random.below(WORDS.len())].iter().copied());
            }
        }
    }
    bytes
}

/// Reads with the input in place; returns whether it was refused.
fn try_out(place: &Place, input: &[u8], what: &dyn Fn() -> String) -> bool {
    MOST.store(NOW.load(Relaxed), Relaxed);
    let before = NOW.load(Relaxed);
    let result = place.read(input).unwrap_or_else(|| panic!("{} names no file", what()));
    let used = MOST.load(Relaxed) - before;
    // The harness itself holds the file once more when it writes a header.
    let most = allowed(input.len()) + place.shard().len();
    assert!(
        used <= most,
        "{}: {used} bytes for an input of {}, at most {most} expected",
        what(),
        input.len()
    );
    result.is_err()
}

fn corpus() -> Vec<(String, Vec<u8>)> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/read");
    let mut files: Vec<_> = (std::fs::read_dir(dir).expect("the corpus is part of the repository").flatten())
        .map(|file| (file.file_name().to_string_lossy().into_owned(), std::fs::read(file.path()).unwrap()))
        .collect();
    files.sort();
    files
}

/// The sound files, each as an input.
fn sound(place: &Place) -> Vec<Vec<u8>> {
    let with = |kind: u8, content: &[u8]| [&[kind], content].concat();
    vec![with(b'c', place.config()), with(b's', place.shard()), with(b'h', place.header())]
}

#[test]
fn no_input_panics_the_reader_or_fills_the_memory() {
    let place = Place::new();
    for input in sound(&place) {
        assert!(!try_out(&place, &input, &|| format!("sound `{}`", input[0] as char)));
    }
    let corpus = corpus();
    for (kind, name) in KINDS {
        assert!(corpus.iter().any(|(_, bytes)| bytes.first() == Some(&kind)), "no input for {name} ({kind})");
    }
    let begin = NOW.load(Relaxed);
    let (mut refused, mut taken) = (0, 0);
    for (name, bytes) in &corpus {
        match try_out(&place, bytes, &|| name.clone()) {
            true => refused += 1,
            false => taken += 1,
        }
    }
    println!("corpus: {} inputs, {refused} refused, {taken} taken", corpus.len());

    let seeds: Vec<Vec<u8>> = sound(&place).into_iter().chain(corpus.into_iter().map(|(_, b)| b)).collect();
    let rounds = if std::env::var("HOTSEAM_TEST_FULL").is_ok_and(|v| v == "1") { 200_000 } else { 4_000 };
    let mut random = Random(0x5eed_cafe_f00d);
    let (mut refused, mut taken) = (0, 0);
    for round in 0..rounds {
        let seed = &seeds[random.below(seeds.len())];
        let input = change(&mut random, seed);
        match try_out(&place, &input, &|| format!("round {round}")) {
            true => refused += 1,
            false => taken += 1,
        }
    }
    let left = NOW.load(Relaxed).saturating_sub(begin);
    let kept: usize = seeds.iter().map(Vec::len).sum();
    assert!(
        left < kept + 64 * 1024,
        "{left} bytes are left after {rounds} inputs, {kept} of them the inputs'"
    );
    println!("changes: {rounds} inputs, {refused} refused, {taken} taken");
    assert!(
        refused > rounds / 4,
        "only {refused} of {rounds} changes were refused: the changes reach nothing"
    );
}

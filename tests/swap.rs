//! Swaps while requests run: between two files of one variant nothing may be seen, and nothing may fail.

use hotseam_engine::{Engine, Request};
use hotseam_slots::LayoutPolicy;
use hotseam_tests::{Checkpoint, all, config, engine, goldens, rule, twin, twins};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

const SEAMS: [&str; 4] = ["attention", "indexer", "moe", "mhc"];

fn answers(engine: &Engine, tokens: &[u32]) -> Vec<Vec<u32>> {
    let request = |i: usize| Request::greedy(tokens[i * 11..i * 11 + 200 + i * 31].to_vec(), 160);
    let handles: Vec<_> = (0..8).map(|i| engine.submit(request(i)).unwrap()).collect();
    handles
        .into_iter()
        .map(|h| h.tokens().unwrap_or_else(|(code, message)| panic!("{code}: {message}")))
        .collect()
}

#[test]
fn two_hundred_swaps_under_eight_streams_change_nothing() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens);

    // Inside the plugin directory, since the loader refuses files from anywhere else.
    let dir = twins();
    let files: Vec<PathBuf> = SEAMS.iter().map(|seam| twin(&dir, seam, "cpu-stock")).collect();
    let running = AtomicBool::new(true);
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0;
            while swaps < 200 || running.load(Ordering::Relaxed) {
                let seam = SEAMS[swaps % SEAMS.len()];
                let variant = match (swaps / SEAMS.len()) % 2 {
                    0 => files[swaps % SEAMS.len()].display().to_string(),
                    _ => format!("{seam}/cpu-stock"),
                };
                let select =
                    if swaps % 3 == 0 { format!("{seam}@decode:layers=2-6") } else { seam.to_owned() };
                let select = if seam == "indexer" { "indexer".to_owned() } else { select };
                let report = engine.slots().swap("live", rule(&select, &variant), LayoutPolicy::Refuse);
                report.unwrap_or_else(|e| panic!("swap {swaps}: {e}"));
                swaps += 1;
                std::thread::sleep(std::time::Duration::from_millis(2));
            }
            swaps
        });
        let mut rounds = 0;
        while !swapper.is_finished() {
            assert_eq!(answers(&engine, &tokens), want, "round {rounds}");
            rounds += 1;
            if rounds >= 2 {
                running.store(false, Ordering::Relaxed);
            }
        }
        swapper.join().unwrap()
    });
    assert!(swaps >= 200);
    println!("{swaps} swaps under 8 streams, no failed request, tokens equal");
}

#[test]
fn a_changed_layout_is_refused_and_the_old_variant_stays() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens);
    let error =
        engine.slots().swap("live", rule("indexer", "indexer/cpu-stock{keys: bf16}"), LayoutPolicy::Refuse);
    let message = error.unwrap_err().to_string();
    for part in ["402", "key-f32", "key-bf16"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(answers(&engine, &tokens), want);
}

#[test]
fn a_plugin_that_panics_fails_its_own_requests_only() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens);
    let mut rules = all("cpu-stock");
    rules.push(rule("attention.core@decode:layers=3", "faulty/attention{fault: panic}"));
    engine.slots().define("broken", rules).unwrap_or_else(|e| panic!("{e}"));
    let broken = Request { assignment: "broken".into(), ..Request::greedy(tokens[..300].to_vec(), 8) };
    let good = engine.submit(Request::greedy(tokens[..200].to_vec(), 160)).unwrap();
    let (code, message) = engine.submit(broken).unwrap().tokens().unwrap_err();
    assert_eq!(code, "E-PLUG-501");
    for part in ["attention.core", "decode", "panic", "faulty/attention"] {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(good.tokens().unwrap(), want[0]);

    // The instance that panicked is not called again; a swap to the same variant makes a new one.
    let ask = || {
        let request = Request { assignment: "broken".into(), ..Request::greedy(tokens[..50].to_vec(), 8) };
        engine.submit(request).unwrap().tokens().unwrap_err().1
    };
    assert!(ask().contains("not used again"));
    let again = rule("attention.core@decode:layers=3", "faulty/attention{fault: panic}");
    let report = engine.slots().swap("broken", again, LayoutPolicy::Refuse).unwrap();
    assert_eq!(report.changes.len(), 1);
    assert!(ask().contains("planted panic"));
    assert_eq!(engine.stats().free_pages, engine.stats().total_pages);
}

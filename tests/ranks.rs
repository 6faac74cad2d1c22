//! Tensor-parallel ranks: the same answers as one process, swaps on all of them at one step, faults of one rank named with it, and no
//! wait for one that is gone.

use hotseam_engine::{Engine, EngineConfig, Event, Request};
use hotseam_slots::{CellId, LayoutPolicy, Op};
use hotseam_tests::http::{Server, hotseam, run};
use hotseam_tests::ranks::{child_of, kill, nano, start};
use hotseam_tests::{
    Checkpoint, all, argmax, config, difference, full, goldens, logits, root, rule, tapped, twin, twins,
};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Of the range of the logits: sums of other orders in f32, through 7 layers.
const ROUNDING: f32 = 2e-5;

fn engine(world: u32, config: EngineConfig) -> Engine {
    start(&Checkpoint::Nano.model(), &nano(), all("cpu-stock"), config, world)
        .unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn ranks_have_the_logits_of_one_process() {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let lengths: &[usize] = if full() {
        &[1, 2, 3, 4, 5, 127, 128, 129, 255, 256, 257, 260, 511, 512, 513, 1023, 1024, 2044, 2048, 2052]
    } else {
        &[1, 2, 3, 4, 5, 127, 128, 129, 256, 257, 513, 1024]
    };
    let of = |engine: &Engine, length: usize| {
        let rows = logits(engine.submit(tapped(&tokens[..length])).expect("taken"));
        assert_eq!(rows.len(), length);
        rows
    };
    let one = engine(1, config());
    for world in [2, 4] {
        let several = engine(world, config());
        let (mut worst, mut rows) = (0f32, 0);
        for &length in lengths {
            for ((at, got), (_, want)) in of(&several, length).iter().zip(of(&one, length)) {
                let off = difference(got, &want);
                assert!(off < ROUNDING, "{world} ranks, {length} tokens, position {at}: {off:e}");
                assert_eq!(argmax(got), argmax(&want), "{world} ranks, {length} tokens, position {at}");
                (worst, rows) = (worst.max(off), rows + 1);
            }
        }
        println!("{world} ranks: {rows} rows of {} lengths, worst {worst:.1e} of the range", lengths.len());
        several.shutdown();
    }
}

/// Answers to prompts of different lengths that run in the same steps.
fn answers(engine: &Engine, tokens: &[u32], length: usize) -> Vec<Vec<u32>> {
    let request = |i: usize| Request::greedy(tokens[i * 11..i * 11 + 60 + i * 31].to_vec(), length);
    let handles: Vec<_> = (0..8).map(|i| engine.submit(request(i)).unwrap()).collect();
    handles
        .into_iter()
        .map(|h| h.tokens().unwrap_or_else(|(code, message)| panic!("{code}: {message}")))
        .collect()
}

#[test]
fn batches_of_different_sequences_have_the_tokens_of_one_process() {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    // Chunks that end in the middle of prompts, and fewer places than requests.
    let sizes = || EngineConfig { chunk: 64, max_seqs: 5, ..config() };
    let want = answers(&engine(1, sizes()), &tokens, 80);
    for world in [2, 4] {
        assert_eq!(answers(&engine(world, sizes()), &tokens, 80), want, "{world} ranks");
    }
}

#[test]
fn swaps_under_load_take_effect_on_all_ranks_and_fail_no_request() {
    let engine = engine(2, config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens, 96);
    // Between two files of one variant nothing may be seen.
    let dir = twins();
    let files = ["attention", "indexer", "moe", "mhc"]
        .map(|seam| twin(&dir, seam, "cpu-stock").display().to_string());
    let running = AtomicBool::new(true);
    let swaps = std::thread::scope(|scope| {
        let swapper = scope.spawn(|| {
            let mut swaps = 0;
            while swaps < 100 || running.load(Ordering::Relaxed) {
                let seam = ["attention", "indexer", "moe", "mhc"][swaps % 4];
                let variant = match (swaps / 4) % 2 {
                    0 => files[swaps % 4].clone(),
                    _ => format!("{seam}/cpu-stock"),
                };
                let rank = ["", "/ranks=1", "/ranks=0"][swaps % 3];
                let report = engine.slots().swap(
                    "live",
                    rule(&format!("{seam}{rank}"), &variant),
                    LayoutPolicy::Refuse,
                );
                report.unwrap_or_else(|e| panic!("swap {swaps}: {e}"));
                swaps += 1;
            }
            swaps
        });
        let mut rounds = 0;
        while !swapper.is_finished() {
            assert_eq!(answers(&engine, &tokens, 96), want, "round {rounds}");
            rounds += 1;
            running.store(rounds < 2, Ordering::Relaxed);
        }
        swapper.join().unwrap()
    });
    println!(
        "{swaps} swaps of every seam on both ranks, or one, under 8 streams: no failed request, tokens equal"
    );

    // What each rank ran is counted there.
    let snapshot = engine.slots().snapshot("live").unwrap();
    answers(&engine, &tokens, 8);
    snapshot.count_elsewhere();
    for rank in [0, 1] {
        // The head is the first rank's.
        let runs = |cell: CellId| cell.rank == Some(rank) && (rank == 0 || cell.op != Op::Head);
        let cells: Vec<_> = snapshot.cells().filter(|view| runs(view.cell)).collect();
        assert!(!cells.is_empty() && cells.iter().all(|view| view.calls > 0), "rank {rank}");
    }
}

#[test]
fn a_call_that_fails_on_one_rank_fails_its_requests_only_and_names_the_rank() {
    let engine = engine(2, config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens, 8);
    let mut rules = all("cpu-stock");
    rules.push(rule("attention@decode:layers=3/ranks=1", "faulty/attention{fault: error}"));
    engine.slots().define("broken", rules).unwrap_or_else(|e| panic!("{e}"));
    let request = Request { assignment: "broken".into(), ..Request::greedy(tokens[..40].to_vec(), 8) };
    let handles: Vec<_> = (0..3).map(|_| engine.submit(request.clone()).unwrap()).collect();
    for handle in handles {
        let (code, message) = handle.tokens().expect_err("a failed step");
        assert_eq!(code, "E-PLUG-501", "{message}");
        assert!(message.contains("attention.core@decode:layers=3/ranks=1"), "{message}");
    }
    assert_eq!(answers(&engine, &tokens, 8), want, "the next steps");
}

#[test]
fn a_table_that_one_rank_cannot_have_is_refused_and_the_old_one_stays() {
    let engine = engine(2, config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let want = answers(&engine, &tokens, 8);
    let refused = |select: &str, variant: &str| {
        let swapped = engine.slots().swap("live", rule(select, variant), LayoutPolicy::Refuse);
        swapped.expect_err("a refusal").to_string()
    };
    let message = refused("moe/ranks=2", "moe/cpu-fused-scale");
    assert!(message.contains("ranks 2 do not exist here, there are 0 to 1"), "{message}");
    // Both ranks keep their entries in one layout, since hand-offs and saved states know one.
    let message = refused("indexer/ranks=1", "indexer/cpu-stock{keys: bf16}");
    assert!(message.contains("share a pool but differ in layout"), "{message}");
    assert_eq!(answers(&engine, &tokens, 8), want);
}

#[test]
fn a_group_that_cannot_be_is_refused_with_a_reason() {
    let model = Checkpoint::Nano.model();
    let refused = |world: u32| match start(&model, &nano(), all("cpu-stock"), config(), world) {
        Ok(_) => panic!("{world} ranks"),
        Err(error) => error.to_string(),
    };
    let message = refused(3);
    assert!(message.contains("num_attention_heads is 8, which 3 ranks cannot share"), "{message}");
    let message = refused(8);
    assert!(message.contains("o_groups is 4, which 8 ranks cannot share"), "{message}");
    let missing = start(&model, &root().join("assets"), all("cpu-stock"), config(), 2);
    let message = missing.err().expect("no checkpoint").to_string();
    assert!(message.contains("rank 1") && message.contains("config.json"), "{message}");
}

#[test]
fn a_rank_that_is_killed_ends_the_group_and_every_request_hears_of_it() {
    let server = Server::start(&["engine.tp_size=2"]);
    let ask = json!({"model": "nano-v4", "prompt": [0, 3, 100, 200], "max_tokens": 2000, "temperature": 0});
    let short = json!({"model": "nano-v4", "prompt": [0, 3, 100, 200], "max_tokens": 4, "temperature": 0});
    assert_eq!(server.post("/v1/completions", &short).status, 200);
    let rank = child_of(server.pid()).expect("a rank");
    let start = Instant::now();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..3).map(|_| scope.spawn(|| server.post("/v1/completions", &ask))).collect();
        std::thread::sleep(Duration::from_millis(300));
        kill(rank);
        for answer in asked {
            let answer = answer.join().unwrap();
            assert_ne!(answer.status, 200, "{}", answer.body);
            assert!(answer.body.contains("E-RANK-001"), "{}", answer.body);
        }
    });
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let said = server.said();
    assert!(said.contains("the tensor-parallel group has ended: rank 1 was killed by signal 9"), "{said}");
    let late = server.post("/v1/completions", &short);
    assert_eq!(late.status, 503, "{}", late.body);
    assert_eq!(server.ask("GET", "/health", None).status, 503);
}

#[test]
fn ranks_end_with_their_leader() {
    let server = Server::start(&["engine.tp_size=2"]);
    let rank = child_of(server.pid()).expect("a rank");
    kill(server.pid());
    let start = Instant::now();
    while std::path::Path::new(&format!("/proc/{rank}/cmdline")).exists() && !is_zombie(rank) {
        assert!(start.elapsed() < Duration::from_secs(10), "rank {rank} lives on");
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn a_fault_on_one_rank_is_found_with_the_rank() {
    let mut command = hotseam();
    command.args(["bisect", "run"]).arg(root().join("configs/ranks.yaml")).args(["--format", "json"]);
    let (code, out, err) = run(&mut command);
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).unwrap();
    let culprits = report["culprits"].as_array().unwrap();
    assert_eq!(culprits.len(), 1, "{culprits:?}");
    let culprit = &culprits[0];
    assert_eq!(
        (&culprit["seam"], &culprit["phase"], &culprit["ranks"]),
        (&json!("attention"), &json!("decode"), &json!([1]))
    );
    assert!(culprit["change"].as_str().unwrap().ends_with("on rank 1"), "{culprit}");
    assert!(culprit["selector"].as_str().unwrap().ends_with("/ranks=1"), "{culprit}");
    let cleared = report["exonerated"].as_array().unwrap();
    assert!(cleared.iter().any(|c| c["change"].as_str().unwrap().contains("cpu-sm120-mma")), "{cleared:?}");
    println!("{} runs: {} {}", report["runs"], culprit["selector"], culprit["change"]);
}

fn is_zombie(pid: u32) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    status.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('Z'))
}

#[test]
fn who_looks_at_calls_is_told_to_use_one_rank() {
    struct Nobody;
    impl hotseam_engine::observe::Observer for Nobody {}
    let engine = engine(2, config());
    let refused = engine.observe(Request::greedy(vec![0, 3], 1), Box::new(Nobody)).expect_err("refused");
    assert!(refused.to_string().contains("set engine.tp_size to 1"), "{refused}");
    let answered = engine.submit(Request::greedy(vec![0, 3], 1)).unwrap();
    assert!(matches!(answered.recv(), Some(Event::Token { .. })));
}

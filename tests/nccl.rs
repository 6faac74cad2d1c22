//! Tensor-parallel ranks that share a CUDA device, with sums in shared memory and over NCCL: tokens of one process, swaps, a fault of one
//! rank, and no wait for one that is gone. And hand-offs over NCCL between workers that share a device.
//!
//! On the emulated device a stand-in in C takes NCCL's place. With `HOTSEAM_CUDA=device` it is the library that the linker finds, of
//! version 2.30 or newer, which lets ranks share a device.

use hotseam_tests::answers::Case;
use hotseam_tests::cuda::{device, directory, is_real};
use hotseam_tests::http::{Server, hotseam, run};
use hotseam_tests::pairs::{meet, worker};
use hotseam_tests::ranks::{child_of, kill};
use hotseam_tests::{root, twin, twins};
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// Where the libraries are found.
struct Place {
    path: String,
    _dir: tempfile::TempDir,
}

impl Place {
    /// `None`, with a printed reason, without a device.
    fn new() -> Option<Self> {
        if !device() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        if is_real() {
            let path = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
            return Some(Self { path, _dir: dir });
        }
        let mut command = Command::new("cc");
        command.args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
        command.arg(dir.path().join("libnccl.so.2")).arg(root().join("tests/fixtures/nccl.c"));
        assert!(command.status().expect("cc runs").success(), "the stand-in compiles");
        let emulator = directory().expect("it is there");
        Some(Self { path: format!("{}:{}", dir.path().display(), emulator.display()), _dir: dir })
    }

    fn variables(&self) -> [(&str, &str); 2] {
        [("LD_LIBRARY_PATH", self.path.as_str()), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")]
    }

    fn serve(&self, world: u32, collective: &str) -> Server {
        let set = [
            &format!("engine.tp_size={world}"),
            &format!("engine.collective={collective}"),
            "engine.max_context=1024",
            "engine.max_seqs=4",
            "engine.chunk=64",
            "plugins.probe.enabled=false",
        ];
        Server::serve_in(&config(), &set, &self.variables())
    }
}

fn config() -> PathBuf {
    root().join("configs/cuda.yaml")
}

/// Tokens of prompts of different lengths that run in the same steps.
fn answers(server: &Server, length: usize) -> Vec<Value> {
    let ask = |i: usize| {
        let prompt: Vec<usize> = (0..20 + i * 30).map(|at| (at * 37 + i * 11) % 500 + 3).collect();
        let ask = json!({"model": "nano-v4", "prompt": prompt, "max_tokens": length, "temperature": 0});
        let answer = server.post("/v1/completions", &ask);
        assert_eq!(answer.status, 200, "{}\n{}", answer.body, server.said());
        answer.json()["choices"][0]["text"].clone()
    };
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..if is_real() { 4 } else { 2 }).map(|i| scope.spawn(move || ask(i))).collect();
        asked.into_iter().map(|answer| answer.join().expect("an answer")).collect()
    })
}

#[test]
fn ranks_on_a_device_answer_as_one_and_are_swapped() {
    let Some(place) = Place::new() else { return };
    let length = if is_real() { 96 } else { 3 };
    let want = answers(&place.serve(1, "auto"), length);
    let worlds: &[u32] = if is_real() { &[2, 4] } else { &[2] };
    for (world, collective) in worlds.iter().flat_map(|world| [(*world, "nccl"), (*world, "shared")]) {
        let server = place.serve(world, collective);
        let start = Instant::now();
        assert_eq!(answers(&server, length), want, "{world} ranks, {collective}");
        println!(
            "{world} ranks, {collective}: answers of one process, {:.2} s",
            start.elapsed().as_secs_f64()
        );
        // Four ranks that share a device wait for each other's turns: half a minute for the answers alone.
        let swaps = match (is_real(), world) {
            (true, 2) => 40,
            (true, _) => 8,
            (false, _) => 1,
        };
        let dir = twins();
        let seams = ["moe", "attention", "mhc", "indexer"];
        let files = seams.map(|seam| twin(&dir, seam, "cuda-stock").display().to_string());
        std::thread::scope(|scope| {
            let swapper = scope.spawn(|| {
                for swap in 0..swaps {
                    let (seam, options) = (seams[swap % 4], ["", "{kv: bf16}", "", "{keys: f32}"][swap % 4]);
                    let select = format!("{seam}@decode/ranks=1");
                    let variant = match (swap / 4) % 2 {
                        0 => format!("{}{options}", files[swap % 4]),
                        _ => format!("{seam}/cuda-stock{options}"),
                    };
                    let probation = ["--probation", if is_real() { "8" } else { "1" }, "--wait"];
                    let args = [&["swap", &select, &variant, "--format", "json"][..], &probation].concat();
                    let (code, out, err) = server.command(&args);
                    assert_eq!(code, 0, "swap {swap}, {select}: {out}{err}");
                }
            });
            while !swapper.is_finished() {
                assert_eq!(answers(&server, length), want, "{world} ranks, {collective}, under swaps");
            }
        });
    }
}

#[test]
fn a_rank_that_is_killed_in_a_sum_ends_the_group() {
    let Some(place) = Place::new() else { return };
    // In decode, and in chunks of a prompt whose logits nobody wants, after which nothing waits for the device.
    killed(&place, 4, 900);
    killed(&place, 1000, 8);
}

fn killed(place: &Place, prompt: usize, answer: usize) {
    let server = place.serve(2, "nccl");
    let prompt: Vec<usize> = (0..prompt).map(|at| at * 37 % 500 + 3).collect();
    let ask = json!({"model": "nano-v4", "prompt": prompt, "max_tokens": answer, "temperature": 0});
    let rank = child_of(server.pid()).expect("a rank");
    let start = Instant::now();
    std::thread::scope(|scope| {
        let asked: Vec<_> = (0..2).map(|_| scope.spawn(|| server.post("/v1/completions", &ask))).collect();
        std::thread::sleep(Duration::from_millis(if is_real() && answer < 100 { 40 } else { 300 }));
        kill(rank);
        for answer in asked {
            let answer = answer.join().expect("an answer");
            assert_ne!(answer.status, 200, "{}", answer.body);
            assert!(answer.body.contains("E-RANK-001"), "{}", answer.body);
        }
    });
    println!(
        "{} tokens of prompt: told {:.2} s after the question",
        ask["prompt"].as_array().map_or(0, Vec::len),
        start.elapsed().as_secs_f64()
    );
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    let said = server.said();
    assert!(said.contains("the tensor-parallel group has ended: rank 1 was killed by signal 9"), "{said}");
    assert_eq!(server.ask("GET", "/health", None).status, 503);
    assert_eq!(server.stop(), Some(0), "it ends when it is told to");
}

/// Without the variable, and without the library, it is said what is missing.
#[test]
fn what_nccl_needs_is_told() {
    let Some(place) = Place::new() else { return };
    if is_real() {
        return;
    }
    let refused = |libraries: &str, shared: &str| {
        let state = tempfile::tempdir().expect("a directory");
        let mut command = hotseam();
        command.args(["serve", "-c"]).arg(config()).args(["--set", "engine.tp_size=2"]);
        command.args(["--set", "engine.collective=nccl", "--set", "server.listen=127.0.0.1:0"]);
        command.env("XDG_STATE_HOME", state.path()).env("LD_LIBRARY_PATH", libraries);
        let (code, out, err) = run(command.env("NCCL_MULTI_RANK_GPU_ENABLE", shared));
        assert_ne!(code, 0, "{out}{err}");
        err
    };
    let err = refused(&place.path, "0");
    assert!(err.contains("NCCL needs a device for each of 2 ranks, there are 1"), "{err}");
    let emulator = directory().expect("it is there");
    let err = refused(&emulator.display().to_string(), "1");
    assert!(
        err.contains("NCCL is not there, searched libnccl.so.2") && err.contains("Install NCCL 2.22"),
        "{err}"
    );
}

/// One rank's experts scale nothing right in decode: found, with the rank.
#[test]
fn a_fault_on_one_rank_of_a_device_is_found_with_the_rank() {
    if !is_real() {
        println!("skipped: the emulated device takes minutes for it; tests/ranks.rs does it on the CPU");
        return;
    }
    let Some(place) = Place::new() else { return };
    let mut command = hotseam();
    let bad = "assignments.bad={extends: live, rules: [\
        {select: 'moe@decode/ranks=1', use: 'faulty/cuda-moe{fault: decode-only}'}, \
        {select: attention@prefill, use: 'attention/cuda-stock{kv: bf16}'}]}";
    let state = tempfile::tempdir().expect("a directory");
    command
        .args(["bisect", "run"])
        .arg(config())
        .args(["--format", "json"])
        .env("XDG_STATE_HOME", state.path());
    for set in [
        "engine.tp_size=2",
        "engine.collective=nccl",
        "engine.max_seqs=2",
        bad,
        "bisect={good: live, bad: bad, budget_runs: 20}",
        "bisect.oracle={kind: kl, tokens: 1024, threshold: 1.0e-3}",
    ] {
        command.args(["--set", set]);
    }
    let (code, out, err) = run(command.envs(place.variables()));
    assert_eq!(code, 0, "{out}{err}");
    let report: Value = serde_json::from_str(&out).expect("JSON");
    let culprits = report["culprits"].as_array().expect("culprits");
    assert_eq!(culprits.len(), 1, "{culprits:?}");
    assert_eq!((&culprits[0]["seam"], &culprits[0]["ranks"]), (&json!("moe"), &json!([1])), "{culprits:?}");
    println!("{} runs: {} {}", report["runs"], culprits[0]["selector"], culprits[0]["change"]);
}

/// Two workers on the CPU, whose KV goes through the device: answers are those over TCP. NCCL must be in the environment of the test.
#[test]
fn a_pair_of_workers_hands_off_over_nccl() {
    if !is_real() {
        println!("skipped: needs NCCL and a device; run with HOTSEAM_CUDA=device");
        return;
    }
    let answers = |transport: &str| -> Vec<Value> {
        let [prefill, decode] = ["prefill", "decode"].map(|role| worker(role, transport, &[]));
        let ask = |length: usize| {
            let prompt: Vec<usize> = (0..length).map(|at| (at * 37 + length) % 500 + 3).collect();
            let body = json!({"model": "nano-v4", "prompt": prompt, "max_tokens": 24, "temperature": 0});
            let case = Case { path: "/v1/completions", body };
            let [_, answer] = meet(&prefill, &decode, &case);
            let answer = answer.expect("an answer");
            assert_eq!(answer.status, 200, "{transport}, {length}: {}", answer.body);
            let answer: Value = serde_json::from_str(&answer.body).expect("JSON");
            answer["choices"][0]["text"].clone()
        };
        let start = Instant::now();
        let answers = [1, 5, 127, 128, 129, 260, 513, 1024, 2052].map(ask).into();
        println!("{transport}: {:.2} s", start.elapsed().as_secs_f64());
        answers
    };
    assert_eq!(answers("kv_transport/nccl"), answers("kv_transport/tcp"));
}

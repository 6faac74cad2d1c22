//! Sequences in a batch do not see each other: eight at once give what each gives alone, bit for bit.

use hotseam_engine::{EngineConfig, Event, Request, Sampling, Topology};
use hotseam_tests::{Checkpoint, all, config, engine, goldens, logits, tapped};

/// Eight requests whose lengths, positions and chunks all differ.
fn requests(tokens: &[u32]) -> Vec<Request> {
    let lengths = [1, 5, 127, 128, 260, 513, 700, 1030];
    let request = |(i, length): (usize, &usize)| Request {
        max_tokens: 24,
        chunks: if i % 3 == 0 { vec![3, 1] } else { Vec::new() },
        sampling: match i % 2 {
            0 => Sampling::GREEDY,
            _ => Sampling { temperature: 0.8, top_p: 0.9, seed: i as u64 },
        },
        ..tapped(&tokens[i * 7..i * 7 + length])
    };
    lengths.iter().enumerate().map(request).collect()
}

fn alone_and_together(topology: Topology) {
    let sizes = EngineConfig { topology, ..config() };
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), sizes);
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let alone: Vec<_> = requests(&tokens).into_iter().map(|r| logits(engine.submit(r).unwrap())).collect();
    let handles: Vec<_> = requests(&tokens).into_iter().map(|r| engine.submit(r).unwrap()).collect();
    let together: Vec<_> = handles.into_iter().map(logits).collect();
    for (i, (a, b)) in alone.iter().zip(&together).enumerate() {
        assert_eq!(a.len(), b.len(), "request {i}");
        for ((position, a), (_, b)) in a.iter().zip(b) {
            assert!(
                a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()),
                "request {i}, position {position}"
            );
        }
    }
    assert_eq!(engine.stats().free_pages, engine.stats().total_pages, "all pages came back");
}

#[test]
fn eight_at_once_equal_each_alone() {
    alone_and_together(Topology::Single);
}

#[test]
fn eight_at_once_equal_each_alone_across_a_hand_off() {
    alone_and_together(Topology::Paired);
}

#[test]
fn paired_equals_single_bit_for_bit() {
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    let of = |topology| {
        let engine = engine(Checkpoint::Nano, all("cpu-stock"), EngineConfig { topology, ..config() });
        let run = |r| logits(engine.submit(r).unwrap());
        requests(&tokens).into_iter().map(run).collect::<Vec<_>>()
    };
    assert_eq!(of(Topology::Single), of(Topology::Paired));
}

#[test]
fn a_reused_prefill_gives_the_same_answer() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let tokens = goldens::ladder(Checkpoint::Nano).tokens;
    for length in [1, 4, 127, 129, 256, 700] {
        let plain = Request::greedy(tokens[..length].to_vec(), 16);
        let reuse = Request { reuse_prefill: true, ..plain.clone() };
        let want = engine.submit(plain).unwrap().tokens().unwrap();
        for round in 0..2 {
            let before = engine.stats().prompt_tokens;
            assert_eq!(
                engine.submit(reuse.clone()).unwrap().tokens().unwrap(),
                want,
                "length {length}, round {round}"
            );
            let ran = engine.stats().prompt_tokens - before;
            assert_eq!(
                ran,
                if round == 0 { length as u64 } else { 0 },
                "prompt tokens that ran, round {round}"
            );
        }
    }
}

/// `logits` as natural-log probabilities.
fn probabilities(logits: &[f32]) -> Vec<f64> {
    let top = logits.iter().copied().fold(f32::MIN, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - top).exp()).sum();
    logits.iter().map(|logit| f64::from(logit - top) - sum.ln()).collect()
}

#[test]
fn probabilities_of_the_prompt_are_those_of_its_rows() {
    let engine = engine(Checkpoint::Nano, all("cpu-stock"), config());
    let prompt = &goldens::ladder(Checkpoint::Nano).tokens[..700];
    let rows = logits(engine.submit(tapped(prompt)).unwrap());
    // Within the first chunk, on its last row, in the next one; the first token has none, and the last row tells of no token of
    // the prompt.
    for start in [0, 1, 500, 512, 513, 699, 700] {
        let request =
            Request { prompt_logprobs: Some(start), logprobs: 2, ..Request::greedy(prompt.to_vec(), 3) };
        let handle = engine.submit(request).unwrap();
        let mut told = Vec::new();
        let mut tokens = 0;
        while let Some(event) = handle.recv() {
            match event {
                Event::Prompt { id, logprob, top } => told.push((id, logprob, top)),
                Event::Token { .. } => tokens += 1,
                Event::Done { .. } => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!((told.len(), tokens), (700 - start.clamp(1, 700), 3), "from {start}");
        for (at, (id, logprob, top)) in told.iter().enumerate() {
            let position = start.max(1) + at;
            let expected = probabilities(&rows[position - 1].1);
            assert_eq!(*id, prompt[position]);
            assert!((f64::from(*logprob) - expected[*id as usize]).abs() < 1e-4, "position {position}");
            assert!((f64::from(top[0].1) - expected.iter().copied().fold(f64::MIN, f64::max)).abs() < 1e-4);
        }
    }
}

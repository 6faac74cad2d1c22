//! Prompts of the needle sweep and passages of the KL oracle, on the embedded checkpoint's tokenizer.

use std::path::{Path, PathBuf};

use hotseam_encoding::{Control, Tokenizer};
use hotseam_evidence::EvidenceError;
use hotseam_evidence::divergence::Passage;
use hotseam_evidence::haystack::Haystack;
use hotseam_evidence::needle::{NeedlePlan, Probe, Task};

fn assets() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets")
}

fn fixture() -> (Tokenizer, Haystack) {
    let tokenizer = Tokenizer::load(&assets().join("nano-v4")).unwrap();
    let haystack = Haystack::read(&tokenizer, &[assets().join("haystack/time-machine.txt")]).unwrap();
    (tokenizer, haystack)
}

fn plan(lengths: &[usize], probes: usize, seed: u64) -> NeedlePlan {
    NeedlePlan { lengths: lengths.to_vec(), probes, seed }
}

#[test]
fn prompts_have_exactly_the_length_and_hold_the_fact_once_at_its_depth() {
    let (tokenizer, haystack) = fixture();
    let lengths = [64, 65, 127, 512, 1000, 2048];
    let probes = plan(&lengths, 7, 3).probes(&tokenizer, &haystack).unwrap();
    assert_eq!(probes.len(), lengths.len() * 7);
    for probe in &probes {
        assert_eq!(probe.prompt.len(), probe.length);
        let control = |token| tokenizer.control(token);
        assert_eq!(probe.prompt[..2], [control(Control::Bos), control(Control::User)]);
        assert_eq!(
            probe.prompt[probe.length - 2..],
            [control(Control::Assistant), control(Control::EndThink)]
        );
        let text = tokenizer.decode(&probe.prompt).unwrap();
        let fact = format!(" The secret word of {} is {}.", probe.name, probe.value);
        let question = format!(" What is the secret word of {}?", probe.name);
        assert_eq!(text.matches(&fact).count(), 1, "{text}");
        assert!(text.ends_with(&question), "{text}");
        if probe.length >= 512 {
            let at = text.find(&fact).unwrap() as f64 / (text.len() - fact.len() - question.len()) as f64;
            assert!((at - probe.depth).abs() < 0.12, "asked for {}, is at {at}", probe.depth);
        }
        let answer = format!("The secret word of {} is {}.", probe.name, probe.value);
        let needed = tokenizer.encode(&answer).unwrap().len();
        assert!(probe.max_tokens > needed, "{} tokens for {needed}", probe.max_tokens);
    }
}

#[test]
fn a_seed_gives_the_same_prompts_and_another_gives_others() {
    let (tokenizer, haystack) = fixture();
    let make = |seed| -> Vec<Probe> { plan(&[256], 5, seed).probes(&tokenizer, &haystack).unwrap() };
    assert_eq!(make(1), make(1));
    let other = make(2);
    assert!(make(1).iter().zip(&other).all(|(a, b)| a.prompt != b.prompt));
    // The probes of a longer plan do not change those of a shorter one.
    let both = plan(&[128, 256], 5, 1).probes(&tokenizer, &haystack).unwrap();
    assert_eq!(both[5..], make(1));
}

/// The prompts of a task as text.
fn texts(task: Task, lengths: &[usize], probes: usize) -> Vec<(Probe, String)> {
    let (tokenizer, haystack) = fixture();
    let made = plan(lengths, probes, 3).probes_of(task, &tokenizer, &haystack).unwrap();
    made.into_iter()
        .map(|probe| {
            assert_eq!(probe.prompt.len(), probe.length, "{task:?}");
            let text = tokenizer.decode(&probe.prompt).unwrap();
            (probe, text)
        })
        .collect()
}

#[test]
fn one_of_several_facts_is_asked_for() {
    for (probe, text) in texts(Task::Multi { needles: 4 }, &[300, 1000], 3) {
        assert_eq!(text.matches(" The secret word of ").count(), 4, "{text}");
        assert_eq!(
            text.matches(&format!(" The secret word of {} is {}.", probe.name, probe.value)).count(),
            1
        );
        assert_eq!(text.matches(probe.value.as_str()).count(), 1, "no other fact has the word: {text}");
        assert!(text.ends_with(&format!(" What is the secret word of {}?", probe.name)), "{text}");
    }
}

#[test]
fn the_last_turn_asks_for_a_fact_of_the_first() {
    let (tokenizer, _) = fixture();
    for (probe, text) in texts(Task::MultiTurn { turns: 3 }, &[400, 1001], 3) {
        let count = |control| probe.prompt.iter().filter(|t| **t == tokenizer.control(control)).count();
        let controls = [Control::Bos, Control::User, Control::Assistant, Control::EndThink, Control::Eos];
        assert_eq!(controls.map(count), [1, 3, 3, 3, 2]);
        let users = probe.prompt.iter().enumerate().filter(|(_, t)| **t == tokenizer.control(Control::User));
        let starts: Vec<usize> = users.map(|(at, _)| at).collect();
        let turn = |from: usize, to: usize| tokenizer.decode(&probe.prompt[from..to]).unwrap();
        let first = turn(starts[0], starts[1]);
        let fact = format!(" The secret word of {} is {}.", probe.name, probe.value);
        assert_eq!((first.matches(&fact).count(), text.matches(&fact).count()), (1, 1), "{text}");
        assert!(text.ends_with(&format!(" What is the secret word of {}?", probe.name)), "{text}");
        // The first two turns ask for a fact of their own and hold its answer.
        for (from, to) in [(starts[0], starts[1]), (starts[1], starts[2])] {
            let turn = turn(from, to);
            let asked = turn.rsplit_once(" What is the secret word of ").unwrap().1;
            let name = asked.split_once('?').unwrap().0;
            assert_ne!(name, probe.name);
            let told = turn.split_once(&format!(" The secret word of {name} is ")).unwrap().1;
            let word = told.split_once('.').unwrap().0;
            assert!(turn.ends_with(&format!("The secret word of {name} is {word}.")), "{turn}");
        }
    }
}

#[test]
fn every_request_has_a_passphrase_of_its_own() {
    let made = texts(Task::Passphrase, &[128, 256], 40);
    for (probe, text) in &made {
        let fact = format!(" The passphrase of {} is {}.", probe.name, probe.value);
        assert_eq!(text.matches(&fact).count(), 1, "{text}");
        assert!(text.ends_with(&format!(" What is the passphrase of {}?", probe.name)), "{text}");
        assert_eq!(probe.value.split(' ').count(), 2);
        assert_eq!(made.iter().filter(|(other, _)| other.value == probe.value).count(), 1);
    }
}

#[test]
fn tasks_of_no_or_too_many_facts_are_refused() {
    let (tokenizer, haystack) = fixture();
    for task in [Task::Multi { needles: 1 }, Task::MultiTurn { turns: 33 }] {
        let refused = plan(&[4096], 1, 1).probes_of(task, &tokenizer, &haystack);
        assert!(matches!(refused, Err(EvidenceError::TaskSize { most: 32, .. })), "{task:?}");
    }
    let short = plan(&[200], 1, 1).probes_of(Task::MultiTurn { turns: 6 }, &tokenizer, &haystack);
    assert!(matches!(short, Err(EvidenceError::TooShort { length: 200, .. })));
}

#[test]
fn a_length_that_cannot_hold_the_question_is_refused() {
    let (tokenizer, haystack) = fixture();
    match plan(&[20], 1, 1).probes(&tokenizer, &haystack) {
        Err(EvidenceError::TooShort { length: 20, least }) => {
            assert!((50..100).contains(&least), "{least}");
            // The least length depends on the name and word of the probe; a little more always does.
            plan(&[least + 16], 1, 1).probes(&tokenizer, &haystack).unwrap();
        }
        other => panic!("expected TooShort, found {other:?}"),
    }
}

#[test]
fn haystacks_are_cut_to_the_token_and_wrap_around() {
    let (_, haystack) = fixture();
    assert!(haystack.len() > 500 && !haystack.is_empty());
    for tokens in [0, 1, 37, 50_000, 300_000] {
        let taken: usize =
            haystack.take(haystack.len() - 1, tokens).iter().map(|sentence| sentence.len()).sum();
        assert_eq!(taken, tokens);
    }
}

#[test]
fn missing_and_empty_texts_are_named() {
    let (tokenizer, _) = fixture();
    let missing = Haystack::read(&tokenizer, &[PathBuf::from("/nonexistent/book.txt")]).unwrap_err();
    assert!(missing.to_string().contains("/nonexistent/book.txt"));
    assert!(matches!(Haystack::read(&tokenizer, &[]), Err(EvidenceError::NoText)));
    assert!(matches!(Haystack::new(&tokenizer, ["Ch. 1."]), Err(EvidenceError::NoText)));
}

#[test]
fn passages_split_into_prefill_and_decode() {
    let (tokenizer, haystack) = fixture();
    let passage = Passage::new(&tokenizer, &haystack, 300, 64).unwrap();
    assert_eq!((passage.len(), passage.is_empty(), passage.prefill()), (300, false, 236));
    for (tokens, decode) in [(66, 64), (10, 64), (300, 0)] {
        assert!(matches!(
            Passage::new(&tokenizer, &haystack, tokens, decode),
            Err(EvidenceError::TooFewTokens { .. })
        ));
    }
}

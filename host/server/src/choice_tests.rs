//! A choice against the tokenizer of the embedded checkpoint.

use std::path::Path;

use hotseam_encoding::{Control, Tokenizer};

use hotseam_engine::StopToken;

use super::{Choice, Delta, Finish, Manner, Matched, Record};

fn tokenizer() -> Tokenizer {
    Tokenizer::load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../assets/nano-v4")).expect("loads")
}

/// Feeds `ids` and gives everything together; every step must keep shown text and tokens consistent.
fn run(choice: &mut Choice, ids: &[u32]) -> Delta {
    let mut all = Delta::default();
    for (index, id) in ids.iter().enumerate() {
        let delta = choice.token(*id, -(index as f32), vec![]).expect("a known id");
        let stopped = delta.finish.is_some();
        all.append(delta);
        assert!(all.records.iter().all(|record| record.offset < all.text.chars().count().max(1)));
        if stopped {
            return all;
        }
    }
    all.append(choice.end(Finish::Length, ids.len(), None));
    all
}

fn choice(tokenizer: &Tokenizer, stops: &[&str], thinking: bool) -> Choice {
    let stops = stops.iter().map(|stop| (*stop).to_owned()).collect();
    let stop_tokens = vec![tokenizer.control(Control::Eos)];
    Choice::new(tokenizer, Manner { stops, stop_tokens, thinking, every_token: false })
}

#[test]
fn text_and_records_agree() {
    let tokenizer = tokenizer();
    let text = "naïve 🦀 crabs of Lisbon";
    let ids = tokenizer.encode(text).expect("encodes");
    let all = run(&mut choice(&tokenizer, &["nowhere"], false), &ids);
    assert_eq!((all.text.as_str(), all.finish), (text, Some(Finish::Length)));
    assert_eq!(all.records.iter().map(|record| record.id).collect::<Vec<_>>(), ids);
    // Offsets count characters and give back each token's text.
    for (index, Record { offset, logprob, .. }) in all.records.iter().enumerate() {
        assert_eq!(*logprob, -(index as f32));
        let before = tokenizer.decode(&ids[..index]).expect("decodes");
        assert_eq!(*offset, before.trim_end_matches('\u{fffd}').chars().count(), "token {index}");
    }
}

#[test]
fn a_stop_string_cuts_text_and_records() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("one two three four").expect("encodes");
    for stop in [" three", "o thr", "ee f"] {
        let mut choice = choice(&tokenizer, &[stop], false);
        let all = run(&mut choice, &ids);
        let expected = "one two three four".split(stop).next().expect("a part");
        assert_eq!((all.text.as_str(), all.finish), (expected, Some(Finish::Stop)), "stop {stop:?}");
        assert!(choice.finished());
        assert!(choice.tokens() <= ids.len());
        let kept = all.records.len();
        assert!(tokenizer.decode(&ids[..kept]).expect("decodes").len() >= expected.len());
        assert!(tokenizer.decode(&ids[..kept - 1]).expect("decodes").len() < expected.len());
    }
}

#[test]
fn held_text_is_given_at_the_end() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("abc EN").expect("encodes");
    let all = run(&mut choice(&tokenizer, &["END"], false), &ids);
    assert_eq!(all.text, "abc EN");
    assert_eq!(all.records.len(), ids.len());
}

#[test]
fn stop_tokens_are_not_shown() {
    let tokenizer = tokenizer();
    let mut ids = tokenizer.encode("done").expect("encodes");
    ids.push(tokenizer.control(Control::Eos));
    let mut choice = choice(&tokenizer, &[], false);
    let all = run(&mut choice, &ids);
    assert_eq!(all.text, "done");
    assert_eq!(all.records.len(), ids.len() - 1);
    assert_eq!(choice.tokens(), ids.len());
}

#[test]
fn reasoning_is_apart() {
    let tokenizer = tokenizer();
    let mut ids = tokenizer.encode("let me see").expect("encodes");
    ids.push(tokenizer.control(Control::EndThink));
    ids.extend(tokenizer.encode("tiger").expect("encodes"));
    let all = run(&mut choice(&tokenizer, &["see"], true), &ids);
    assert_eq!((all.reasoning.as_str(), all.text.as_str()), ("let me see", "tiger"));
    // Without the end of reasoning there is no answer.
    let all = run(&mut choice(&tokenizer, &[], true), &ids[..2]);
    assert_eq!(all.text, "");
    assert!(!all.reasoning.is_empty());
}

#[test]
fn an_unfinished_character_is_marked() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("🦀").expect("encodes");
    let all = run(&mut choice(&tokenizer, &[], false), &ids[..1]);
    assert_eq!(all.text, "\u{fffd}");
    let unknown = choice(&tokenizer, &[], false).token(4096, 0.0, vec![]);
    assert!(unknown.is_err());
}

#[test]
fn every_token_is_reported_at_once_where_that_is_asked_for() {
    let tokenizer = tokenizer();
    let ids = tokenizer.encode("one two three").expect("encodes");
    let manner = |stops: &[&str]| Manner {
        stops: stops.iter().map(|stop| (*stop).to_owned()).collect(),
        stop_tokens: vec![tokenizer.control(Control::Eos)],
        thinking: false,
        every_token: true,
    };
    // Text that may be a stop string is held back, its tokens are not; those of a found one are reported too.
    let mut choice = Choice::new(&tokenizer, manner(&[" two"]));
    let mut seen = Vec::new();
    let finished = ids.iter().map(|id| choice.token(*id, 0.0, vec![]).expect("a known id")).find(|delta| {
        assert_eq!(delta.records.len(), 1);
        seen.push(delta.records[0].id);
        delta.finish.is_some()
    });
    let finished = finished.expect("stops");
    assert_eq!(finished.matched, Some(Matched::Text(" two".to_owned())));
    assert_eq!(seen, ids[..seen.len()]);
    // So is the token that ends the answer.
    let mut choice = Choice::new(&tokenizer, manner(&[]));
    let eos = StopToken { id: tokenizer.control(Control::Eos), logprob: -1.5, top: vec![(1, -1.5)] };
    let end = choice.end(Finish::Stop, 1, Some(eos.clone()));
    assert_eq!(end.matched, Some(Matched::Token(eos.id)));
    assert_eq!(end.records, [Record { id: eos.id, logprob: -1.5, top: eos.top, offset: 0 }]);
}

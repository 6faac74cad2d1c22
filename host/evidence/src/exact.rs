//! Greedy answers held against expected ones, token by token.

use hotseam_encoding::Tokenizer;
use hotseam_encoding::chat::{self, ChatForm, Message, Role};
use serde::{Deserialize, Serialize};

use crate::model::{Model, Question, Reply};
use crate::{EvidenceError, RequestFailure};

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub enum Expected {
    /// This text.
    Text(String),
    /// The same tokens as this answer.
    Reply(Reply),
}

/// One prompt and its answer.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// What was asked.
    pub prompt: String,
    /// What was said.
    pub answer: String,
    /// Number of the first token, or of the first character where a text is expected, that is not as expected.
    pub differs_at: Option<usize>,
    /// Set if the request failed.
    pub failure: Option<RequestFailure>,
}

/// Asks one prompt, as the only turn of a chat.
///
/// # Errors
/// [`EvidenceError`] if the question could not be put.
pub fn ask(
    model: &dyn Model,
    tokenizer: &Tokenizer,
    prompt: &str,
    max_tokens: usize,
    assignment: &str,
) -> Result<Result<Reply, RequestFailure>, EvidenceError> {
    let message = Message { role: Role::User, content: prompt.to_owned() };
    let tokens = chat::encode(tokenizer, &[message], ChatForm::Chat)?;
    model.ask(&Question { prompt: &tokens, max_tokens, assignment, reuse_prefill: false })
}

/// Holds an answer against what is expected.
pub fn judge(prompt: &str, expected: &Expected, answer: Result<Reply, RequestFailure>) -> Case {
    let prompt = prompt.to_owned();
    match answer {
        Err(failure) => Case { prompt, answer: String::new(), differs_at: None, failure: Some(failure) },
        Ok(reply) => {
            let differs_at = match expected {
                Expected::Text(text) => first_difference(text.chars(), reply.text.chars()),
                Expected::Reply(want) => {
                    let names = |reply: &Reply| -> Vec<String> {
                        reply.tokens.iter().map(|token| token.name.clone()).collect()
                    };
                    first_difference(names(want).into_iter(), names(&reply).into_iter())
                        .or_else(|| (want.text != reply.text).then_some(want.tokens.len()))
                }
            };
            Case { prompt, answer: reply.text, differs_at, failure: None }
        }
    }
}

/// Number of the first item that differs, the end included.
fn first_difference<T: PartialEq>(
    mut want: impl Iterator<Item = T>,
    mut got: impl Iterator<Item = T>,
) -> Option<usize> {
    let mut index = 0;
    loop {
        match (want.next(), got.next()) {
            (None, None) => return None,
            (a, b) if a != b => return Some(index),
            _ => index += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Said;

    fn reply(text: &str, tokens: &[&str]) -> Reply {
        let said = |name: &&str| Said { name: (*name).to_owned(), logprob: -1.0 };
        Reply { text: text.to_owned(), tokens: tokens.iter().map(said).collect() }
    }

    #[test]
    fn the_first_difference_is_named() {
        let want = Expected::Reply(reply("ab", &["1", "2"]));
        let at = |got| judge("p", &want, Ok(got)).differs_at;
        assert_eq!(at(reply("ab", &["1", "2"])), None);
        assert_eq!(at(reply("ax", &["1", "3"])), Some(1));
        assert_eq!(at(reply("a", &["1"])), Some(1));
        assert_eq!(at(reply("abc", &["1", "2", "4"])), Some(2));
        let text = |got: &str| judge("p", &Expected::Text("né".into()), Ok(reply(got, &[]))).differs_at;
        assert_eq!((text("né"), text("ne"), text(""), text("née")), (None, Some(1), Some(0), Some(2)));
        let failure = RequestFailure { code: "E".into(), message: "m".into() };
        let case = judge("p", &want, Err(failure.clone()));
        assert_eq!((case.differs_at, case.failure), (None, Some(failure)));
    }
}

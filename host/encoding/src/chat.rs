//! The chat form of DeepSeek-V4.
//!
//! ```text
//! BOS system <｜User｜>question<｜Assistant｜></think>answer EOS <｜User｜>question<｜Assistant｜></think>
//! ```
//! A prompt for a reasoned answer ends with `<think>` instead. Reasoning of earlier turns is not repeated.

use crate::error::EncodingError;
use crate::tokenizer::{Control, Tokenizer};

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The operator; the text stands in the prompt without any token around it.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who wrote it.
    pub role: Role,
    /// Its text; names of control tokens in it stay text.
    pub content: String,
}

/// How the answer starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ChatForm {
    /// With the answer.
    #[default]
    Chat,
    /// With reasoning, up to `</think>`.
    Thinking,
}

/// A part of a rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Piece<'a> {
    /// One control token.
    Control(Control),
    /// Text from a message.
    Text(&'a str),
}

/// Lays out `messages` as the prompt for the next assistant turn.
///
/// # Errors
/// [`EncodingError::Conversation`] if there is no message or the last one is not the user's.
pub fn render(messages: &[Message], form: ChatForm) -> Result<Vec<Piece<'_>>, EncodingError> {
    match messages.last() {
        None => {
            return Err(EncodingError::Conversation("expected at least one message, found none".to_owned()));
        }
        Some(last) if last.role != Role::User => {
            let found = if last.role == Role::System { "system" } else { "assistant" };
            let text = format!("expected the last message to have role `user`, found `{found}`");
            return Err(EncodingError::Conversation(text));
        }
        Some(_) => {}
    }
    let mut pieces = vec![Piece::Control(Control::Bos)];
    for message in messages {
        let text = Piece::Text(&message.content);
        match message.role {
            Role::System => pieces.push(text),
            Role::User => pieces.extend([Piece::Control(Control::User), text]),
            Role::Assistant => pieces.extend([
                Piece::Control(Control::Assistant),
                Piece::Control(Control::EndThink),
                text,
                Piece::Control(Control::Eos),
            ]),
        }
    }
    pieces.push(Piece::Control(Control::Assistant));
    pieces.push(Piece::Control(match form {
        ChatForm::Chat => Control::EndThink,
        ChatForm::Thinking => Control::Think,
    }));
    Ok(pieces)
}

/// Renders and encodes `messages`. Only the rendered control tokens become control tokens.
///
/// # Errors
/// Those of [`render`] and [`Tokenizer::encode`].
pub fn encode(
    tokenizer: &Tokenizer,
    messages: &[Message],
    form: ChatForm,
) -> Result<Vec<u32>, EncodingError> {
    let mut ids = Vec::new();
    for piece in render(messages, form)? {
        match piece {
            Piece::Control(token) => ids.push(tokenizer.control(token)),
            Piece::Text(text) => ids.extend(tokenizer.encode(text)?),
        }
    }
    Ok(ids)
}

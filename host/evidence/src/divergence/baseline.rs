//! The distributions that others are compared with, in memory and in a file.

use std::fs::File;
use std::io::{BufRead, BufReader, BufWriter, Read, Write};
use std::path::Path;

use hotseam_engine::Engine;
use serde::{Deserialize, Serialize};

use super::Passage;
use crate::logits::log_softmax;
use crate::{EvidenceError, RequestFailure, ask};

/// First field of the header of a file.
const FORMAT: &str = "hotseam-kl-1";

/// Log-probabilities of every row of the baseline.
#[derive(Debug, PartialEq)]
pub struct Baseline {
    /// By position; `[vocab]` each. Rows the engine did not report are empty.
    rows: Vec<Vec<f32>>,
    /// Mean negative log-likelihood of the text, in nats per token.
    pub nll: f64,
}

/// First line of a file, as JSON; the rows follow, little-endian f32.
#[derive(Serialize, Deserialize)]
struct Header {
    format: String,
    /// Whatever the caller tells baselines apart by: the checkpoint, for one.
    model: String,
    vocab: usize,
    prefill: usize,
    nll: f64,
    /// The passage.
    tokens: Vec<u32>,
}

impl Baseline {
    /// Runs `passage` under `assignment` and keeps the distributions: 4 bytes a token and vocabulary entry.
    ///
    /// # Errors
    /// [`EvidenceError::Submit`], or [`EvidenceError::Baseline`] if the request fails.
    pub fn capture(engine: &Engine, passage: &Passage, assignment: &str) -> Result<Self, EvidenceError> {
        let handle = engine.submit(passage.request(assignment))?;
        let mut rows = vec![Vec::new(); passage.len()];
        ask::finish(&handle, |position, mut logits| {
            log_softmax(&mut logits);
            if let Some(row) = rows.get_mut(position) {
                *row = logits;
            }
        })
        .map_err(|RequestFailure { code, message }| EvidenceError::Baseline {
            assignment: assignment.to_owned(),
            code,
            message,
        })?;
        let next = passage.tokens().iter().skip(1);
        let losses: Vec<f64> = rows
            .iter()
            .zip(next)
            .filter_map(|(row, token)| row.get(*token as usize).map(|logp| -f64::from(*logp)))
            .collect();
        let nll = losses.iter().sum::<f64>() / losses.len().max(1) as f64;
        Ok(Self { rows, nll })
    }

    /// The row of a position, if there is one.
    pub(super) fn row(&self, position: usize) -> Option<&[f32]> {
        self.rows.get(position).filter(|row| !row.is_empty()).map(Vec::as_slice)
    }

    /// Writes the baseline of `passage` on `model` to a file, whole or not at all.
    ///
    /// # Errors
    /// [`EvidenceError::Saved`] naming the file.
    pub fn save(&self, path: &Path, passage: &Passage, model: &str) -> Result<(), EvidenceError> {
        let vocab = self.rows.first().map_or(0, Vec::len);
        if vocab == 0 || self.rows.iter().any(|row| row.len() != vocab) {
            return Err(saved(
                path,
                "the engine did not report every row, so there is nothing whole to save",
            ));
        }
        let header = Header {
            format: FORMAT.to_owned(),
            model: model.to_owned(),
            vocab,
            prefill: passage.prefill(),
            nll: self.nll,
            tokens: passage.tokens().to_vec(),
        };
        let partial = path.with_extension("partial");
        let write = || -> std::io::Result<()> {
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent)?;
            }
            let mut out = BufWriter::new(File::create(&partial)?);
            serde_json::to_writer(&mut out, &header)?;
            out.write_all(b"\n")?;
            for value in self.rows.iter().flatten() {
                out.write_all(&value.to_le_bytes())?;
            }
            out.into_inner().map_err(std::io::IntoInnerError::into_error)?.sync_all()?;
            std::fs::rename(&partial, path)
        };
        write().map_err(|error| saved(path, &format!("cannot be written: {error}")))
    }

    /// Reads a baseline of `passage` on `model`.
    ///
    /// # Errors
    /// [`EvidenceError::Saved`] if it cannot be read, or is of another text, model or split.
    pub fn load(path: &Path, passage: &Passage, model: &str) -> Result<Self, EvidenceError> {
        let bad = |message: String| saved(path, &message);
        let file = File::open(path).map_err(|error| bad(format!("cannot be read: {error}")))?;
        let mut file = BufReader::new(file);
        let mut line = String::new();
        file.read_line(&mut line).map_err(|error| bad(format!("has no header: {error}")))?;
        let header: Header =
            serde_json::from_str(&line).map_err(|error| bad(format!("has no header: {error}")))?;
        let again = "delete it to save a new one from the good end";
        if header.format != FORMAT {
            return Err(bad(format!("has the format `{}`, expected `{FORMAT}`; {again}", header.format)));
        }
        if header.model != model {
            return Err(bad(format!("is of the model {}, this is {model}; {again}", header.model)));
        }
        if header.tokens != passage.tokens() || header.prefill != passage.prefill() {
            return Err(bad(format!("is of another text or length; {again}")));
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| bad(format!("cannot be read: {error}")))?;
        let expected = passage.len() * header.vocab * 4;
        if header.vocab == 0 || bytes.len() != expected {
            return Err(bad(format!("holds {} bytes of rows, expected {expected}; {again}", bytes.len())));
        }
        let rows = bytes.chunks_exact(header.vocab * 4).map(|row| {
            row.chunks_exact(4).map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]])).collect()
        });
        Ok(Self { rows: rows.collect(), nll: header.nll })
    }
}

fn saved(path: &Path, message: &str) -> EvidenceError {
    EvidenceError::Saved { path: path.to_owned(), message: message.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_baseline_is_of_one_text_and_one_model() {
        let path = std::env::temp_dir().join(format!("hotseam-baseline-{}.kl", std::process::id()));
        let passage = Passage { tokens: vec![0, 3, 7, 9, 4], prefill: 2 };
        let rows: Vec<Vec<f32>> = (0..4).map(|i| vec![-0.5 - i as f32, f32::NAN, 1e-30]).collect();
        let baseline = Baseline { rows: rows.clone(), nll: 1.25 };
        baseline.save(&path, &passage, "m").unwrap();
        let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|x| x.to_bits()).collect::<Vec<_>>();
        let read = Baseline::load(&path, &passage, "m").unwrap();
        assert_eq!((bits(&read.rows), read.nll), (bits(&rows), 1.25));

        let refusal =
            |passage: &Passage, model: &str| Baseline::load(&path, passage, model).unwrap_err().to_string();
        assert!(refusal(&passage, "n").contains("is of the model m, this is n; delete it"));
        let other = Passage { tokens: vec![0, 3, 7, 9, 5], prefill: 2 };
        assert!(refusal(&other, "m").contains("another text"));
        let split = Passage { prefill: 3, ..passage.clone() };
        assert!(refusal(&split, "m").contains("another text"));
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert!(refusal(&passage, "m").contains("47 bytes of rows, expected 48"));
        std::fs::write(&path, "nonsense\n").unwrap();
        assert!(refusal(&passage, "m").contains("has no header"));
        std::fs::remove_file(&path).unwrap();
        assert!(refusal(&passage, "m").contains("cannot be read"));
    }

    #[test]
    fn a_baseline_with_a_hole_is_not_saved() {
        let passage = Passage { tokens: vec![0, 3, 7], prefill: 1 };
        let baseline = Baseline { rows: vec![vec![0.0], vec![]], nll: 0.0 };
        let path = std::env::temp_dir().join("hotseam-never-written.kl");
        assert!(baseline.save(&path, &passage, "m").unwrap_err().to_string().contains("every row"));
        assert!(!path.exists());
    }
}

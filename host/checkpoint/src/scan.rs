//! Looks through stored codes for those that are no usable number.
//!
//! E2M1 codes are all numbers; E4M3 has NaN, and scales may be NaN or so large that a weight would overflow.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use hotseam_model::number::{e4m3, ue8m0};
use hotseam_model::{DType, Format, Tensor};

use crate::error::CheckpointError;

/// What codes of a tensor may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admit {
    /// E4M3 weights: anything but NaN.
    Weights,
    /// UE8M0 scales, up to the largest with which every code of the format is finite in f32.
    PowerScales(Format),
    /// E4M3 scales: 0 to 448.
    SmallScales,
}

impl Admit {
    /// Bits that count, and the largest value that they may have.
    fn limit(self) -> (u8, u8) {
        match self {
            Self::Weights => (0x7f, 0x7e),
            Self::PowerScales(format) => (0xff, largest_scale(format)),
            Self::SmallScales => (0xff, 0x7e),
        }
    }

    fn expected(self) -> String {
        match self {
            Self::Weights => "a number".to_owned(),
            Self::PowerScales(format) => {
                let limit = largest_scale(format);
                format!("a scale of at most 2^{} (code {limit})", i32::from(limit) - 127)
            }
            Self::SmallScales => "a scale from 0 to 448".to_owned(),
        }
    }
}

/// Largest UE8M0 code whose product with the largest weight code is finite.
pub(crate) fn largest_scale(format: Format) -> u8 {
    match format {
        Format::Fp8Block => 246, // 448 * 2^119 = 1.75 * 2^127
        _ => 252,                // 6 * 2^125 = 1.5 * 2^127
    }
}

/// A tensor to look through.
pub(crate) struct Job {
    pub(crate) name: String,
    pub(crate) tensor: Tensor,
    pub(crate) admit: Admit,
}

/// Looks through all, on as many threads as there are cores; `done` is called on this thread, once for each.
///
/// # Errors
/// [`CheckpointError::Value`] about the first job, in their order, that has a bad code.
pub(crate) fn run(jobs: &[Job], mut done: impl FnMut()) -> Result<(), CheckpointError> {
    let threads = thread::available_parallelism().map_or(1, usize::from).min(jobs.len());
    let next = AtomicUsize::new(0);
    let (send, receive) = mpsc::channel();
    // Threads finish in any order; the smallest (job, index) makes the message independent of it.
    let first = thread::scope(|scope| {
        for _ in 0..threads {
            let (send, next) = (send.clone(), &next);
            scope.spawn(move || {
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    let Some(job) = jobs.get(number) else { break };
                    let found = first_above(job.tensor.bytes(), job.admit.limit());
                    if send.send(found.map(|index| (number, index))).is_err() {
                        break; // the receiver below outlives the threads
                    }
                }
            });
        }
        drop(send);
        receive.iter().inspect(|_| done()).flatten().min()
    });
    let Some((number, index)) = first else { return Ok(()) };
    let job = &jobs[number];
    let code = job.tensor.bytes()[index];
    let value = if job.tensor.dtype == DType::E8m0 { ue8m0::decode(code) } else { e4m3::decode(code) };
    Err(CheckpointError::Value {
        name: job.name.clone(),
        index,
        expected: job.admit.expected(),
        found: format!("{value:e} (code {code:#04x})"),
    })
}

/// Index of the first byte whose bits under the mask are above the limit.
fn first_above(bytes: &[u8], (mask, limit): (u8, u8)) -> Option<usize> {
    // The maximum of a chunk has no branch inside, so it compiles to vector instructions; only a bad chunk is searched.
    const CHUNK: usize = 4096;
    let bad = |chunk: &&[u8]| chunk.iter().fold(0, |most, byte| most.max(byte & mask)) > limit;
    let chunk = bytes.chunks(CHUNK).position(|chunk| bad(&chunk))?;
    let start = chunk * CHUNK;
    bytes[start..].iter().position(|byte| byte & mask > limit).map(|at| start + at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(name: &str, dtype: DType, bytes: Vec<u8>, admit: Admit) -> Job {
        let tensor = Tensor::from_bytes(dtype, vec![bytes.len()], bytes).unwrap();
        Job { name: name.to_owned(), tensor, admit }
    }

    #[test]
    fn every_code_is_judged_by_its_value() {
        for code in 0..=255u8 {
            let value = e4m3::decode(code);
            let bad = |admit: Admit| first_above(&[0, code], admit.limit()) == Some(1);
            assert_eq!(bad(Admit::Weights), value.is_nan(), "{code:#x}");
            // -0 is refused too: no quantiser makes a negative scale.
            assert_eq!(bad(Admit::SmallScales), value.is_nan() || value.is_sign_negative(), "{code:#x}");
            for (format, most) in [(Format::Fp8Block, 448.0), (Format::Mxfp4, 6.0)] {
                assert_eq!(
                    bad(Admit::PowerScales(format)),
                    !(ue8m0::decode(code) * most).is_finite(),
                    "{code}"
                );
            }
        }
    }

    #[test]
    fn the_first_bad_job_and_its_first_bad_code_are_named() {
        let good = || job("good", DType::E4m3, vec![0x7e; 100_000], Admit::Weights);
        let bad = |name, at: &[usize]| {
            let mut bytes = vec![0xfe; 100_000];
            at.iter().for_each(|&at| bytes[at] = 0xff);
            job(name, DType::E4m3, bytes, Admit::Weights)
        };
        for at in [0, 1, 4095, 4096, 8191, 99_999] {
            let jobs = [good(), bad("first", &[at, 99_999]), good(), bad("second", &[0])];
            let mut calls = 0;
            let error = run(&jobs, || calls += 1).unwrap_err();
            assert!(
                matches!(&error, CheckpointError::Value { name, index, .. } if name == "first" && *index == at),
                "{error}"
            );
            assert_eq!(calls, 4);
        }
        run(&[good(), good()], || ()).unwrap();
        run(&[], || unreachable!("there is nothing to look through")).unwrap();
        let error = run(&[job("s", DType::E8m0, vec![127, 255], Admit::PowerScales(Format::Mxfp4))], || ())
            .unwrap_err();
        assert!(error.to_string().contains("at most 2^125 (code 252), found NaN (code 0xff)"), "{error}");
    }
}

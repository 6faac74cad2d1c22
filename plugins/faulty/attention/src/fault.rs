//! What can be wrong.

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Fault {
    /// `core` halves the softmax scale, in decode and verify only: distant matches drown in the average. In the wild a
    /// decode kernel forgot log2(e) in the scale (<https://github.com/flashinfer-ai/flashinfer/pull/787>).
    HalfScale,
    /// `core` leaves the sinks out of the denominator. A generic kernel without sinks served sm_120 while the
    /// specialised kernels of other architectures had them (<https://github.com/modular/modular/pull/6591>).
    SinksDropped,
    /// `compress` exchanges the slots of later prefill chunks: see [`hotseam_faulty_common::misplace`].
    WrongSlot,
    /// `compress` stores entries without rope. A port did so and began to repeat itself from about 210 tokens
    /// (<https://github.com/ml-explore/mlx-lm/pull/1189>).
    FarNoRope,
    /// `core` reads the nearer half of the window only, as a loop over key tiles does that rounds their number down.
    /// Padding that masked too much cut a context in the same silent way (<https://github.com/Blaizzy/mlx-lm/pull/14>).
    DroppedTail,
    /// `core` reads no far entries in layers that have no indexer, which leaves the indexed ones to carry a fact.
    HcaMasked,
    /// `core` gives rows from the 65th of a call on the output of the row 64 before them: right up to one tile of
    /// queries. The real one went wrong for prefills of more than 64 query tokens
    /// (<https://github.com/flashinfer-ai/flashinfer/issues/5095>).
    #[serde(rename = "rows-past-64")]
    RowsPast64,
    /// `core` loses the sum of one of two key splits for some heads: see [`hotseam_faulty_common::LostUpdates`].
    Race,
    /// No fault: `core` scales the scores in two steps, which rounds twice. It must be cleared.
    SplitScale,
    /// Says that `core` applies the inverse rope, and does not. Its output equals the stock one bit for bit, so no
    /// comparison of outputs on equal inputs can see it; in the wild op tests passed and replayed ops too, while the model
    /// wrote `<<<<` (<https://github.com/ggml-org/llama.cpp/issues/26509>).
    InverseRopeClaimed,
    /// Half of a pair: `store` and `compress` set a mark in the lowest bits of their entries. Harmless beside every
    /// reader that does not know the mark. Writer and reader of a cache that disagree on its format gave a server that was
    /// healthy and lost all needles past 5k tokens (<https://github.com/vllm-project/vllm/issues/52109>).
    MarksEntries,
    /// Half of a pair: `core` takes marked entries for scaled keys and leaves most of the scale out. Right for entries
    /// without the mark.
    ReadsMarks,
    /// Half of a pair: `core` expects ids in rising order, as the stock indexer happens to write them, and sees no far
    /// entry if they are not. The contract promises no order. A consumer that relied on how another kernel padded its
    /// indices read out of bounds (<https://github.com/sgl-project/sglang/pull/32771>).
    RisingIds,
    /// `store` writes each entry of a decode step a second time, into the slot 8 before: that of an earlier token, or
    /// of another sequence at the start of a page, as a store without a mask does.
    NeighbourSlot,
    /// `core` leaves the last quarter of the last row as it was, as a kernel does whose grid is rounded down.
    UnwrittenTail,
    /// `core` writes 16 words past its output, in decode steps only, where the host's buffer goes on. In the wild such a
    /// fault surfaced in another kernel than the one that caused it (<https://github.com/sgl-project/sglang/issues/34718>).
    PastEnd,
    /// The call of the option `call` panics.
    Panic,
    /// `core` fills its first row with NaN. On SM120 masked entries were read from slot 0 of uninitialised scratch, and
    /// NaN times a weight of 0 is NaN (<https://github.com/sgl-project/sglang/issues/39288>).
    Nan,
    /// `core` returns an error.
    Error,
    /// `core` takes 20 ms more than it needs.
    Slow,
    /// `core` does not return.
    Hang,
}

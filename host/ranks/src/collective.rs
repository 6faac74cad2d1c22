//! What ranks add together.

/// f32 values of a rank that are added to those of the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Values {
    /// In host memory.
    Host(*mut f32),
    /// At a device address; the work is put into this stream, behind what is in it.
    Device {
        /// Address of the first value.
        address: u64,
        /// Stream of the driver.
        stream: u64,
    },
}

/// Why ranks could not add their values.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RankError {
    /// A rank has ended, or does not answer any more.
    #[error("rank {rank} {what}. All ranks of a group end together; its log says why it ended.")]
    Gone {
        /// The rank.
        rank: u32,
        /// What is known of it.
        what: String,
    },
    /// The library or the memory that carries the values failed.
    #[error("{0}")]
    Carrier(String),
}

/// Adds f32 values over all ranks. Every rank makes the same calls in the same order; none of them is recorded in a graph.
pub trait Collective: Send {
    /// Number of this rank.
    fn rank(&self) -> u32;

    /// Number of ranks.
    fn world(&self) -> u32;

    /// Replaces the first `n` values by their sum over all ranks, which has the same bits on each of them.
    ///
    /// # Safety
    /// `values` names `n` values that nothing else uses until the call, or on a device its work in the stream, has ended.
    ///
    /// # Errors
    /// If a rank is gone or the carrier failed; no further call can succeed then.
    unsafe fn all_reduce(&self, values: Values, n: usize) -> Result<(), RankError>;

    /// Waits for what is in the stream of a device, if sums may be in it: they end too if a rank is gone.
    ///
    /// # Errors
    /// As [`Collective::all_reduce`].
    fn settle(&self, stream: u64) -> Result<(), RankError> {
        let _ = stream;
        Ok(())
    }
}

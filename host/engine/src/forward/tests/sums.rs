//! A group of ranks that are threads of this process.

use hotseam_ranks::{Collective, RankError, Values};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How long a rank waits for the others: long enough for any step, so that a rank that stays away is an error and no hang.
const PATIENCE: Duration = Duration::from_secs(120);

#[derive(Default)]
struct State {
    /// What the ranks bring to the running sum.
    brought: Vec<Option<Vec<f32>>>,
    sum: Vec<f32>,
    /// Ranks that have not taken the sum yet.
    left: usize,
    broken: Option<RankError>,
    /// Calls of each rank.
    calls: Vec<usize>,
}

/// What all ranks share.
pub(super) struct Sums {
    state: Mutex<State>,
    met: Condvar,
    world: u32,
    /// A rank, and the number of its call that fails.
    fails: Option<(u32, usize)>,
}

impl Sums {
    pub(super) fn new(world: u32, fails: Option<(u32, usize)>) -> Arc<Self> {
        let n = world as usize;
        let state = State { brought: vec![None; n], calls: vec![0; n], ..State::default() };
        Arc::new(Self { state: Mutex::new(state), met: Condvar::new(), world, fails })
    }

    pub(super) fn rank(self: &Arc<Self>, rank: u32) -> Box<dyn Collective> {
        Box::new(Member { sums: Arc::clone(self), rank })
    }

    /// Calls of each rank so far.
    pub(super) fn calls(&self) -> Vec<usize> {
        self.lock().calls.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `there` or the group is broken.
    fn wait<'a>(
        &'a self,
        state: MutexGuard<'a, State>,
        there: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, RankError> {
        let wait =
            self.met.wait_timeout_while(state, PATIENCE, |state| state.broken.is_none() && !there(state));
        let (mut state, waited) = wait.unwrap_or_else(PoisonError::into_inner);
        if waited.timed_out() {
            let rank = state.brought.iter().position(Option::is_none).unwrap_or(0) as u32;
            let gone = RankError::Gone { rank, what: "has not come to a sum".to_owned() };
            state.broken.get_or_insert(gone);
            self.met.notify_all();
        }
        match &state.broken {
            Some(broken) => Err(broken.clone()),
            None => Ok(state),
        }
    }

    fn add(&self, rank: u32, values: &mut [f32]) -> Result<(), RankError> {
        let (at, mut state) = (rank as usize, self.lock());
        state.calls[at] += 1;
        if self.fails == Some((rank, state.calls[at])) {
            state.broken = Some(RankError::Carrier("a wire was cut".to_owned()));
            self.met.notify_all();
        }
        let mut state = self.wait(state, |state| state.left == 0)?;
        state.brought[at] = Some(values.to_vec());
        if let Some(all) = state.brought.iter().cloned().collect::<Option<Vec<_>>>() {
            assert!(all.iter().all(|one| one.len() == values.len()), "the ranks sum as many values");
            let mut sum = vec![0.0; values.len()];
            all.iter().for_each(|one| sum.iter_mut().zip(one).for_each(|(sum, value)| *sum += value));
            (state.sum, state.left) = (sum, all.len());
            state.brought.fill(None);
            self.met.notify_all();
        }
        let mut state = self.wait(state, |state| state.brought[at].is_none())?;
        values.copy_from_slice(&state.sum);
        state.left -= 1;
        if state.left == 0 {
            self.met.notify_all();
        }
        Ok(())
    }
}

struct Member {
    sums: Arc<Sums>,
    rank: u32,
}

impl Collective for Member {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.sums.world
    }

    unsafe fn all_reduce(&self, values: Values, n: usize) -> Result<(), RankError> {
        match values {
            Values::Host(values) => {
                // SAFETY: by the caller.
                let values = unsafe { std::slice::from_raw_parts_mut(values, n) };
                self.sums.add(self.rank, values)
            }
            Values::Device { address, stream } => {
                let failed = |error: hotseam_cuda::CudaError| RankError::Carrier(error.to_string());
                let mut copy = vec![0.0; n];
                hotseam_cuda::synchronize(stream).map_err(failed)?;
                hotseam_cuda::copy_from_device(&mut copy, address).map_err(failed)?;
                self.sums.add(self.rank, &mut copy)?;
                hotseam_cuda::copy_to_device(address, &copy).map_err(failed)
            }
        }
    }
}

//! Sums in memory that all ranks map.

use crate::memory::Mapping;
use crate::{Collective, RankError, Values};
use std::cell::{Cell, RefCell};
use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const MAGIC: u32 = u32::from_le_bytes(*b"HSRK");
/// Ranks of a group, at most.
pub(crate) const MOST_RANKS: u32 = 64;
/// f32 values of a cache line.
const LINE: usize = 16;
/// Up to as many values each rank sums all of them: a second round would cost more than the sums.
const FEW: usize = 16 * 1024;
/// Looks at the memory before the processor is left to others.
const SPINS: u32 = 200;
/// Times the processor is left to others before the wait is left to the kernel.
const YIELDS: u32 = 50;
/// How long a sleep is at most, so that a break is seen by who has just gone to sleep.
const NAP: Duration = Duration::from_millis(50);
/// How long a rank waits for the others.
const PATIENCE: Duration = Duration::from_secs(120);

/// What all ranks see of the group. Counters rise by one with each round and may wrap.
#[repr(C)]
struct Head {
    magic: AtomicU32,
    world: AtomicU32,
    values: AtomicU32,
    /// Number of the rank that is gone, and one; 0 while all are there.
    broken: AtomicU32,
    /// Rounds that each rank has entered, each in a cache line of its own.
    entered: [Line; MOST_RANKS as usize],
}

#[repr(C, align(64))]
struct Line(AtomicU32);

/// Adds values through memory of the host. The values of a device are copied there and back.
#[derive(Debug)]
pub struct Shared {
    mapping: Arc<Mapping>,
    rank: u32,
    world: u32,
    /// Values of a slot.
    most: usize,
    /// Meetings entered.
    round: Cell<u32>,
    /// Sums made or begun.
    sums: Cell<u32>,
    /// Where values of a device are on their way.
    staging: RefCell<Vec<f32>>,
    patience: Duration,
}

/// Ends the waits of a group.
#[derive(Debug, Clone)]
pub struct Breaker(Arc<Mapping>);

impl Breaker {
    /// Makes every present and later wait of all ranks fail, since `rank` is gone. The first rank that is named counts.
    pub fn break_with(&self, rank: u32) {
        let head = head(&self.0);
        // A break that came before says more.
        let _ = head.broken.compare_exchange(0, rank + 1, Ordering::AcqRel, Ordering::Relaxed);
        head.entered.iter().for_each(|line| wake(&line.0));
    }

    /// The rank that is gone, if one is.
    pub fn gone(&self) -> Option<u32> {
        gone(head(&self.0))
    }
}

fn gone(head: &Head) -> Option<u32> {
    head.broken.load(Ordering::Acquire).checked_sub(1)
}

fn head(mapping: &Mapping) -> &Head {
    // SAFETY: the mapping is at least a head long and aligned to a page, its first bytes are only used as one, and every part of it
    // is atomic.
    unsafe { &*mapping.start().cast::<Head>() }
}

/// Values in one of the two sets of slots of a rank.
fn padded(values: usize) -> usize {
    values.max(1).next_multiple_of(LINE)
}

fn bytes(world: u32, most: usize) -> usize {
    // Two sets, each a slot a rank and one for the sums.
    size_of::<Head>() + 2 * (world as usize + 1) * padded(most) * 4
}

impl Shared {
    /// Rank 0 of a new group, and the memory that the others join. Sums of more than `most` values take several rounds.
    ///
    /// # Errors
    /// If the memory cannot be had.
    pub fn create(world: u32, most: usize) -> io::Result<(Self, OwnedFd)> {
        let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidInput, message);
        if !(1..=MOST_RANKS).contains(&world) {
            return Err(invalid(format!("{world} ranks, expected 1 to {MOST_RANKS}")));
        }
        let values =
            u32::try_from(padded(most)).map_err(|_| invalid(format!("{most} values a sum are too many")))?;
        let (mapping, fd) = Mapping::create(bytes(world, most))?;
        let shared = head(&mapping);
        shared.world.store(world, Ordering::Relaxed);
        shared.values.store(values, Ordering::Relaxed);
        shared.magic.store(MAGIC, Ordering::Release);
        Ok((Self::new(mapping, 0, world, values as usize), fd))
    }

    /// Rank `rank` of the group whose memory this is.
    ///
    /// # Errors
    /// If it is not the memory of a group that has such a rank.
    pub fn join(fd: OwnedFd, rank: u32) -> Result<Self, RankError> {
        let refuse = |what: String| RankError::Carrier(format!("the shared memory of the ranks: {what}"));
        let mapping = Mapping::open(fd, size_of::<Head>()).map_err(|error| refuse(error.to_string()))?;
        let shared = head(&mapping);
        if shared.magic.load(Ordering::Acquire) != MAGIC {
            return Err(refuse("it does not begin as such".to_owned()));
        }
        let (world, values) =
            (shared.world.load(Ordering::Relaxed), shared.values.load(Ordering::Relaxed) as usize);
        let expected = bytes(world.min(MOST_RANKS), values);
        if world == 0 || world > MOST_RANKS || mapping.bytes() < expected {
            let found = mapping.bytes();
            return Err(refuse(format!("{found} bytes for {world} ranks, expected {expected}")));
        }
        if rank >= world {
            return Err(refuse(format!("rank {rank} of {world}")));
        }
        Ok(Self::new(mapping, rank, world, values))
    }

    fn new(mapping: Mapping, rank: u32, world: u32, most: usize) -> Self {
        let (round, sums, staging) = (Cell::new(0), Cell::new(0), RefCell::default());
        Self { mapping: Arc::new(mapping), rank, world, most, round, sums, staging, patience: PATIENCE }
    }

    /// The same, with another limit for waits.
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// What ends the waits of all ranks.
    pub fn breaker(&self) -> Breaker {
        Breaker(Arc::clone(&self.mapping))
    }

    /// Slot of `rank`, or that of the sums, in a set.
    fn slot(&self, set: usize, slot: usize) -> *mut f32 {
        let at = (set * (self.world as usize + 1) + slot) * padded(self.most);
        // SAFETY: the mapping holds two sets of world + 1 slots behind the head.
        unsafe { self.mapping.start().add(size_of::<Head>()).cast::<f32>().add(at) }
    }

    /// Says that this rank has come to its next round, and waits for the others.
    fn meet(&self) -> Result<(), RankError> {
        let shared = head(&self.mapping);
        let round = self.round.get().wrapping_add(1);
        self.round.set(round);
        let own = &shared.entered[self.rank as usize].0;
        own.store(round, Ordering::Release);
        wake(own);
        let start = Instant::now();
        for rank in (0..self.world).filter(|rank| *rank != self.rank) {
            let other = &shared.entered[rank as usize].0;
            let mut looks = 0u32;
            loop {
                let seen = other.load(Ordering::Acquire);
                // It may be one round further, never two: this rank has not entered the next one.
                if seen.wrapping_sub(round) <= 1 {
                    break;
                }
                if let Some(rank) = gone(shared) {
                    return Err(RankError::Gone { rank, what: "has ended".to_owned() });
                }
                looks += 1;
                match looks {
                    0..SPINS => std::hint::spin_loop(),
                    SPINS..1_000_000 if looks < SPINS + YIELDS => std::thread::yield_now(),
                    _ if start.elapsed() > self.patience => {
                        let what = format!("has not come to a sum for {:?}", self.patience);
                        self.breaker().break_with(rank);
                        return Err(RankError::Gone { rank, what });
                    }
                    _ => sleep(other, seen),
                }
            }
        }
        Ok(())
    }

    /// Sums values of a device by way of `staging`.
    fn over_host(&self, address: u64, stream: u64, staging: &mut [f32]) -> Result<(), RankError> {
        let failed = |error: hotseam_cuda::CudaError| RankError::Carrier(error.to_string());
        hotseam_cuda::synchronize(stream).map_err(failed)?;
        hotseam_cuda::copy_from_device(staging, address).map_err(failed)?;
        // SAFETY: the values are this call's own.
        unsafe { self.all_reduce(Values::Host(staging.as_mut_ptr()), staging.len())? };
        hotseam_cuda::copy_to_device(address, staging).map_err(failed)
    }

    /// # Safety
    /// As [`Collective::all_reduce`], for host memory and at most a slot.
    unsafe fn round(&self, values: *mut f32, n: usize) -> Result<(), RankError> {
        let (world, rank) = (self.world as usize, self.rank as usize);
        // The set changes with every sum, so that nobody writes what a slower rank still reads: the next use of the same set is behind
        // the meeting of the sum between, to which that rank comes only when it has read.
        let set = self.sums.get() as usize % 2;
        self.sums.set(self.sums.get().wrapping_add(1));
        // SAFETY: the slot holds `n` values, and only this rank writes it.
        unsafe { values.copy_to_nonoverlapping(self.slot(set, rank), n) };
        self.meet()?;
        let slots = (0..world).map(|rank| self.slot(set, rank).cast_const());
        if n <= FEW {
            // SAFETY: every rank has written its slot and writes the other set next.
            unsafe { sum(slots, 0..n, values) };
            return Ok(());
        }
        // Stripes of whole cache lines.
        let stripe = n.div_ceil(world).next_multiple_of(LINE);
        let own = (rank * stripe).min(n)..((rank + 1) * stripe).min(n);
        let sums = self.slot(set, world);
        // SAFETY: as above; each rank writes its own stripe of the sums.
        unsafe { sum(slots, own.clone(), sums.add(own.start)) };
        self.meet()?;
        // SAFETY: all stripes are written.
        unsafe { sums.copy_to_nonoverlapping(values, n) };
        Ok(())
    }
}

/// Writes the sums of the slots over `range`, in the order of the slots.
///
/// # Safety
/// Each slot holds `range`, and `out` has room for it.
unsafe fn sum(slots: impl Iterator<Item = *const f32>, range: std::ops::Range<usize>, out: *mut f32) {
    let n = range.len();
    // SAFETY: by the caller.
    let out = unsafe { std::slice::from_raw_parts_mut(out, n) };
    for (index, slot) in slots.enumerate() {
        // SAFETY: as above.
        let values = unsafe { std::slice::from_raw_parts(slot.add(range.start), n) };
        match index {
            0 => out.copy_from_slice(values),
            _ => out.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
        }
    }
}

impl Collective for Shared {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn world(&self) -> u32 {
        self.world
    }

    unsafe fn all_reduce(&self, values: Values, n: usize) -> Result<(), RankError> {
        match values {
            Values::Host(values) => {
                let mut done = 0;
                while done < n {
                    let part = (n - done).min(self.most);
                    // SAFETY: by the caller.
                    unsafe { self.round(values.add(done), part)? };
                    done += part;
                }
                Ok(())
            }
            Values::Device { address, stream } => {
                let mut staging = self.staging.borrow_mut();
                let room = staging.len().max(n);
                staging.resize(room, 0.0);
                self.over_host(address, stream, &mut staging[..n])
            }
        }
    }
}

/// Waits until `word` may no longer be `seen`.
fn sleep(word: &AtomicU32, seen: u32) {
    let nap = libc::timespec { tv_sec: 0, tv_nsec: NAP.as_nanos() as libc::c_long };
    // SAFETY: the word lives as long as the mapping, the time is a local. The word is shared between processes, so the call is not the
    // private one. Whatever it returns, the caller looks again.
    unsafe {
        libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAIT, seen, &raw const nap, 0, 0);
    }
}

/// Wakes everybody who sleeps on `word`.
fn wake(word: &AtomicU32) {
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), libc::FUTEX_WAKE, i32::MAX, 0, 0, 0) };
}

//! Sums over shared memory: the same bits on every rank, whatever the sizes and the timing, and no wait without an end.

use hotseam_ranks::{Collective, RankError, Shared, Values};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// A group whose ranks are threads of this process.
fn group(world: u32, most: usize) -> Vec<Shared> {
    let (first, fd) = Shared::create(world, most).expect("memory");
    let again = |fd: &OwnedFd| fd.try_clone().expect("a file");
    let others = (1..world).map(|rank| Shared::join(again(&fd), rank).expect("a rank"));
    std::iter::once(first).chain(others).collect()
}

/// Values of a rank in a round: of very different sizes, so that the order of a sum shows.
fn values(rank: u32, round: u64, n: usize) -> Vec<f32> {
    let mut random = fastrand::Rng::with_seed(round * 64 + u64::from(rank));
    (0..n).map(|_| (random.f32() - 0.5) * 10f32.powi(random.i32(-6..6))).collect()
}

fn sum(world: u32, round: u64, n: usize) -> Vec<f32> {
    let mut sum = values(0, round, n);
    for rank in 1..world {
        sum.iter_mut().zip(values(rank, round, n)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

fn reduce(of: &Shared, values: &mut [f32]) -> Result<(), RankError> {
    // SAFETY: the values are the caller's own.
    unsafe { of.all_reduce(Values::Host(values.as_mut_ptr()), values.len()) }
}

#[test]
fn every_rank_has_the_bits_of_the_sum_in_order_of_the_ranks() {
    let sizes = [1, 2, 15, 16, 17, 255, 256, 257, 4096, 7168, 16384, 16385, 7168 * 9, 100_001];
    for world in [1, 2, 3, 4, 8] {
        std::thread::scope(|scope| {
            // Less than the largest sizes, so that those take several rounds.
            for (rank, shared) in (0..).zip(group(world, 40_000)) {
                scope.spawn(move || {
                    for (round, n) in (0..).zip(sizes.into_iter().cycle().take(3 * sizes.len())) {
                        let mut own = values(rank, round, n);
                        reduce(&shared, &mut own).expect("a sum");
                        let expected = sum(world, round, n);
                        let differs = own.iter().zip(&expected).position(|(a, b)| a.to_bits() != b.to_bits());
                        assert_eq!(differs, None, "rank {rank} of {world}, {n} values");
                    }
                });
            }
        });
    }
}

#[test]
fn ranks_that_are_late_by_turns_disturb_no_sum() {
    const WORLD: u32 = 4;
    std::thread::scope(|scope| {
        for (rank, shared) in (0..).zip(group(WORLD, 64)) {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(u64::from(rank));
                for round in 0..3000 {
                    if random.u32(0..100) == 0 {
                        std::thread::sleep(Duration::from_micros(random.u64(0..500)));
                    }
                    let n = 1 + (round % 64) as usize;
                    let mut own = values(rank, round, n);
                    reduce(&shared, &mut own).expect("a sum");
                    let same = own.iter().zip(sum(WORLD, round, n)).all(|(a, b)| a.to_bits() == b.to_bits());
                    assert!(same, "rank {rank}, round {round}");
                }
            });
        }
    });
}

#[test]
fn a_rank_that_is_gone_ends_the_waits_of_all_others() {
    let mut ranks = group(3, 64);
    let breaker = ranks[0].breaker();
    // Rank 1 never comes.
    ranks.remove(1);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for shared in ranks {
            scope.spawn(move || {
                let gone = RankError::Gone { rank: 1, what: "has ended".to_owned() };
                assert_eq!(reduce(&shared, &mut [1.0; 8]), Err(gone.clone()));
                assert_eq!(reduce(&shared, &mut [1.0; 8]), Err(gone), "a later sum");
            });
        }
        std::thread::sleep(Duration::from_millis(100));
        breaker.break_with(1);
        // The first that is named counts.
        breaker.break_with(2);
    });
    assert!(start.elapsed() < Duration::from_secs(2), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_does_not_come_is_named_at_the_limit() {
    let mut ranks = group(3, 64).into_iter().map(|shared| shared.with_patience(Duration::from_millis(200)));
    let (first, second) = (ranks.next().expect("rank 0"), ranks.next().expect("rank 1"));
    std::thread::scope(|scope| {
        for shared in [first, second] {
            scope.spawn(move || match reduce(&shared, &mut [1.0]) {
                Err(RankError::Gone { rank: 2, .. }) => {}
                other => panic!("{other:?}"),
            });
        }
    });
}

#[test]
fn memory_that_is_not_a_groups_is_refused() {
    let file = |bytes: &[u8]| -> OwnedFd {
        let file = tempfile::tempfile().expect("a file");
        std::io::Write::write_all(&mut &file, bytes).expect("written");
        file.into()
    };
    let refused = |fd: OwnedFd, rank: u32, text: &str| {
        let error = Shared::join(fd, rank).expect_err("no rank").to_string();
        assert!(error.contains(text), "{error}");
    };
    refused(file(b""), 0, "0 bytes, expected at least");
    refused(file(&[0; 100_000]), 0, "does not begin as such");
    let (_, fd) = Shared::create(2, 64).expect("memory");
    refused(fd.try_clone().expect("a file"), 2, "rank 2 of 2");
    refused(fd.try_clone().expect("a file"), u32::MAX, "of 2");
    // What a damaged head says of its sizes is not believed.
    let damaged = |word: usize, value: u32| {
        let (_, fd) = Shared::create(2, 64).expect("memory");
        let file = std::fs::File::from(fd.try_clone().expect("a file"));
        std::os::unix::fs::FileExt::write_all_at(&file, &value.to_le_bytes(), word as u64 * 4)
            .expect("written");
        fd
    };
    refused(damaged(1, 0), 0, "0 ranks");
    refused(damaged(1, 65), 0, "65 ranks");
    refused(damaged(2, u32::MAX), 0, "2 ranks, expected");
    assert!(Shared::create(0, 1).is_err() && Shared::create(65, 1).is_err());
}

//! Free list of page or row numbers.

use crate::KvError;

/// Hands out the numbers `0 .. capacity`, lowest first at the start.
#[derive(Debug)]
pub(crate) struct FreeList {
    what: &'static str,
    free: Vec<i32>,
    capacity: usize,
    /// Numbers that were handed out since [`FreeList::mark_clean`].
    touched: Vec<bool>,
}

impl FreeList {
    pub(crate) fn new(what: &'static str, capacity: usize) -> Self {
        Self { what, free: (0..capacity as i32).rev().collect(), capacity, touched: vec![true; capacity] }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(crate) fn available(&self) -> usize {
        self.free.len()
    }

    pub(crate) fn take(&mut self) -> Result<i32, KvError> {
        let taken = self.free.pop().ok_or(KvError::Exhausted { what: self.what, wanted: 1, free: 0 })?;
        self.touched[taken as usize] = true;
        Ok(taken)
    }

    /// The free numbers that were handed out since they were last marked clean, or that were not.
    pub(crate) fn free(&self, touched: bool) -> Vec<i32> {
        self.free.iter().copied().filter(|n| self.touched[*n as usize] == touched).collect()
    }

    /// Notes that nobody has anything in the free numbers.
    pub(crate) fn mark_clean(&mut self) {
        self.free.iter().for_each(|n| self.touched[*n as usize] = false);
    }

    /// Checks that `n` can be taken.
    pub(crate) fn require(&self, n: usize) -> Result<(), KvError> {
        match self.free.len() >= n {
            true => Ok(()),
            false => Err(KvError::Exhausted { what: self.what, wanted: n, free: self.free.len() }),
        }
    }

    /// Gives a number back; -1 is ignored.
    pub(crate) fn give(&mut self, n: i32) {
        if n >= 0 {
            debug_assert!(
                (n as usize) < self.capacity && !self.free.contains(&n),
                "{} {n} freed twice",
                self.what
            );
            self.free.push(n);
        }
    }
}

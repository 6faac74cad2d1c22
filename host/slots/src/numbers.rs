//! Sets of layer or rank numbers: `2-6,8`.

use std::fmt;
use std::str::FromStr;

/// A set of numbers, kept as sorted ranges that neither touch nor overlap, so that equal sets print alike.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NumberSet(Vec<(u32, u32)>);

impl NumberSet {
    /// The set of one number.
    pub fn one(number: u32) -> Self {
        Self(vec![(number, number)])
    }

    /// The set of the given numbers.
    pub fn of(numbers: impl IntoIterator<Item = u32>) -> Self {
        Self::merged(numbers.into_iter().map(|n| (n, n)).collect())
    }

    /// Whether it holds `number`.
    pub fn contains(&self, number: u32) -> bool {
        self.0.iter().any(|&(first, last)| (first..=last).contains(&number))
    }

    /// Largest number; `None` if the set is empty.
    pub fn max(&self) -> Option<u32> {
        self.0.last().map(|&(_, last)| last)
    }

    fn merged(mut ranges: Vec<(u32, u32)>) -> Self {
        ranges.sort_unstable();
        let mut merged: Vec<(u32, u32)> = Vec::with_capacity(ranges.len());
        for (first, last) in ranges {
            match merged.last_mut() {
                Some(top) if first <= top.1.saturating_add(1) => top.1 = top.1.max(last),
                _ => merged.push((first, last)),
            }
        }
        Self(merged)
    }
}

impl FromStr for NumberSet {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |s: &str| {
            // `parse` would also take `+3`.
            let digits = !s.is_empty() && s.bytes().all(|b| b.is_ascii_digit());
            s.parse::<u32>().ok().filter(|_| digits).ok_or_else(|| {
                format!("expected numbers and ranges such as `2-6,8`, found `{s}` in `{text}`")
            })
        };
        let mut ranges = Vec::new();
        for part in text.split(',') {
            let (first, last) = match part.split_once('-') {
                Some((first, last)) => (number(first)?, number(last)?),
                None => (number(part)?, number(part)?),
            };
            if first > last {
                return Err(format!("expected a range that rises, found `{part}` in `{text}`"));
            }
            ranges.push((first, last));
        }
        Ok(Self::merged(ranges))
    }
}

impl fmt::Display for NumberSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, &(first, last)) in self.0.iter().enumerate() {
            if i > 0 {
                f.write_str(",")?;
            }
            match last - first {
                0 => write!(f, "{first}")?,
                _ => write!(f, "{first}-{last}")?,
            }
        }
        Ok(())
    }
}

//! Access patterns: the next block, and whether it is read or written.

use std::fmt;
use std::str::FromStr;

use crate::client::Kind;

/// Marsaglia's xorshift64: three shifts per number, so that drawing one does not show in a measurement.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that it never leaves.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the product: no division, and no bias that matters here.
        let product = u128::from(self.0) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }
}

/// A load's pattern, under the names that fio has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// Any block at any time, else one after the other; each queue begins at its own part of the disk.
    pub is_random: bool,
    /// Of each hundred requests so many are reads, the others writes.
    pub read_percent: u8,
}

impl Pattern {
    /// Whether the disk's data changes.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.read_percent < 100
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = || {
            "randread, randwrite, randrw, read, write or rw is expected; randrw and rw may say how many percent are \
             reads, as in randrw:70"
                .to_owned()
        };
        let (is_random, name) = match text.strip_prefix("rand") {
            Some(name) => (true, name),
            None => (false, text),
        };
        let read_percent = match name.split_once(':').unwrap_or((name, "50")) {
            ("rw", percent) => percent.parse().map_err(|_| expected())?,
            _ if name == "read" => 100,
            _ if name == "write" => 0,
            _ => return Err(expected()),
        };
        (read_percent <= 100)
            .then_some(Pattern {
                is_random,
                read_percent,
            })
            .ok_or_else(expected)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = if self.is_random { "rand" } else { "" };
        match self.read_percent {
            100 => write!(f, "{random}read"),
            0 => write!(f, "{random}write"),
            percent => write!(f, "{random}rw:{percent}"),
        }
    }
}

/// A pattern on its way over a disk.
#[derive(Clone, Debug)]
pub struct Walk {
    pattern: Pattern,
    random: Random,
    blocks: u64,
    next: u64,
}

impl Walk {
    /// Over `blocks` blocks, which are not 0; number `index` of `count` walks.
    #[must_use]
    pub fn new(pattern: Pattern, blocks: u64, index: u16, count: u16) -> Self {
        Walk {
            pattern,
            random: Random::new(blocks + u64::from(index)),
            blocks,
            next: blocks / u64::from(count.max(1)) * u64::from(index) % blocks,
        }
    }

    /// The next block, and what is done with it.
    #[inline]
    pub fn step(&mut self) -> (u64, Kind) {
        let block = match self.pattern.is_random {
            true => self.random.below(self.blocks),
            false => {
                let next = (self.next + 1) % self.blocks;
                std::mem::replace(&mut self.next, next)
            }
        };
        let kind = match self.pattern.read_percent {
            100 => Kind::Read,
            0 => Kind::Write,
            percent if self.random.below(100) < u64::from(percent) => Kind::Read,
            _ => Kind::Write,
        };
        (block, kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_pattern_reads_as_often_as_it_says() {
        for (pattern, reads) in [
            ("randread", 1000..=1000),
            ("randrw:90", 850..=950),
            ("rw", 450..=550),
            ("write", 0..=0),
        ] {
            let mut walk = Walk::new(pattern.parse().unwrap(), 64, 0, 1);
            let kinds = (0..1000).map(|_| walk.step().1);
            let count = kinds.filter(|kind| matches!(kind, Kind::Read)).count();
            assert!(reads.contains(&count), "{pattern}: {count}");
        }
    }
}

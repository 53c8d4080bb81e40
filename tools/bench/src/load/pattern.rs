//! Access patterns: the next block, and whether it is read or written.

use std::fmt;
use std::str::FromStr;

use crate::client::Kind;
use crate::random::Random;

/// How a mixed load is divided unless it says so.
const DEFAULT_READ_PERCENT: u8 = 50;

/// In what order blocks are taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Any block at any time.
    Random,
    /// One after the other; each queue begins at its own part of the disk.
    Sequential,
}

/// A load's pattern, under the names that fio has for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pattern {
    /// In what order.
    pub order: Order,
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
        use Order::{Random, Sequential};
        let (name, percent) = match text.split_once(':') {
            Some((name, percent)) => (name, Some(percent)),
            None => (text, None),
        };
        let (order, reads) = match name {
            "randread" => (Random, Some(100)),
            "randwrite" => (Random, Some(0)),
            "randrw" => (Random, None),
            "read" => (Sequential, Some(100)),
            "write" => (Sequential, Some(0)),
            "rw" | "readwrite" => (Sequential, None),
            _ => {
                return Err(
                    "randread, randwrite, randrw, read, write or rw is expected; randrw and rw \
                     may say how many percent are reads, as in randrw:70"
                        .to_owned(),
                );
            }
        };
        let read_percent = match (reads, percent) {
            (Some(reads), None) => reads,
            (Some(_), Some(_)) => {
                return Err(format!("{name} is not mixed: nothing may follow it"));
            }
            (None, None) => DEFAULT_READ_PERCENT,
            (None, Some(percent)) => match percent.parse() {
                Ok(percent @ 0..=100) => percent,
                _ => return Err("a percentage of reads from 0 to 100 is expected".to_owned()),
            },
        };
        Ok(Pattern {
            order,
            read_percent,
        })
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let random = if self.order == Order::Random {
            "rand"
        } else {
            ""
        };
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
        let block = match self.pattern.order {
            Order::Random => self.random.below(self.blocks),
            Order::Sequential => {
                let block = self.next;
                self.next = if block + 1 == self.blocks {
                    0
                } else {
                    block + 1
                };
                block
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

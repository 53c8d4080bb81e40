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

    /// Whether it has reads and writes.
    #[must_use]
    pub fn is_mixed(&self) -> bool {
        (1..100).contains(&self.read_percent)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pattern_names_are_those_of_fio() {
        for (text, order, read_percent, shown) in [
            ("randread", Order::Random, 100, "randread"),
            ("randwrite", Order::Random, 0, "randwrite"),
            ("randrw", Order::Random, 50, "randrw:50"),
            ("randrw:70", Order::Random, 70, "randrw:70"),
            ("read", Order::Sequential, 100, "read"),
            ("write", Order::Sequential, 0, "write"),
            ("rw:1", Order::Sequential, 1, "rw:1"),
        ] {
            let pattern: Pattern = text.parse().unwrap();
            assert_eq!(
                pattern,
                Pattern {
                    order,
                    read_percent
                }
            );
            assert_eq!(pattern.to_string(), shown);
        }
        for wrong in ["", "random", "randread:70", "randrw:101", "randrw:", "rw:x"] {
            assert!(wrong.parse::<Pattern>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sequential_walk_visits_all_blocks_from_its_part_on() {
        let walk = |index| Walk::new("read".parse().unwrap(), 10, index, 4);
        let blocks = |mut walk: Walk| (0..10).map(|_| walk.step().0).collect::<Vec<_>>();
        assert_eq!(blocks(walk(0)), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(blocks(walk(3)), [6, 7, 8, 9, 0, 1, 2, 3, 4, 5]);
    }

    #[test]
    fn mixed_walk_has_its_share_of_reads() {
        let mut walk = Walk::new("randrw:70".parse().unwrap(), 1000, 0, 1);
        let mut reads = 0;
        let mut seen = vec![false; 1000];
        for _ in 0..100_000 {
            let (block, kind) = walk.step();
            reads += u32::from(kind == Kind::Read);
            seen[usize::try_from(block).unwrap()] = true;
        }
        assert!((69_000..71_000).contains(&reads), "{reads}");
        assert!(seen.iter().all(|&seen| seen));
    }
}

//! Valid contents of a disk: for each block the last completed write, or one of the writes still in flight.
//!
//! Writes of one block may be under way together, and then it is undefined which of them comes last. So a value may be found
//! until another write is answered that was asked for after it had been answered.

use super::random::Random;

/// Bytes of a block.
pub const BLOCK: usize = 4096;

/// The order of what is asked and answered.
pub type Moment = u64;

/// A value that was written.
#[derive(Debug)]
struct Version {
    value: u64,
    asked: Moment,
    answered: Option<Moment>,
    /// From then on it cannot be found any more.
    replaced: Option<Moment>,
}

#[derive(Debug, Default)]
struct Block {
    versions: Vec<Version>,
    readers: u32,
}

/// A write, for tests that compare copies of the disk.
#[derive(Clone, Copy, Debug)]
pub struct Write {
    /// The block.
    pub block: usize,
    /// What it holds then.
    pub value: u64,
    /// When it was asked for.
    pub asked: Moment,
    /// When it was answered.
    pub answered: Option<Moment>,
}

/// What each block may hold.
#[derive(Debug)]
pub struct Blocks {
    /// All writes in the order in which they were asked for, if they are recorded. The value of the first one is 1.
    pub history: Option<Vec<Write>>,
    blocks: Vec<Block>,
    now: Moment,
    last_value: u64,
}

impl Blocks {
    /// An empty disk.
    pub fn new(count: u64) -> Self {
        let zeroes = || Version {
            value: 0,
            asked: 0,
            answered: Some(0),
            replaced: None,
        };
        let block = |_| Block {
            versions: vec![zeroes()],
            readers: 0,
        };
        Blocks {
            blocks: (0..count).map(block).collect(),
            history: None,
            now: 0,
            last_value: 0,
        }
    }

    /// One of them.
    pub fn any(&self, random: &mut Random) -> usize {
        random.below(self.blocks.len())
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.blocks.len()
    }

    fn moment(&mut self) -> Moment {
        self.now += 1;
        self.now
    }

    /// A write is asked for; returns what it writes.
    pub fn write_asked(&mut self, block: usize) -> u64 {
        self.last_value += 1;
        let (asked, value) = (self.moment(), self.last_value);
        self.blocks[block].versions.push(Version {
            value,
            asked,
            answered: None,
            replaced: None,
        });
        if let Some(history) = &mut self.history {
            history.push(Write {
                block,
                value,
                asked,
                answered: None,
            });
        }
        value
    }

    /// The last moment.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now
    }

    /// A write is answered. Panics if it was before.
    pub fn write_answered(&mut self, block: usize, value: u64) {
        let now = self.moment();
        if let Some(history) = &mut self.history {
            history[usize::try_from(value - 1).unwrap()].answered = Some(now);
        }
        let Block { versions, readers } = &mut self.blocks[block];
        let known = versions.iter_mut().find(|version| version.value == value);
        let known = known.expect("it was asked for");
        assert_eq!(known.answered.replace(now), None, "answered once");
        let asked = known.asked;
        for version in versions.iter_mut() {
            if version.answered.is_some_and(|answered| answered < asked) {
                version.replaced.get_or_insert(now);
            }
        }
        if *readers == 0 {
            versions.retain(|version| version.replaced.is_none());
        }
    }

    /// A read is asked for; returns when that is.
    pub fn read_asked(&mut self, block: usize) -> Moment {
        self.blocks[block].readers += 1;
        self.moment()
    }

    /// A read has found this. Panics if that cannot be.
    pub fn read_answered(&mut self, block: usize, asked: Moment, found: &[u8]) {
        let Block { versions, readers } = &mut self.blocks[block];
        *readers -= 1;
        let value = u64::from_le_bytes(found[..8].try_into().unwrap());
        let may_be = versions.iter().any(|version| {
            version.value == value && version.replaced.is_none_or(|replaced| replaced > asked)
        });
        let values: Vec<_> = versions.iter().map(|version| version.value).collect();
        assert!(
            may_be,
            "block {block} holds {value}: expected one of {values:?}"
        );
        assert!(
            found == bytes(block, value),
            "block {block} is torn: it begins with {value}"
        );
        if *readers == 0 {
            versions.retain(|version| version.replaced.is_none());
        }
    }
}

/// A block that was written with this value; 0 if it was not.
#[must_use]
pub fn bytes(block: usize, value: u64) -> Vec<u8> {
    if value == 0 {
        return vec![0; BLOCK];
    }
    let mixed = value.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ block as u64;
    let word = |at: u64| {
        if at == 0 {
            value
        } else {
            mixed.wrapping_add(at)
        }
    };
    (0..BLOCK as u64 / 8)
        .flat_map(|at| word(at).to_le_bytes())
        .collect()
}

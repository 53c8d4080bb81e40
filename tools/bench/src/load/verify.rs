//! Stamped data for verification, and the plans that write and check it.
//!
//! Each sector is filled with its number, how often it was written, and the seed of the run, and
//! with words that follow from these three: whatever a server mixes up, loses or invents shows. A
//! block is never written and read, or written twice, at the same time, so that there is always
//! exactly one right answer.

use std::sync::atomic::{AtomicU64, Ordering};

use super::pattern::Walk;
use super::plan::Plan;
use crate::client::{Commands, Kind, SECTOR_BYTES};
use crate::error::{Error, Result};

const SECTOR_WORDS: usize = SECTOR_BYTES as usize / 8;
/// The first word: "blkplane".
const MAGIC: u64 = u64::from_be_bytes(*b"blkplane");
const SEED_WORD: usize = 1;
const NUMBER_WORD: usize = 2;
const GENERATION_WORD: usize = 3;

/// How often a block was written; the highest bit: a request for it is in flight.
const IN_FLIGHT: u32 = 1 << 31;
/// Never written by this run: what it holds is not known.
const UNKNOWN: u32 = 0;
/// Blocks that are tried before a slot is given up for now: others are all in flight.
const TRIES: u32 = 1024;

/// What the `index`-th word of a sector is.
fn word(seed: u64, sector: u64, generation: u32, index: usize) -> u64 {
    match index {
        0 => MAGIC,
        SEED_WORD => seed,
        NUMBER_WORD => sector,
        GENERATION_WORD => u64::from(generation),
        _ => {
            // Steele, Lea, Flood: SplitMix's finalizer, so that neighbours have nothing in common.
            let mut word =
                seed ^ sector.rotate_left(32) ^ u64::from(generation) << 8 ^ index as u64;
            word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            word ^ word >> 31
        }
    }
}

/// Fills `data` for the block that begins at `sector`.
fn fill(data: &[AtomicU64], seed: u64, sector: u64, generation: u32) {
    for (sector, words) in (sector..).zip(data.chunks(SECTOR_WORDS)) {
        for (index, cell) in words.iter().enumerate() {
            let word = word(seed, sector, generation, index);
            cell.store(word.to_le(), Ordering::Relaxed);
        }
    }
}

/// Compares `data` with what was written to the block that begins at `sector`.
fn check(data: &[AtomicU64], seed: u64, sector: u64, generation: u32) -> Result<()> {
    for (sector, words) in (sector..).zip(data.chunks(SECTOR_WORDS)) {
        for (index, cell) in words.iter().enumerate() {
            let got = u64::from_le(cell.load(Ordering::Relaxed));
            let expected = word(seed, sector, generation, index);
            if got != expected {
                return Err(mismatch(words, seed, sector, generation, index));
            }
        }
    }
    Ok(())
}

#[cold]
fn mismatch(words: &[AtomicU64], seed: u64, sector: u64, generation: u32, index: usize) -> Error {
    let at = |index: usize| u64::from_le(words[index].load(Ordering::Relaxed));
    let (expected, got) = (word(seed, sector, generation, index), at(index));
    // Words are written in the order of their bytes: the first that differs is the lowest.
    let byte = (expected ^ got).trailing_zeros() / 8;
    let shown = |word: u64| {
        word.to_le_bytes()
            .map(|byte| format!("{byte:02x}"))
            .join(" ")
    };
    let differing = (0..SECTOR_WORDS)
        .filter(|&index| at(index) != word(seed, sector, generation, index))
        .count();
    let whose = match at(0) == MAGIC {
        true => format!(
            "it claims to be sector {}, generation {}, of a run with seed {:#x}",
            at(NUMBER_WORD),
            at(GENERATION_WORD),
            at(SEED_WORD)
        ),
        false => "it does not look like a sector of such a run".to_owned(),
    };
    let offset = sector * u64::from(SECTOR_BYTES) + index as u64 * 8 + u64::from(byte);
    Error::Mismatch(format!(
        "byte {offset} of it (sector {sector}, which was written {generation} times by the run with seed {seed:#x})\n  \
         expected {}\n  got      {}\n  {differing} of {SECTOR_WORDS} words of the sector differ; {whose}",
        shown(expected),
        shown(got)
    ))
}

/// A part of the disk that one queue has for itself, and what it wrote there.
#[derive(Clone, Debug)]
pub(crate) struct Territory {
    seed: u64,
    first_block: u64,
    sectors_per_block: u64,
    /// Of each block, from `first_block` on.
    generations: Vec<u32>,
}

impl Territory {
    /// `blocks` blocks from `first_block` on.
    pub fn new(seed: u64, first_block: u64, blocks: u64, block_bytes: u32) -> Self {
        Territory {
            seed,
            first_block,
            sectors_per_block: u64::from(block_bytes / SECTOR_BYTES),
            generations: vec![UNKNOWN; usize::try_from(blocks).unwrap_or(0)],
        }
    }

    fn sector(&self, index: usize) -> u64 {
        (self.first_block + index as u64) * self.sectors_per_block
    }

    fn check(&self, index: usize, data: &[AtomicU64]) -> Result<()> {
        let generation = self.generations[index] & !IN_FLIGHT;
        if generation == UNKNOWN {
            return Ok(());
        }
        check(data, self.seed, self.sector(index), generation)
    }
}

/// Writes and reads as a walk says, and looks at each block that comes back.
pub(crate) struct WriteAndCheck {
    walk: Walk,
    pub territory: Territory,
    /// The block of each slot.
    blocks: Vec<usize>,
    /// Writes made.
    pub writes: u64,
    /// Blocks that were read and compared.
    pub checked: u64,
}

impl WriteAndCheck {
    /// `walk` goes over the blocks of the territory.
    pub fn new(walk: Walk, territory: Territory, depth: u16) -> Self {
        WriteAndCheck {
            walk,
            territory,
            blocks: vec![0; usize::from(depth)],
            writes: 0,
            checked: 0,
        }
    }
}

impl Plan for WriteAndCheck {
    fn next(&mut self, slot: usize, requests: &impl Commands) -> Option<(u64, Kind)> {
        for _ in 0..TRIES {
            let (block, kind) = self.walk.step();
            let index = usize::try_from(block).ok()?;
            let generation = self.territory.generations[index];
            if generation & IN_FLIGHT != 0 {
                continue;
            }
            let sector = self.territory.sector(index);
            let data = requests.data(slot);
            let generation = match kind {
                Kind::Write => {
                    // After 2^31 writes to one block the first generation comes again.
                    let generation = match generation + 1 {
                        IN_FLIGHT => UNKNOWN + 1,
                        next => next,
                    };
                    fill(data, self.territory.seed, sector, generation);
                    generation
                }
                _ => {
                    // What is not read must not look as if it had been.
                    fill(data, !self.territory.seed, sector, generation);
                    generation
                }
            };
            self.territory.generations[index] = generation | IN_FLIGHT;
            self.blocks[slot] = index;
            return Some((self.territory.first_block + block, kind));
        }
        None
    }

    fn done(&mut self, slot: usize, requests: &impl Commands) -> Result<()> {
        let index = self.blocks[slot];
        if requests.kind(slot) == Kind::Read {
            self.territory.check(index, requests.data(slot))?;
            self.checked += u64::from(self.territory.generations[index] & !IN_FLIGHT != UNKNOWN);
        } else {
            self.writes += 1;
        }
        self.territory.generations[index] &= !IN_FLIGHT;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }
}

/// Reads back all that was written.
pub(crate) struct ReadBack {
    pub territory: Territory,
    blocks: Vec<usize>,
    next: usize,
    /// Blocks that were read and compared.
    pub checked: u64,
}

impl ReadBack {
    pub fn new(territory: Territory, depth: u16) -> Self {
        ReadBack {
            territory,
            blocks: vec![0; usize::from(depth)],
            next: 0,
            checked: 0,
        }
    }
}

impl Plan for ReadBack {
    fn next(&mut self, slot: usize, requests: &impl Commands) -> Option<(u64, Kind)> {
        let generations = &self.territory.generations;
        let rest = generations.get(self.next..)?;
        let index = self.next + rest.iter().position(|&generation| generation != UNKNOWN)?;
        self.next = index + 1;
        self.blocks[slot] = index;
        let sector = self.territory.sector(index);
        fill(requests.data(slot), !self.territory.seed, sector, 0);
        Some((self.territory.first_block + index as u64, Kind::Read))
    }

    fn done(&mut self, slot: usize, requests: &impl Commands) -> Result<()> {
        self.territory
            .check(self.blocks[slot], requests.data(slot))?;
        self.checked += 1;
        Ok(())
    }

    fn is_done(&self) -> bool {
        let rest = self.territory.generations.get(self.next..).unwrap_or(&[]);
        rest.iter().all(|&generation| generation == UNKNOWN)
    }
}

/// One flush, or nothing.
pub(crate) struct Flush {
    sent: bool,
}

impl Flush {
    pub fn new(wanted: bool) -> Self {
        Flush { sent: !wanted }
    }
}

impl Plan for Flush {
    fn next(&mut self, _slot: usize, _requests: &impl Commands) -> Option<(u64, Kind)> {
        (!std::mem::replace(&mut self.sent, true)).then_some((0, Kind::Flush))
    }

    fn done(&mut self, _slot: usize, _requests: &impl Commands) -> Result<()> {
        Ok(())
    }

    fn is_done(&self) -> bool {
        self.sent
    }
}

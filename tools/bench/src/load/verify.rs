//! Stamped data for verification, and the plans that write and check it.
//!
//! Each sector is filled with its number, how often it was written, and the seed of the run, and
//! with words that follow from these three: whatever a server mixes up, loses or invents shows. A
//! block is never written and read, or written twice, at the same time, so that there is always
//! exactly one right answer.

use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::pattern::Walk;
use super::plan::Plan;
use super::started_server::StartedServer;
use super::{Load, Times, drive};
use crate::client::{Commands, Kind, SECTOR_BYTES};
use crate::error::{Error, Result};

const SECTOR_WORDS: usize = SECTOR_BYTES as usize / 8;
/// How often a block was written; the highest bit: a request for it is in flight.
const IN_FLIGHT: u32 = 1 << 31;
/// Never written by this run: what it holds is not known.
const UNKNOWN: u32 = 0;
/// Blocks that are tried before a slot is given up for now: others are all in flight.
const TRIES: u32 = 1024;

/// What `verify` has seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Verified {
    /// Writes made.
    pub writes: u64,
    /// Blocks compared while others were written.
    pub checked: u64,
    /// Blocks read back at the end: all that were written.
    pub read_back: u64,
}

/// Writes blocks that know where they belong, checks those that it reads meanwhile, and reads back
/// all at the end, each through another queue than the one that wrote it, behind a flush of one of them. All data on the disk, or
/// the part of it that the load goes over, is lost.
///
/// # Errors
/// [`Error::Mismatch`] for the first difference; others as for [`super::measure`].
pub fn verify(stream: UnixStream, load: &Load, time: Duration, seed: u64) -> Result<Verified> {
    const NEVER: Duration = Duration::from_secs(1 << 30);
    let server = StartedServer::new(stream, load)?;
    let blocks = server.blocks / u64::from(load.queues);
    if blocks < 2 * u64::from(load.depth) {
        return Err(Error::Unsuitable(format!(
            "{blocks} blocks per queue are too few for {} requests in flight",
            load.depth
        )));
    }
    let plan = |index| {
        let walk = Walk::new(load.pattern, blocks, index, load.queues);
        WriteAndCheck {
            walk,
            territory: Territory::new(seed, blocks * u64::from(index), blocks, load),
            writes: 0,
        }
    };
    let socket = server.session.socket();
    let times = |time| Times {
        warm_up: Duration::ZERO,
        time,
        repetitions: 1,
    };
    let mut drivers = server.drivers(plan);
    drive(&mut drivers, socket, load, times(time), None)?;
    let mut verified = Verified::default();
    let (mut queues, mut territories) = (Vec::new(), Vec::new());
    for driver in drivers {
        let (driver, plan) = driver.exchange(ReadBack::default());
        verified.writes += plan.writes;
        verified.checked += plan.territory.checked;
        territories.push(plan.territory);
        queues.push(driver);
    }
    // Each is read by a queue that did not write it; the first of them flushes before.
    territories.rotate_left(1);
    let mut flushes = server.session.agreed.flush();
    let reading = queues.into_iter().zip(territories);
    let mut reading: Vec<_> = reading
        .map(|(driver, territory)| {
            let flushes = std::mem::take(&mut flushes);
            let territory = Territory {
                checked: 0,
                ..territory
            };
            let plan = ReadBack {
                territory,
                next: 0,
                flushes,
            };
            driver.exchange(plan).0
        })
        .collect();
    drive(&mut reading, socket, load, times(NEVER), None)?;
    let read_back = reading.iter().map(|driver| driver.plan().territory.checked);
    verified.read_back = read_back.sum();
    drop(reading);
    server.stop()?;
    Ok(verified)
}

/// What the `index`-th word of a sector is.
fn word(seed: u64, sector: u64, generation: u32, index: usize) -> u64 {
    match index {
        0 => u64::from_be_bytes(*b"blkplane"),
        1 => seed,
        2 => sector,
        3 => u64::from(generation),
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
            if got != word(seed, sector, generation, index) {
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
    let offset = sector * u64::from(SECTOR_BYTES) + index as u64 * 8 + u64::from(byte);
    let shown = |word: u64| format!("{:02x?}", word.to_le_bytes());
    let claims = match at(0) == word(0, 0, 0, 0) {
        true => format!("sector {}, generation {}, seed {:#x}", at(2), at(3), at(1)),
        false => "nothing that such a run writes".to_owned(),
    };
    Error::Mismatch(format!(
        "byte {offset} of it (sector {sector}, generation {generation}, seed {seed:#x}): expected {}, got {}; the sector \
         claims to be {claims}",
        shown(expected),
        shown(got)
    ))
}

/// A part of the disk that one queue has for itself, and what it wrote there.
#[derive(Default)]
struct Territory {
    seed: u64,
    first_block: u64,
    sectors_per_block: u64,
    /// Of each block, from `first_block` on.
    generations: Vec<u32>,
    /// The block of each slot.
    blocks: Vec<usize>,
    /// Blocks that were read and compared.
    checked: u64,
}

impl Territory {
    /// `blocks` blocks from `first_block` on.
    fn new(seed: u64, first_block: u64, blocks: u64, load: &Load) -> Self {
        Territory {
            seed,
            first_block,
            sectors_per_block: u64::from(load.block_bytes / SECTOR_BYTES),
            generations: vec![UNKNOWN; usize::try_from(blocks).unwrap_or(0)],
            blocks: vec![0; usize::from(load.depth)],
            checked: 0,
        }
    }

    fn sector(&self, index: usize) -> u64 {
        (self.first_block + index as u64) * self.sectors_per_block
    }

    /// `slot` reads a block: what is not read must not look as if it had been.
    fn begin_read(&mut self, slot: usize, index: usize, requests: &impl Commands) -> (u64, Kind) {
        let generation = self.generations[index] & !IN_FLIGHT;
        fill(
            requests.data(slot),
            !self.seed,
            self.sector(index),
            generation,
        );
        self.blocks[slot] = index;
        (self.first_block + index as u64, Kind::Read)
    }

    fn end_read(&mut self, slot: usize, requests: &impl Commands) -> Result<()> {
        let index = self.blocks[slot];
        let generation = self.generations[index] & !IN_FLIGHT;
        if generation == UNKNOWN {
            return Ok(());
        }
        self.checked += 1;
        check(
            requests.data(slot),
            self.seed,
            self.sector(index),
            generation,
        )
    }
}

/// Writes and reads as a walk says, and looks at each block that comes back.
struct WriteAndCheck {
    walk: Walk,
    territory: Territory,
    writes: u64,
}

impl Plan for WriteAndCheck {
    fn next(&mut self, slot: usize, requests: &impl Commands) -> Option<(u64, Kind)> {
        let territory = &mut self.territory;
        for _ in 0..TRIES {
            let (block, kind) = self.walk.step();
            let index = usize::try_from(block).ok()?;
            let generation = &mut territory.generations[index];
            if *generation & IN_FLIGHT != 0 {
                continue;
            }
            // After 2^31 writes to one block the first generation comes again.
            let next = (*generation + 1) % IN_FLIGHT;
            let written = if kind == Kind::Write {
                next.max(UNKNOWN + 1)
            } else {
                *generation
            };
            *generation = written | IN_FLIGHT;
            let aim = territory.begin_read(slot, index, requests);
            if kind == Kind::Write {
                let sector = territory.sector(index);
                fill(requests.data(slot), territory.seed, sector, written);
            }
            return Some((aim.0, kind));
        }
        None
    }

    fn done(&mut self, slot: usize, requests: &impl Commands) -> Result<()> {
        let territory = &mut self.territory;
        match requests.kind(slot) {
            Kind::Read => territory.end_read(slot, requests)?,
            _ => self.writes += 1,
        }
        territory.generations[territory.blocks[slot]] &= !IN_FLIGHT;
        Ok(())
    }

    fn is_done(&self) -> bool {
        false
    }
}

/// Reads back all that was written, behind a flush if there is to be one.
#[derive(Default)]
struct ReadBack {
    territory: Territory,
    next: usize,
    flushes: bool,
}

impl Plan for ReadBack {
    fn next(&mut self, slot: usize, requests: &impl Commands) -> Option<(u64, Kind)> {
        if std::mem::take(&mut self.flushes) {
            return Some((0, Kind::Flush));
        }
        let rest = self.territory.generations.get(self.next..)?;
        let index = self.next + rest.iter().position(|&generation| generation != UNKNOWN)?;
        self.next = index + 1;
        Some(self.territory.begin_read(slot, index, requests))
    }

    fn done(&mut self, slot: usize, requests: &impl Commands) -> Result<()> {
        match requests.kind(slot) {
            Kind::Flush => Ok(()),
            _ => self.territory.end_read(slot, requests),
        }
    }

    fn is_done(&self) -> bool {
        let mut rest = self.territory.generations.iter().skip(self.next);
        !self.flushes && rest.all(|&generation| generation == UNKNOWN)
    }
}

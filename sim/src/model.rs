//! Model of the disk: the contents that it may hold, as far as a guest can know. It checks every read and every crash.
//!
//! Each sector has a list of what may be in it. A write is in the list from the moment that it is asked for: until it is
//! answered it may have happened or not, also in parts. Once it is answered, what was answered before it was asked for is
//! *gone*: no read that begins from now on may see that. It may come back with a power failure, until a flush that was
//! asked for later has succeeded (or the write itself was to be stable): then it is *buried*.
//!
//! Two writes that were under way at the same time have no order, and either may win.

use std::ops::Range;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
/// What is read and written here is made of words, and no transfer ends within one.
pub const WORD: usize = 8;
/// Words of a sector.
pub const WORDS: usize = SECTOR / WORD;

/// Names a write; 0 are zeroes.
pub type Value = u32;

/// What a write of these sectors puts there.
#[must_use]
pub fn data(id: u32, sector: u64, sectors: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    for sector in sector..sector + sectors {
        for index in 0..WORDS {
            bytes.extend_from_slice(&word(id, sector, index).to_le_bytes());
        }
    }
    bytes
}

/// What a write puts into a word of a sector.
#[must_use]
pub fn word(value: Value, sector: u64, index: usize) -> u64 {
    match value {
        0 => 0,
        value => u64::from(value) << 32 | (sector & 0xffff) << 8 | index as u64,
    }
}

/// One thing that a sector may hold.
#[derive(Clone, Debug)]
struct Candidate {
    value: Value,
    request: u32,
    asked: u64,
    answered: Option<u64>,
    /// It has happened for sure once it is answered; else it may never have.
    certain: bool,
    gone: Option<u64>,
    buried: bool,
}

impl Candidate {
    /// It was there before the other was asked for.
    fn precedes(&self, other: &Candidate) -> bool {
        self.answered.is_some_and(|answered| answered < other.asked)
    }
}

/// How a request ended that may have changed something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// It has happened, and survives a flush.
    Done,
    /// It has happened, and survives everything.
    Stable,
    /// It may have happened, in part or not at all.
    Unknown,
}

/// The disk as a guest knows it.
#[derive(Clone, Debug)]
pub struct Model {
    sectors: Vec<Vec<Candidate>>,
}

fn zeroes(now: u64) -> Candidate {
    Candidate {
        value: 0,
        request: 0,
        asked: now,
        answered: Some(now),
        certain: true,
        gone: None,
        buried: false,
    }
}

impl Model {
    /// A disk of zeroes.
    #[must_use]
    pub fn new(sectors: usize) -> Self {
        Model {
            sectors: vec![vec![zeroes(0)]; sectors],
        }
    }

    fn range(&mut self, first: u64, count: u64) -> impl Iterator<Item = &mut Vec<Candidate>> {
        let first = usize::try_from(first).unwrap_or(usize::MAX);
        let count = usize::try_from(count).unwrap_or(usize::MAX);
        self.sectors.iter_mut().skip(first).take(count)
    }

    /// A request was asked for that makes these sectors `value`; or perhaps not, if that is not `certain`.
    pub fn asked(
        &mut self,
        request: u32,
        value: Value,
        certain: bool,
        (first, count): (u64, u64),
        now: u64,
    ) {
        for sector in self.range(first, count) {
            sector.push(Candidate {
                value,
                request,
                asked: now,
                answered: None,
                certain,
                gone: None,
                buried: false,
            });
        }
    }

    /// It was answered, or its guest is gone and nothing will come of it any more.
    pub fn ended(&mut self, request: u32, (first, count): (u64, u64), how: Ended, now: u64) {
        for sector in self.range(first, count) {
            let mine = |candidate: &&mut Candidate| candidate.request == request;
            let Some(candidate) = sector.iter_mut().find(mine) else {
                continue;
            };
            candidate.answered = Some(now);
            candidate.certain &= how != Ended::Unknown;
            if !candidate.certain {
                continue;
            }
            let this = candidate.clone();
            for other in sector.iter_mut().filter(|other| other.precedes(&this)) {
                other.gone.get_or_insert(now);
                other.buried |= how == Ended::Stable;
            }
        }
    }

    /// Whether something that may change these sectors is under way.
    #[must_use]
    pub fn is_changing(&self, sectors: Range<u64>) -> bool {
        let mut indices = sectors.filter_map(|sector| usize::try_from(sector).ok());
        indices.any(|index| {
            let candidates = self.sectors.get(index).into_iter().flatten();
            candidates
                .into_iter()
                .any(|candidate| candidate.answered.is_none())
        })
    }

    /// A flush that was `asked` for then has succeeded.
    pub fn flushed(&mut self, asked: u64) {
        for sector in &mut self.sectors {
            let stable: Vec<_> = sector
                .iter()
                .filter(|candidate| {
                    candidate.certain && candidate.answered.is_some_and(|at| at < asked)
                })
                .cloned()
                .collect();
            for other in sector.iter_mut() {
                other.buried |= stable.iter().any(|stable| other.precedes(stable));
            }
        }
    }

    /// The host has lost power, and with it all that was not stable; and all guests are gone.
    pub fn power_failed(&mut self, now: u64) {
        for sector in &mut self.sectors {
            sector.retain(|candidate| !candidate.buried);
            for candidate in sector.iter_mut() {
                candidate.answered.get_or_insert(now);
                candidate.gone = None;
                candidate.certain = false;
            }
        }
    }

    /// The disk has another size; what it gains is zeroes. What is under way may still happen there.
    pub fn resized(&mut self, from: u64, now: u64) {
        for sector in self.range(from, u64::MAX) {
            // A read that is under way may still have found it.
            for candidate in sector
                .iter_mut()
                .filter(|candidate| candidate.answered.is_some())
            {
                candidate.gone.get_or_insert(now);
                candidate.buried = true;
            }
            sector.push(zeroes(now));
        }
    }

    /// Whether a read that was asked for then may find this in a sector: each word for itself.
    ///
    /// # Errors
    /// What was found, and what was expected.
    pub fn check(&self, sector: u64, bytes: &[u8], asked: u64) -> Result<(), String> {
        let index = usize::try_from(sector).unwrap_or(usize::MAX);
        check_words(sector, bytes, &values(&self.sectors[index], asked))
    }

    /// What the disk may hold at this moment: what is under way may be in it or not.
    #[must_use]
    pub fn moment(&self) -> Moment {
        let sectors = self.sectors.iter();
        Moment {
            sectors: sectors.map(|sector| values(sector, u64::MAX)).collect(),
        }
    }
}

/// The disk at one moment, as far as a guest can know.
#[derive(Clone, Debug)]
pub struct Moment {
    sectors: Vec<Vec<Value>>,
}

impl Moment {
    /// Whether a copy of the disk as of this moment may have this in a sector: each word for itself.
    ///
    /// # Errors
    /// What was found, and what was expected.
    pub fn check(&self, sector: u64, bytes: &[u8]) -> Result<(), String> {
        let index = usize::try_from(sector).unwrap_or(usize::MAX);
        check_words(sector, bytes, &self.sectors[index])
    }
}

/// What a read that is asked for then may find in a sector.
fn values(sector: &[Candidate], asked: u64) -> Vec<Value> {
    let there = sector
        .iter()
        .filter(|candidate| candidate.gone.is_none_or(|gone| gone > asked));
    there.map(|candidate| candidate.value).collect()
}

fn check_words(sector: u64, bytes: &[u8], allowed: &[Value]) -> Result<(), String> {
    for (index, found) in bytes.chunks_exact(WORD).enumerate() {
        let found = u64::from_le_bytes(found.try_into().expect("a word"));
        if !allowed
            .iter()
            .any(|value| word(*value, sector, index) == found)
        {
            let names: Vec<_> = allowed.iter().map(|value| named(*value)).collect();
            return Err(format!(
                "sector {sector} holds {} at byte {}; it may hold {}",
                unexpected(found, sector, index),
                index * WORD,
                names.join(" or "),
            ));
        }
    }
    Ok(())
}

fn named(value: Value) -> String {
    match value {
        0 => "zeroes".to_owned(),
        value => format!("the data of #{value}"),
    }
}

/// What a word is, for people.
fn unexpected(found: u64, sector: u64, index: usize) -> String {
    let value = Value::try_from(found >> 32).unwrap_or(0);
    if found == word(value, sector, index) {
        named(value)
    } else {
        format!("{found:#018x}, which was never written there")
    }
}

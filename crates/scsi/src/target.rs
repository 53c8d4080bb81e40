//! A target: logical units by their numbers, which come and go.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::nexus::{Nexus, Ports};
use crate::unit::Unit;

/// Numbers that a logical unit can have: up to here.
pub const MAX_LUN: u16 = 16_383;

/// What is behind the numbers at some moment, sorted.
type Map = Vec<(u16, Arc<Unit>)>;

struct Inner {
    map: Arc<Map>,
    initiators: Vec<(Nexus, Ports)>,
}

/// A target. Adapters look at it through a [`View`] each, which needs no lock.
pub struct Target {
    version: AtomicU64,
    inner: Mutex<Inner>,
}

/// There is a unit with that number already, or the number is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddError {
    /// Another unit has it.
    #[error("LUN {0} is in use")]
    InUse(u16),
    /// Too large.
    #[error("LUN {0}: the largest is {MAX_LUN}")]
    TooLarge(u16),
}

impl Default for Target {
    fn default() -> Self {
        Target {
            version: AtomicU64::new(0),
            inner: Mutex::new(Inner {
                map: Arc::new(Map::new()),
                initiators: Vec::new(),
            }),
        }
    }
}

impl Target {
    /// Without units.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    fn change<R>(&self, change: impl FnOnce(&mut Inner) -> R) -> R {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut inner);
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// Adds a unit. The initiators hear of it from those that were there.
    ///
    /// # Errors
    /// [`AddError`].
    pub fn add(&self, lun: u16, unit: Arc<Unit>) -> Result<(), AddError> {
        if lun > MAX_LUN {
            return Err(AddError::TooLarge(lun));
        }
        self.change(|inner| {
            let at = match inner.map.binary_search_by_key(&lun, |(lun, _)| *lun) {
                Ok(_) => return Err(AddError::InUse(lun)),
                Err(at) => at,
            };
            for (nexus, ports) in &inner.initiators {
                unit.attach(*nexus, ports.clone());
            }
            for (_, other) in inner.map.iter() {
                other.luns_changed();
            }
            Arc::make_mut(&mut inner.map).insert(at, (lun, unit));
            Ok(())
        })
    }

    /// Removes a unit: no command reaches it any more, once views were looked at. Those under way go on. `None`: there was none.
    pub fn remove(&self, lun: u16) -> Option<Arc<Unit>> {
        self.change(|inner| {
            let at = inner.map.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
            let (_, unit) = Arc::make_mut(&mut inner.map).remove(at);
            for (nexus, _) in &inner.initiators {
                unit.detach(*nexus);
            }
            for (_, other) in inner.map.iter() {
                other.luns_changed();
            }
            Some(unit)
        })
    }

    /// An initiator is there, for all units, also those to come.
    pub fn attach(&self, nexus: Nexus, ports: &Ports) {
        self.change(|inner| {
            inner.initiators.retain(|(known, _)| *known != nexus);
            inner.initiators.push((nexus, ports.clone()));
            for (_, unit) in inner.map.iter() {
                unit.attach(nexus, ports.clone());
            }
        });
    }

    /// An initiator is gone.
    pub fn detach(&self, nexus: Nexus) {
        self.change(|inner| {
            inner.initiators.retain(|(known, _)| *known != nexus);
            for (_, unit) in inner.map.iter() {
                unit.detach(nexus);
            }
        });
    }

    /// The units that there are now.
    #[must_use]
    pub fn units(&self) -> Vec<(u16, Arc<Unit>)> {
        let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        inner.map.to_vec()
    }
}

/// No unit's number.
const NO_LUN: u32 = u32::MAX;

/// A target as one thread sees it: a look at a number says whether it is still so.
pub struct View {
    target: Arc<Target>,
    version: u64,
    map: Arc<Map>,
    /// Which number was asked for last, and who has it.
    last: u32,
    unit: Option<Arc<Unit>>,
}

impl View {
    /// Of a target.
    #[must_use]
    pub fn new(target: Arc<Target>) -> Self {
        View {
            version: u64::MAX,
            map: Arc::new(Map::new()),
            last: NO_LUN,
            unit: None,
            target,
        }
    }

    /// Sees what has changed since.
    #[inline]
    pub fn refresh(&mut self) {
        if self.target.version.load(Ordering::Acquire) != self.version {
            self.reload();
        }
    }

    #[cold]
    fn reload(&mut self) {
        let inner = self.target.inner.lock();
        let inner = inner.unwrap_or_else(PoisonError::into_inner);
        self.version = self.target.version.load(Ordering::Acquire);
        self.map = inner.map.clone();
        (self.last, self.unit) = (NO_LUN, None);
    }

    /// The unit of this number.
    #[inline]
    #[must_use]
    pub fn unit(&self, lun: u16) -> Option<&Arc<Unit>> {
        let at = self.map.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        Some(&self.map[at].1)
    }

    /// Takes the unit of this number to hand, as it is now. False: there is none.
    pub fn select_unit(&mut self, lun: u16) -> bool {
        self.refresh();
        self.select(lun).is_some()
    }

    /// The unit of this number, which is at hand from now on: commands mostly are for the unit that the one before was for.
    #[inline]
    pub(crate) fn select(&mut self, lun: u16) -> Option<&Arc<Unit>> {
        if self.last != u32::from(lun) {
            self.last = lun.into();
            self.unit = self.unit(lun).cloned();
        }
        self.unit.as_ref()
    }

    /// The unit at hand.
    #[inline(always)]
    pub(crate) fn selected_unit(&self) -> Option<&Unit> {
        self.unit.as_deref()
    }

    pub(crate) fn luns(&self) -> impl Iterator<Item = (u16, &Arc<Unit>)> {
        self.map.iter().map(|(lun, unit)| (*lun, unit))
    }
}

/// Eight bytes that name a logical unit (SAM-5, section 4.7): by peripheral or flat addressing, and
/// nothing below. `None`: addressed in some other way.
#[must_use]
pub fn decode_lun(bytes: [u8; 8]) -> Option<u16> {
    let [high, low, rest @ ..] = bytes;
    if rest != [0; 6] {
        return None;
    }
    match high >> 6 {
        0 if high == 0 => Some(u16::from(low)),
        1 => Some(u16::from_be_bytes([high & 0x3f, low])),
        _ => None,
    }
}

/// The other way round.
#[must_use]
pub fn encode_lun(lun: u16) -> [u8; 8] {
    let [high, low] = lun.min(MAX_LUN).to_be_bytes();
    let high = if high == 0 { 0 } else { 0x40 | high };
    [high, low, 0, 0, 0, 0, 0, 0]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lun_survives_the_wire() {
        for lun in [0, 1, 255, 256, 1000, MAX_LUN] {
            assert_eq!(decode_lun(encode_lun(lun)), Some(lun));
        }
        assert_eq!(encode_lun(7), [0, 7, 0, 0, 0, 0, 0, 0]);
        assert_eq!(encode_lun(256), [0x41, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(decode_lun([0x40, 7, 0, 0, 0, 0, 0, 0]), Some(7));
        assert_eq!(decode_lun([0x01, 7, 0, 0, 0, 0, 0, 0]), None, "a bus");
        assert_eq!(decode_lun([0xc1, 1, 0, 0, 0, 0, 0, 0]), None, "well known");
        assert_eq!(decode_lun([0, 1, 0, 2, 0, 0, 0, 0]), None, "below a unit");
    }
}

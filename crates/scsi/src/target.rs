//! A target: its logical units by number, which can be added and removed while it is in use, and the views that threads have
//! of them.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use crate::nexus::{NexusNumber, NexusPorts};
use crate::unit::Unit;

/// The largest number of a logical unit.
pub const MAX_LUN: u16 = 16_383;

/// The units at some moment, sorted by number.
type UnitMap = Vec<(u16, Arc<Unit>)>;

/// Units and attached initiators of a target.
struct TargetMembers {
    map: Arc<UnitMap>,
    initiators: Vec<(NexusNumber, NexusPorts)>,
}

/// A target. Each adapter has a [`TargetView`] of it, which needs no lock.
pub struct Target {
    version: AtomicU64,
    members: Mutex<TargetMembers>,
}

/// Why a unit cannot be added.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddUnitError {
    /// Another unit has the number.
    #[error("LUN {0} is in use")]
    InUse(u16),
    /// The number is too large.
    #[error("LUN {0}: the largest is {MAX_LUN}")]
    TooLarge(u16),
}

impl Default for Target {
    fn default() -> Self {
        Target {
            version: AtomicU64::new(0),
            members: Mutex::new(TargetMembers {
                map: Arc::new(UnitMap::new()),
                initiators: Vec::new(),
            }),
        }
    }
}

impl Target {
    /// A target without units.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Changes units or initiators, so that views reload.
    fn change_members<R>(&self, change: impl FnOnce(&mut TargetMembers) -> R) -> R {
        let mut members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        let result = change(&mut members);
        self.version.fetch_add(1, Ordering::Release);
        result
    }

    /// Adds a unit. The other units report that to the initiators.
    ///
    /// # Errors
    /// [`AddUnitError`].
    pub fn add_unit_and_raise_attentions(
        &self,
        lun: u16,
        unit: Arc<Unit>,
    ) -> Result<(), AddUnitError> {
        if lun > MAX_LUN {
            return Err(AddUnitError::TooLarge(lun));
        }
        self.change_members(|members| {
            let at = match members.map.binary_search_by_key(&lun, |(lun, _)| *lun) {
                Ok(_) => return Err(AddUnitError::InUse(lun)),
                Err(at) => at,
            };
            for (nexus, ports) in &members.initiators {
                unit.attach_initiator_and_start(*nexus, ports.clone());
            }
            for (_, other) in members.map.iter() {
                other.raise_luns_changed_attention();
            }
            Arc::make_mut(&mut members.map).insert(at, (lun, unit));
            Ok(())
        })
    }

    /// Removes a unit: no new command reaches it once views are refreshed. Commands in flight go on. `None`: there was none.
    pub fn remove_unit_and_raise_attentions(&self, lun: u16) -> Option<Arc<Unit>> {
        self.change_members(|members| {
            let at = members
                .map
                .binary_search_by_key(&lun, |(lun, _)| *lun)
                .ok()?;
            let (_, unit) = Arc::make_mut(&mut members.map).remove(at);
            for (nexus, _) in &members.initiators {
                unit.detach_initiator_and_release_reserve(*nexus);
            }
            for (_, other) in members.map.iter() {
                other.raise_luns_changed_attention();
            }
            Some(unit)
        })
    }

    /// Attaches an initiator to all units, which are started, and to those that are added later.
    pub fn attach_initiator_and_start_units(&self, nexus: NexusNumber, ports: &NexusPorts) {
        self.change_members(|members| {
            members.initiators.retain(|(known, _)| *known != nexus);
            members.initiators.push((nexus, ports.clone()));
            for (_, unit) in members.map.iter() {
                unit.attach_initiator_and_start(nexus, ports.clone());
            }
        });
    }

    /// Detaches an initiator.
    pub fn detach_initiator(&self, nexus: NexusNumber) {
        self.change_members(|members| {
            members.initiators.retain(|(known, _)| *known != nexus);
            for (_, unit) in members.map.iter() {
                unit.detach_initiator_and_release_reserve(nexus);
            }
        });
    }

    /// The present units.
    #[must_use]
    pub fn units(&self) -> Vec<(u16, Arc<Unit>)> {
        let members = self.members.lock().unwrap_or_else(PoisonError::into_inner);
        members.map.to_vec()
    }
}

/// No unit's number.
const NO_LUN: u32 = u32::MAX;

/// A thread's copy of the units of a target, which it updates when the target's version has changed.
pub struct TargetView {
    target: Arc<Target>,
    version: u64,
    map: Arc<UnitMap>,
    /// The unit that was selected last, and its number.
    last: u32,
    unit: Option<Arc<Unit>>,
}

impl TargetView {
    /// A view of a target.
    #[must_use]
    pub fn new(target: Arc<Target>) -> Self {
        TargetView {
            version: u64::MAX,
            map: Arc::new(UnitMap::new()),
            last: NO_LUN,
            unit: None,
            target,
        }
    }

    /// Updates the view if the target has changed.
    #[inline]
    pub fn refresh(&mut self) {
        if self.target.version.load(Ordering::Acquire) != self.version {
            self.reload_and_deselect();
        }
    }

    /// Copies the present units from the target. The selection is lost.
    #[cold]
    fn reload_and_deselect(&mut self) {
        let members = self.target.members.lock();
        let members = members.unwrap_or_else(PoisonError::into_inner);
        self.version = self.target.version.load(Ordering::Acquire);
        self.map = members.map.clone();
        (self.last, self.unit) = (NO_LUN, None);
    }

    /// The unit of this number.
    #[inline]
    #[must_use]
    pub fn unit(&self, lun: u16) -> Option<&Arc<Unit>> {
        let at = self.map.binary_search_by_key(&lun, |(lun, _)| *lun).ok()?;
        Some(&self.map[at].1)
    }

    /// Refreshes the view and selects the unit of this number. False: there is none.
    pub fn refresh_and_select_unit(&mut self, lun: u16) -> bool {
        self.refresh();
        self.select_without_refresh(lun).is_some()
    }

    /// Selects the unit of this number. The selection is kept, since most commands are for the same unit as the previous one.
    #[inline]
    pub(crate) fn select_without_refresh(&mut self, lun: u16) -> Option<&Arc<Unit>> {
        if self.last != u32::from(lun) {
            self.last = lun.into();
            self.unit = self.unit(lun).cloned();
        }
        self.unit.as_ref()
    }

    /// The selected unit.
    #[inline(always)]
    pub(crate) fn selected_unit(&self) -> Option<&Unit> {
        self.unit.as_deref()
    }

    pub(crate) fn units(&self) -> impl Iterator<Item = (u16, &Arc<Unit>)> {
        self.map.iter().map(|(lun, unit)| (*lun, unit))
    }
}

/// Decodes the eight bytes of a LUN (SAM-5, section 4.7): peripheral or flat addressing, with a
/// single level. `None`: any other addressing.
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

/// Encodes a LUN as eight bytes.
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

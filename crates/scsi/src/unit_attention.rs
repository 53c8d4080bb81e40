//! Pending unit attentions of one initiator: events that are reported to it instead of executing its next command.

/// Additional sense codes of the events.
pub(crate) mod code {
    pub const POWER_ON_OR_RESET: u16 = 0x2900;
    pub const BUS_RESET: u16 = 0x2902;
    pub const NEXUS_LOSS: u16 = 0x2907;
    pub const MODE_PARAMETERS_CHANGED: u16 = 0x2a01;
    pub const RESERVATIONS_PREEMPTED: u16 = 0x2a03;
    pub const RESERVATIONS_RELEASED: u16 = 0x2a04;
    pub const REGISTRATIONS_PREEMPTED: u16 = 0x2a05;
    pub const COMMANDS_CLEARED: u16 = 0x2f00;
    pub const CAPACITY_CHANGED: u16 = 0x2a09;
    pub const LUNS_CHANGED: u16 = 0x3f0e;
}

/// Pending unit attentions of one initiator, in the order of the events. Each code is pending once, which bounds their number.
#[derive(Debug, Default)]
pub(crate) struct PendingAttentions(Vec<u16>);

impl PendingAttentions {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Adds an event. A reset replaces all earlier ones, and of several resets the strongest is reported:
    /// their codes are in the order of precedence (SAM-5), from power on to nexus loss.
    pub fn raise_coalesced(&mut self, code: u16) {
        let is_reset = |code: &u16| code >> 8 == 0x29;
        if is_reset(&code) {
            let pending = self.0.iter().copied().filter(is_reset);
            let strongest = pending.fold(code, u16::min);
            self.0 = vec![strongest];
            return;
        }
        if !self.0.contains(&code) {
            self.0.push(code);
        }
    }

    /// All, the oldest first.
    pub fn iter(&self) -> impl Iterator<Item = u16> {
        self.0.iter().copied()
    }

    /// Removes the oldest, to report it.
    pub fn take_oldest(&mut self) -> Option<u16> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// Removes an event that the initiator has been notified of otherwise.
    pub fn remove(&mut self, code: u16) {
        self.0.retain(|pending| *pending != code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_resets_the_strongest_is_reported() {
        for first in [code::POWER_ON_OR_RESET, code::BUS_RESET, code::NEXUS_LOSS] {
            for second in [code::POWER_ON_OR_RESET, code::BUS_RESET, code::NEXUS_LOSS] {
                let mut pending = PendingAttentions::default();
                pending.raise_coalesced(first);
                pending.raise_coalesced(code::CAPACITY_CHANGED);
                pending.raise_coalesced(second);
                assert_eq!(pending.take_oldest(), Some(first.min(second)));
                assert_eq!(pending.take_oldest(), None);
            }
        }
    }
}

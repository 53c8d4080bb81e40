//! Unit attentions: what an initiator must hear before its next command is carried out.

/// Additional sense codes of what has happened.
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

/// What is pending for one initiator, in the order it happened. Each kind is there once, so that there are never more than kinds.
#[derive(Debug, Default)]
pub(crate) struct Attentions(Vec<u16>);

impl Attentions {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Something has happened. A reset is news of everything that came before, and of several resets the strongest is heard:
    /// their codes are in the order of precedence (SAM-5), being switched on first and a lost connection last.
    pub fn raise(&mut self, code: u16) {
        let is_reset = |code: &u16| code >> 8 == 0x29;
        if is_reset(&code) {
            let known = self.0.iter().copied().filter(is_reset);
            let strongest = known.fold(code, u16::min);
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

    /// The initiator hears of the oldest.
    pub fn take(&mut self) -> Option<u16> {
        (!self.0.is_empty()).then(|| self.0.remove(0))
    }

    /// The initiator has learnt of it otherwise.
    pub fn forget(&mut self, code: u16) {
        self.0.retain(|pending| *pending != code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_is_heard_once_and_a_reset_covers_what_was_before() {
        let mut pending = Attentions::default();
        pending.raise(code::CAPACITY_CHANGED);
        pending.raise(code::CAPACITY_CHANGED);
        pending.raise(code::BUS_RESET);
        pending.raise(code::CAPACITY_CHANGED);
        pending.raise(code::LUNS_CHANGED);
        pending.forget(code::LUNS_CHANGED);
        assert_eq!(pending.take(), Some(code::BUS_RESET));
        assert_eq!(pending.take(), Some(code::CAPACITY_CHANGED));
        assert_eq!(pending.take(), None);
    }

    #[test]
    fn of_several_resets_the_strongest_is_heard() {
        for first in [code::POWER_ON_OR_RESET, code::BUS_RESET, code::NEXUS_LOSS] {
            for second in [code::POWER_ON_OR_RESET, code::BUS_RESET, code::NEXUS_LOSS] {
                let mut pending = Attentions::default();
                pending.raise(first);
                pending.raise(code::CAPACITY_CHANGED);
                pending.raise(second);
                assert_eq!(pending.take(), Some(first.min(second)));
                assert_eq!(pending.take(), None);
            }
        }
    }
}

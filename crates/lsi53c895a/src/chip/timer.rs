//! The general purpose timer (manual, STIME1). Drivers use it to measure the chip's clock.
//!
//! The other two timers never expire: a target answers a selection at once or never, and a
//! handshake takes no time.

/// The shortest period, which field value 1 stands for; each further value doubles it.
const UNIT_NS: u64 = 125_000;

/// The state of the timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GeneralPurposeTimer {
    Off,
    /// STIME1 was written, and the time is not known yet.
    Started {
        after_ns: u64,
    },
    Due {
        at_ns: u64,
    },
}

impl GeneralPurposeTimer {
    /// Starts or stops the timer as the value written to STIME1 says.
    pub fn set_from_stime1(&mut self, stime1: u8) {
        let field = stime1 & 0x0f;
        let scale = if stime1 & 0x20 != 0 { 16 } else { 1 };
        *self = match field {
            0 => GeneralPurposeTimer::Off,
            _ => GeneralPurposeTimer::Started {
                after_ns: (UNIT_NS * scale) << (field - 1),
            },
        };
    }

    /// Whether it has expired; if so, switches it off. Sets the end of a timer that was just started.
    pub fn arm_or_take_expired(&mut self, now_ns: u64) -> bool {
        if let GeneralPurposeTimer::Started { after_ns } = *self {
            *self = GeneralPurposeTimer::Due {
                at_ns: now_ns.saturating_add(after_ns),
            };
        }
        match *self {
            GeneralPurposeTimer::Due { at_ns } if at_ns <= now_ns => {
                *self = GeneralPurposeTimer::Off;
                true
            }
            _ => false,
        }
    }

    /// When it expires, if it runs and its end is known.
    pub fn due_ns(&self) -> Option<u64> {
        match *self {
            GeneralPurposeTimer::Due { at_ns } => Some(at_ns),
            _ => None,
        }
    }
}

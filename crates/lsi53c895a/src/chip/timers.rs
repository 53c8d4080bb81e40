//! The general purpose timer (manual, STIME1). Drivers use it to measure the chip's clock.
//!
//! The other two timers never expire: a target answers a selection at once or never, and a
//! handshake takes no time.

/// The shortest period, which field value 1 stands for; each further value doubles it.
const UNIT_NS: u64 = 125_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Timers {
    Off,
    /// STIME1 was written, and the time is not known yet.
    Started {
        after_ns: u64,
    },
    Due {
        at_ns: u64,
    },
}

impl Timers {
    /// STIME1 was written.
    pub fn write(&mut self, stime1: u8) {
        let field = stime1 & 0x0f;
        let scale = if stime1 & 0x20 != 0 { 16 } else { 1 };
        *self = match field {
            0 => Timers::Off,
            _ => Timers::Started {
                after_ns: (UNIT_NS * scale) << (field - 1),
            },
        };
    }

    /// Whether it has expired.
    pub fn check_expired(&mut self, now_ns: u64) -> bool {
        if let Timers::Started { after_ns } = *self {
            *self = Timers::Due {
                at_ns: now_ns.saturating_add(after_ns),
            };
        }
        match *self {
            Timers::Due { at_ns } if at_ns <= now_ns => {
                *self = Timers::Off;
                true
            }
            _ => false,
        }
    }

    pub fn due_ns(&self) -> Option<u64> {
        match *self {
            Timers::Due { at_ns } => Some(at_ns),
            _ => None,
        }
    }
}

//! Persistent reservations as text, for whoever keeps them across restarts.
//!
//! A line each: the format's version, the generation, the reservation, registrations. Initiators
//! are in hexadecimal digits, as on the wire.

use std::fmt::Write as _;

use crate::nexus::{Ports, TransportId};
use crate::reservations::{Kind, MAX_REGISTRATIONS, Registration, Reservation, Reservations};

const HEADER: &str = "blockplane persistent reservations 1";

/// A text that was not saved here.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SavedError {
    /// Of another kind altogether, or version.
    #[error("these are no saved reservations: the first line must be \"{HEADER}\"")]
    Header,
    /// One of its lines.
    #[error(
        "saved reservations: line {0} cannot be understood; restore the file, or remove it to start without reservations"
    )]
    Line(usize),
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

fn ports_to_text(ports: &Ports) -> String {
    format!("{} {}", ports.target, hex(&ports.initiator.encode()))
}

fn ports_from_text(target: &str, initiator: &str) -> Option<Ports> {
    Some(Ports {
        target: target.parse().ok()?,
        initiator: TransportId::decode(&unhex(initiator)?)?,
    })
}

impl Reservations {
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("{HEADER}\ngeneration {}\n", self.generation);
        if let Some(held) = &self.held {
            let kind = held.kind as u8;
            let _ = match &held.holder {
                None => writeln!(text, "reservation {kind} all"),
                Some(holder) => writeln!(text, "reservation {kind} {}", ports_to_text(holder)),
            };
        }
        for one in &self.registrations {
            let ports = ports_to_text(&one.ports);
            let _ = writeln!(text, "registration {:#018x} {ports}", one.key);
        }
        text
    }

    pub(crate) fn from_text(text: &str) -> Result<Self, SavedError> {
        let mut lines = text.lines();
        if lines.next() != Some(HEADER) {
            return Err(SavedError::Header);
        }
        let mut all = Reservations {
            persist: true,
            ..Reservations::default()
        };
        for (number, line) in (2..).zip(lines) {
            all.line(line).ok_or(SavedError::Line(number))?;
        }
        Ok(all)
    }

    fn line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["generation", generation] => self.generation = generation.parse().ok()?,
            ["reservation", kind, "all"] => {
                let kind = Kind::from_code(kind.parse().ok()?).filter(|kind| kind.all())?;
                self.held = Some(Reservation { kind, holder: None });
            }
            ["reservation", kind, target, initiator] => {
                let kind = Kind::from_code(kind.parse().ok()?).filter(|kind| !kind.all())?;
                let holder = Some(ports_from_text(target, initiator)?);
                self.held = Some(Reservation { kind, holder });
            }
            ["registration", key, target, initiator] => {
                let key = u64::from_str_radix(key.strip_prefix("0x")?, 16).ok()?;
                let ports = ports_from_text(target, initiator)?;
                if key == 0 || self.registrations.len() >= MAX_REGISTRATIONS {
                    return None;
                }
                self.registrations.push(Registration { ports, key });
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(address: u16) -> Ports {
        Ports {
            initiator: TransportId::Parallel { address },
            target: 2,
        }
    }

    #[test]
    fn what_was_saved_is_restored() {
        for kind in [Kind::WriteExclusive, Kind::ExclusiveAccessAll] {
            let mut all = Reservations::default();
            all.register(&ports(1), 0xdead_beef_0000_0001);
            all.register(&ports(2), 2);
            all.reserve(&ports(2), kind).unwrap();
            all.persist = true;
            assert_eq!(Reservations::from_text(&all.to_text()), Ok(all));
        }
    }

    #[test]
    fn what_cannot_be_understood_is_named() {
        assert_eq!(Reservations::from_text(""), Err(SavedError::Header));
        let damaged = format!("{HEADER}\ngeneration 3\nregistration 0x1 1 zz\n");
        assert_eq!(Reservations::from_text(&damaged), Err(SavedError::Line(3)));
    }
}

//! Persistent reservations as text, for a [`ReservationStore`](crate::ReservationStore).
//!
//! The lines are: the format's version, registrations, the reservation, and the word `end`. Initiators are in hexadecimal
//! digits, as on the wire. PRGENERATION is not saved: it is 0 after power-on.

use std::fmt::Write as _;

use crate::nexus::{NexusPorts, TransportId};
use crate::reservations::{
    MAX_REGISTRATIONS, Registration, Reservation, ReservationKind, Reservations,
};

/// The text of a unit without reservations.
pub const NO_RESERVATIONS: &str = "blockplane persistent reservations 1\nend\n";

const HEADER: &str = "blockplane persistent reservations 1";
const END: &str = "end";

/// Error of a text that is no saved reservations.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReservationTextError {
    /// It is another kind of file, or another version.
    #[error("these are no saved reservations: the first line must be \"{HEADER}\"")]
    Header,
    /// The last line is missing.
    #[error(
        "saved reservations: the last line must be \"{END}\"; restore the file, or remove it to start without reservations"
    )]
    End,
    /// A line cannot be parsed.
    #[error(
        "saved reservations: line {0} cannot be understood; restore the file, or remove it to start without reservations"
    )]
    Line(usize),
}

/// Bytes as hexadecimal digits.
fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The bytes of hexadecimal digits. `None`: the text is malformed.
fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digits = text.as_bytes();
    if !digits.len().is_multiple_of(2) {
        return None;
    }
    digits
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect()
}

/// The target port's number, and the initiator's TransportID in hexadecimal digits.
fn ports_to_text(ports: &NexusPorts) -> String {
    format!("{} {}", ports.target, to_hex(&ports.initiator.encode()))
}

/// Parses the two words of [`ports_to_text`].
fn ports_from_text(target: &str, initiator: &str) -> Option<NexusPorts> {
    let bytes = from_hex(initiator)?;
    let ports = NexusPorts {
        initiator: TransportId::decode(&bytes)?,
        target: target.parse().ok()?,
    };
    // An initiator has one encoding, and there is no port 0.
    (ports.initiator.encode() == bytes && ports.target != 0).then_some(ports)
}

impl Reservations {
    /// The text to save: without reservations unless APTPL is set.
    pub(crate) fn text_that_survives_power_loss(&self) -> String {
        match self.persist {
            true => self.all_to_text(),
            false => NO_RESERVATIONS.to_owned(),
        }
    }

    /// The text of all reservations, whether APTPL is set or not.
    pub(crate) fn all_to_text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for registration in &self.registrations {
            let ports = ports_to_text(&registration.ports);
            let _ = writeln!(text, "registration {:#018x} {ports}", registration.key);
        }
        if let Some(held) = &self.reservation {
            let kind = held.kind as u8;
            let _ = match &held.holder {
                None => writeln!(text, "reservation {kind} all"),
                Some(holder) => writeln!(text, "reservation {kind} {}", ports_to_text(holder)),
            };
        }
        text + END + "\n"
    }

    /// Parses saved reservations, which are complete and consistent or refused.
    pub(crate) fn from_text(text: &str) -> Result<Self, ReservationTextError> {
        let lines = text
            .strip_prefix(HEADER)
            .and_then(|rest| rest.strip_prefix('\n'));
        let lines = lines.ok_or(ReservationTextError::Header)?;
        let lines = lines
            .strip_suffix('\n')
            .and_then(|rest| rest.strip_suffix(END));
        let lines = lines.filter(|rest| rest.is_empty() || rest.ends_with('\n'));
        let lines = lines.ok_or(ReservationTextError::End)?;
        let mut all = Reservations::default();
        for (number, line) in (2..).zip(lines.lines()) {
            all.parse_line(line)
                .ok_or(ReservationTextError::Line(number))?;
        }
        all.persist = !all.registrations.is_empty();
        Ok(all)
    }

    /// Parses a registration or the reservation. `None`: the line is malformed, or contradicts earlier ones.
    fn parse_line(&mut self, line: &str) -> Option<()> {
        let words: Vec<&str> = line.split(' ').collect();
        match *words.as_slice() {
            ["registration", key, target, initiator] => {
                let key = u64::from_str_radix(key.strip_prefix("0x")?, 16).ok()?;
                let ports = ports_from_text(target, initiator)?;
                let known = self.registered_key(&ports).is_some();
                let full = self.registrations.len() >= MAX_REGISTRATIONS;
                if key == 0 || known || full || self.reservation.is_some() {
                    return None;
                }
                self.registrations.push(Registration { ports, key });
            }
            ["reservation", kind, ref holder @ ..] => {
                let kind = ReservationKind::from_code(kind.parse().ok()?)?;
                let holder = match *holder {
                    ["all"] if kind.is_of_all_registrants() && !self.registrations.is_empty() => {
                        None
                    }
                    [target, initiator] if !kind.is_of_all_registrants() => {
                        let holder = ports_from_text(target, initiator)?;
                        self.registered_key(&holder)?;
                        Some(holder)
                    }
                    _ => return None,
                };
                if self
                    .reservation
                    .replace(Reservation { kind, holder })
                    .is_some()
                {
                    return None;
                }
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ports(address: u16) -> NexusPorts {
        NexusPorts {
            initiator: TransportId::Parallel { address },
            target: 2,
        }
    }

    /// Two registrations, and a reservation of the second.
    fn reserved() -> Reservations {
        let mut all = Reservations::default();
        all.register_or_unregister(&ports(1), 0xdead_beef_0000_0001);
        all.register_or_unregister(&ports(2), 2);
        all.reserve(&ports(2), ReservationKind::WriteExclusive)
            .unwrap();
        all.persist = true;
        all
    }

    #[test]
    fn errors_name_the_line() {
        assert_eq!(
            Reservations::from_text(""),
            Err(ReservationTextError::Header)
        );
        let text = reserved().text_that_survives_power_loss();
        let lines: Vec<&str> = text.lines().collect();
        let with = |lines: &[&str]| Reservations::from_text(&(lines.join("\n") + "\n"));
        assert!(with(&lines).is_ok());
        let [header, first, second, held, end] = *lines.as_slice() else {
            panic!("{text}");
        };
        let line = ReservationTextError::Line;
        for (wrong, error) in [
            (&[header, first, "registration 0x1 1 zz", end][..], line(3)),
            (&[header, first, "registration 0x0 1 zz", end], line(3)),
            (&[header, first, first, end], line(3)),
            (&[header, first, held, end], line(3)),
            (&[header, first, second, held, held, end], line(5)),
            (&[header, "reservation 7 all", end], line(2)),
            (&[header, "", end], line(2)),
            (&[header, first, second], ReservationTextError::End),
            (
                &["blockplane persistent reservations 2", end],
                ReservationTextError::Header,
            ),
        ] {
            assert_eq!(with(wrong), Err(error), "{wrong:?}");
        }
        for len in 0..text.len() {
            assert!(
                Reservations::from_text(&text[..len]).is_err(),
                "cut to {len} bytes"
            );
        }
    }
}

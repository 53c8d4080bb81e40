//! Features of an export, as its transmission flags have them.

use super::handshake::Negotiated;
use crate::wire::transmission_flag;

/// What an export can do, apart from reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    /// It is read-only.
    pub read_only: bool,
    /// Flushes do something.
    pub flush: bool,
    /// Writes can be stable when they are answered.
    pub fua: bool,
    /// Ranges can be discarded.
    pub trim: bool,
    /// Ranges can be zeroed without sending zeroes.
    pub write_zeroes: bool,
    /// Several connections see the same disk, and a flush on one holds for all.
    pub multi_conn: bool,
}

impl Features {
    pub(super) fn of(negotiated: &Negotiated) -> Self {
        Features {
            read_only: negotiated.has(transmission_flag::READ_ONLY),
            flush: negotiated.has(transmission_flag::SEND_FLUSH),
            fua: negotiated.has(transmission_flag::SEND_FUA),
            trim: negotiated.has(transmission_flag::SEND_TRIM),
            write_zeroes: negotiated.has(transmission_flag::SEND_WRITE_ZEROES),
            multi_conn: negotiated.has(transmission_flag::CAN_MULTI_CONN),
        }
    }

    /// The names of the protocol of what requests depend on and `now` lacks.
    pub(super) fn lost_in(self, now: Features) -> Option<String> {
        let lost = [
            ("NBD_FLAG_SEND_FLUSH", self.flush && !now.flush),
            ("NBD_FLAG_SEND_FUA", self.fua && !now.fua),
            ("NBD_FLAG_SEND_TRIM", self.trim && !now.trim),
            (
                "NBD_FLAG_SEND_WRITE_ZEROES",
                self.write_zeroes && !now.write_zeroes,
            ),
            (
                "NBD_FLAG_CAN_MULTI_CONN",
                self.multi_conn && !now.multi_conn,
            ),
        ];
        let lost = lost.iter().filter(|(_, is_lost)| *is_lost);
        let names: Vec<&str> = lost.map(|(name, _)| *name).collect();
        (!names.is_empty()).then(|| names.join(", "))
    }
}

//! Payloads of commands, which have the size that they should.

use crate::error::Refused;

/// A payload that is exactly that, or that and more.
macro_rules! payload {
    ($type:ident, exactly $bytes:expr) => {
        $type::decode($bytes)
            .filter(|_| $bytes.len() == $type::BYTES)
            .ok_or_else(|| {
                $crate::payload::wrong_size(stringify!($type), $type::BYTES, $bytes.len())
            })?
    };
    ($type:ident, first of $bytes:expr) => {
        $type::decode($bytes).ok_or_else(|| {
            $crate::payload::wrong_size(stringify!($type), $type::BYTES, $bytes.len())
        })?
    };
}

pub(crate) fn wrong_size(what: &str, expected: usize, found: usize) -> Refused {
    Refused::invalid(format!(
        "{what}: a payload of {expected} bytes is expected instead of {found}"
    ))
}

pub(crate) use payload;

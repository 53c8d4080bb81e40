//! `decode_payload!`, which decodes the payload of a command and refuses one of another size than expected.

use crate::error::CommandError;

/// Decodes a payload that is exactly one struct, or begins with it.
macro_rules! decode_payload {
    ($type:ident, exactly $bytes:expr) => {
        $type::decode($bytes)
            .filter(|_| $bytes.len() == $type::BYTES)
            .ok_or_else(|| {
                $crate::payload::wrong_size_error(stringify!($type), $type::BYTES, $bytes.len())
            })?
    };
    ($type:ident, first of $bytes:expr) => {
        $type::decode($bytes).ok_or_else(|| {
            $crate::payload::wrong_size_error(stringify!($type), $type::BYTES, $bytes.len())
        })?
    };
}

/// The error for a payload of another size than expected.
pub(crate) fn wrong_size_error(what: &str, expected: usize, found: usize) -> CommandError {
    CommandError::invalid(format!(
        "{what}: a payload of {expected} bytes is expected instead of {found}"
    ))
}

pub(crate) use decode_payload;

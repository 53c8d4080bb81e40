//! Tokens of requests: the index of the source on its iothread, and a number that the source has chosen.

/// The source index of I/O that async tasks wait for; no source has it.
pub(crate) const TASKS: u32 = u32::MAX;

/// The source index of requests that an I/O context tracks; their entry in its table has their own token.
pub(crate) const GUARDED: u32 = u32::MAX - 1;

/// The token of request `number` of the source with this index.
#[inline]
#[must_use]
pub fn new(source_index: u32, number: u32) -> u64 {
    u64::from(source_index) << 32 | u64::from(number)
}

/// The index of the request's source on its iothread: the upper half.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn source_index(token: u64) -> u32 {
    (token >> 32) as u32
}

/// The number that the source has chosen for the request: the lower half.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn request_number(token: u64) -> u32 {
    token as u32
}

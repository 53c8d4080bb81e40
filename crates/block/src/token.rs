//! Tokens of requests: the place of the source on its iothread, and a number that the source has chosen.

/// The place for I/O that tasks wait for; no source has it.
pub(crate) const TASKS: u32 = u32::MAX;

/// The place for requests that an I/O context tracks; their entry in its table has their own token.
pub(crate) const TRACKED: u32 = u32::MAX - 1;

/// The token of request `number` of the source at `place`.
#[inline]
#[must_use]
pub fn new(place: u32, number: u32) -> u64 {
    u64::from(place) << 32 | u64::from(number)
}

/// The place of its source.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn place(token: u64) -> u32 {
    (token >> 32) as u32
}

/// The source's number of its request.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn number(token: u64) -> u32 {
    token as u32
}

//! Tokens of block requests: the place of a queue among those of its iothread, and the slot of a request in it.

/// The token of the request in `slot` of the queue at `place`.
#[inline]
#[must_use]
pub fn new(place: u32, slot: u32) -> u64 {
    u64::from(place) << 32 | u64::from(slot)
}

/// The place of its queue.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn place(token: u64) -> u32 {
    (token >> 32) as u32
}

/// The slot of its request.
#[inline]
#[must_use]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
pub fn slot(token: u64) -> u32 {
    token as u32
}

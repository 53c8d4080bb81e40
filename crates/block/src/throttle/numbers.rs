//! Conversions between whole and floating-point numbers.

/// The whole part of a number.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "none is negative, and a conversion saturates"
)]
pub(super) fn to_whole(number: f64) -> u64 {
    number as u64
}

/// A limit, a count or a duration as a floating-point number.
#[expect(
    clippy::cast_precision_loss,
    reason = "below 2^53, or a time of which the end does not matter"
)]
pub(super) fn as_f64(count: u64) -> f64 {
    count as f64
}

//! Error numbers from return values of librados and librbd.

use std::ffi::c_int;

use engine::Errno;

/// Converts a return value: an error number with a minus sign is an error.
pub(crate) fn check(returned: c_int) -> Result<(), Errno> {
    value_of(i64::from(returned)).map(|_| ())
}

/// Converts a return value that is a count unless it is an error. A pool's quota is lack of space for a guest.
pub(crate) fn value_of(returned: i64) -> Result<u64, Errno> {
    u64::try_from(returned).map_err(|_| {
        let errno =
            i32::try_from(returned.unsigned_abs()).map_or(Errno::IO, Errno::from_raw_os_error);
        if errno == Errno::DQUOT {
            Errno::NOSPC
        } else {
            errno
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negative_values_are_error_numbers_and_a_quota_is_lack_of_space() {
        assert_eq!(value_of(4096), Ok(4096));
        assert_eq!(check(0), Ok(()));
        assert_eq!(check(-5), Err(Errno::IO));
        assert_eq!(check(-108), Err(Errno::SHUTDOWN));
        assert_eq!(check(-122), Err(Errno::NOSPC));
        assert_eq!(value_of(i64::MIN), Err(Errno::IO));
    }
}

//! Reads and writes numbers in SCSI's byte order, most significant byte first, in byte slices. Bytes beyond the end read as
//! zero, and are not written; saturating conversions of lengths.

/// The number of `count` bytes at `at`, at most eight.
pub(crate) fn be_number(bytes: &[u8], at: usize, count: usize) -> u64 {
    (at..at + count).fold(0, |value, index| {
        value << 8 | u64::from(bytes.get(index).copied().unwrap_or(0))
    })
}

/// A byte.
pub(crate) fn byte(bytes: &[u8], at: usize) -> u8 {
    bytes.get(at).copied().unwrap_or(0)
}

/// Two bytes.
pub(crate) fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([byte(bytes, at), byte(bytes, at + 1)])
}

/// Four bytes.
pub(crate) fn be32(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes([0, 1, 2, 3].map(|index| byte(bytes, at + index)))
}

/// Eight bytes.
pub(crate) fn be64(bytes: &[u8], at: usize) -> u64 {
    be_number(bytes, at, 8)
}

/// Writes the bytes of `value` at `at`, as far as there is room.
pub(crate) fn put_bytes(bytes: &mut [u8], at: usize, value: &[u8]) {
    for (to, from) in bytes.iter_mut().skip(at).zip(value) {
        *to = *from;
    }
}

/// A length, limited to a byte.
pub(crate) fn saturated_u8(value: usize) -> u8 {
    u8::try_from(value).unwrap_or(u8::MAX)
}

/// A length, limited to two bytes.
pub(crate) fn saturated_u16(value: usize) -> u16 {
    u16::try_from(value).unwrap_or(u16::MAX)
}

/// A number, limited to four bytes.
pub(crate) fn saturated_u32(value: u64) -> u32 {
    u32::try_from(value).unwrap_or(u32::MAX)
}

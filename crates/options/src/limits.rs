//! Limits of queues, block sizes and serial numbers, with their checks, for all notations of options.

/// Most queues of one export: vhost-user has 8 bits for a queue's index in the messages that
/// carry a file descriptor.
pub const MAX_QUEUES: u16 = 256;
/// Most queues for commands of one controller: with its control and event queues as many as a disk has.
pub const MAX_SCSI_QUEUES: u16 = MAX_QUEUES - 2;
/// Default of `num-queues` of vhost-user-scsi, and of `serve`. A VMM asks for one queue per processor of the guest and gives up when
/// there are fewer, while a queue that is never started costs nothing.
pub const DEFAULT_SERVE_QUEUES: u16 = 64;
/// Most entries of one queue. Other vhost-user servers have the same limit, so guests stay below it.
pub const MAX_QUEUE_SIZE: u16 = 1024;
/// Most bytes of a serial number (virtio specification 1.2, section 5.2.6, `VIRTIO_BLK_T_GET_ID`).
pub const MAX_SERIAL_BYTES: usize = 20;

/// Largest `logical-block-size` in bytes, as in QEMU.
const MAX_BLOCK_BYTES: u64 = 32768;

/// The expected text for a block size.
pub(crate) const BLOCK_SIZE_EXPECTED: &str = "a power of two from 512 to 32768 (bytes)";
/// The expected text for a queue size.
pub(crate) const QUEUE_SIZE_EXPECTED: &str = "a power of two from 2 to 1024 (entries)";

/// The logical block size, if it is a power of two that a disk can have.
pub(crate) fn block_size_if_valid(bytes: u64) -> Option<u32> {
    let fits = bytes.is_power_of_two() && (512..=MAX_BLOCK_BYTES).contains(&bytes);
    fits.then(|| u32::try_from(bytes).ok()).flatten()
}

/// The size of a queue, if it is a power of two in range. One entry would hold no request, which has at least two
/// parts.
pub(crate) fn queue_size_if_valid(entries: u64) -> Option<u16> {
    let fits = entries.is_power_of_two() && (2..=u64::from(MAX_QUEUE_SIZE)).contains(&entries);
    fits.then(|| u16::try_from(entries).ok()).flatten()
}

/// Whether this text can be shown to guests, such as a serial number. Tools in the guest print it, and some trim it.
pub(crate) fn is_label(name: &str, longest: usize) -> bool {
    (1..=longest).contains(&name.len())
        && name.bytes().all(|b| b == b' ' || b.is_ascii_graphic())
        && name.trim() == name
}

/// The expected text for a label of at most `longest` bytes.
pub(crate) fn expected_label_text(longest: usize) -> String {
    format!("1 to {longest} characters of printable ASCII without a blank at either end")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_inclusive() {
        assert_eq!(
            [511, 512, 513, 32768, 65536].map(block_size_if_valid),
            [None, Some(512), None, Some(32768), None]
        );
        assert_eq!(
            [0, 1, 2, 3, 1024, 2048].map(queue_size_if_valid),
            [None, None, Some(2), None, Some(1024), None]
        );
        let is_serial = |text: &str| is_label(text, MAX_SERIAL_BYTES);
        assert!(is_serial("a b") && is_serial(&"x".repeat(20)));
        for bad in ["", " a", "a ", "\t", "é", "a\nb", &"x".repeat(21)] {
            assert!(!is_serial(bad), "{bad:?}");
        }
    }
}

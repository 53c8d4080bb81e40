//! Reads and writes of any number of bytes of guest memory by guest address, across regions, for devices that follow the guest's
//! pointers without a virtqueue.
//!
//! The guest may change memory at any time: a read makes a copy, and checks are made on the copy. Aligned words are read and written as
//! words, and once: a guest that takes a word out of memory while we write it (a mailbox, a queue's entry)
//! would find it again if a copy wrote it twice, which `memcpy` does with short lengths.

use std::ptr::{NonNull, copy_nonoverlapping};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::memory::GuestMemory;

impl GuestMemory {
    /// The first contiguous part of `len` bytes at `guest_addr`: its host address, and how many of the bytes are
    /// there, at least one. The rest begins behind it, in the next region if there is one. `None` when `guest_addr` is in no region,
    /// or `len` is 0.
    ///
    /// The pointer is good as long as this memory lives.
    pub fn first_contiguous_part(&self, guest_addr: u64, len: u64) -> Option<(NonNull<u8>, u64)> {
        self.first_contiguous_part_with_hint(&mut 0, guest_addr, len)
            .filter(|(_, here)| *here != 0)
    }

    /// Reads as many bytes as `data` has. False, and nothing read, if a part of them is in no region.
    #[must_use]
    pub fn read(&self, guest_addr: u64, data: &mut [u8]) -> bool {
        self.for_each_contiguous_part(guest_addr, data.len(), |host, at, count| {
            let to = &mut data[at..at + count];
            // SAFETY: `count` bytes at `host` were looked up.
            if let Some(word) = unsafe { as_aligned_u32(host, count) } {
                return to.copy_from_slice(&word.load(Ordering::Acquire).to_ne_bytes());
            }
            // SAFETY: `count` bytes at `host` were looked up, and `to` is a slice of ours.
            unsafe { copy_nonoverlapping(host.as_ptr(), to.as_mut_ptr(), count) }
        })
    }

    /// Writes `data`. False, and nothing written, if a part of it would be in no region.
    #[must_use]
    pub fn write(&self, guest_addr: u64, data: &[u8]) -> bool {
        self.for_each_contiguous_part(guest_addr, data.len(), |host, at, count| {
            let from = &data[at..at + count];
            // SAFETY: `count` bytes at `host` were looked up.
            let word = unsafe { as_aligned_u32(host, count) };
            if let (Some(word), Ok(bytes)) = (word, from.try_into()) {
                return word.store(u32::from_ne_bytes(bytes), Ordering::Release);
            }
            // SAFETY: `count` bytes at `host` were looked up, and `from` is a slice of ours.
            unsafe { copy_nonoverlapping(from.as_ptr(), host.as_ptr(), count) }
        })
    }

    /// Calls `on_part` with each contiguous part of `len` bytes: where it is, how many bytes come before it, and how
    /// many it has. False, and nothing called, if some of them are in no region.
    #[inline]
    fn for_each_contiguous_part(
        &self,
        guest_addr: u64,
        len: usize,
        mut on_part: impl FnMut(NonNull<u8>, usize, usize),
    ) -> bool {
        match self.first_contiguous_part(guest_addr, len as u64) {
            // The usual case.
            Some((host, here)) if here == len as u64 => {
                on_part(host, 0, len);
                true
            }
            _ => self.for_each_part_across_regions(guest_addr, len, &mut on_part),
        }
    }

    /// As [`for_each_contiguous_part`](Self::for_each_contiguous_part), for a range across regions.
    #[cold]
    fn for_each_part_across_regions(
        &self,
        guest_addr: u64,
        len: usize,
        on_part: &mut dyn FnMut(NonNull<u8>, usize, usize),
    ) -> bool {
        let for_each = |on_part: &mut dyn FnMut(NonNull<u8>, usize, usize)| {
            let mut done = 0;
            while done < len {
                let at = guest_addr.checked_add(done as u64)?;
                let (host, here) = self.first_contiguous_part(at, (len - done) as u64)?;
                let here = usize::try_from(here).ok()?;
                on_part(host, done, here);
                done += here;
            }
            Some(())
        };
        for_each(&mut |_, _, _| {})
            .and_then(|()| for_each(on_part))
            .is_some()
    }
}

/// These bytes as an atomic word, if they are an aligned one.
///
/// # Safety
/// There are `count` bytes at `host`, for as long as the word is used.
unsafe fn as_aligned_u32<'a>(host: NonNull<u8>, count: usize) -> Option<&'a AtomicU32> {
    let word = host.cast::<u32>();
    // SAFETY: by the caller's promise, aligned, and any bits are a word; the guest is to us like another thread.
    (count == size_of::<u32>() && word.is_aligned())
        .then(|| unsafe { AtomicU32::from_ptr(word.as_ptr()) })
}

#[cfg(test)]
mod tests {
    use crate::testing::TestMemory;

    #[test]
    fn bytes_are_read_and_written_across_regions() {
        let test =
            TestMemory::with_regions(&[(0x1000, 0x1000), (0x2000, 0x1000), (0x8000, 0x1000)]);
        let memory = test.guest_memory();
        assert!(memory.write(0x1ffe, b"disk"));
        assert_eq!(test.read(0x1ffe, 2), b"di");
        assert_eq!(test.read(0x2000, 2), b"sk");
        let mut data = [0; 6];
        assert!(memory.read(0x1ffd, &mut data));
        assert_eq!(&data, b"\0disk\0");
        let (_, here) = memory.first_contiguous_part(0x1ffe, 4).unwrap();
        assert_eq!(here, 2);
        test.check_canaries();
    }

    #[test]
    fn a_range_that_is_not_all_in_memory_is_neither_read_nor_written() {
        let test = TestMemory::with_regions(&[(0x1000, 0x1000), (u64::MAX - 0xfff, 0x1000)]);
        let memory = test.guest_memory();
        for addr in [0, 0xfff, 0x1ffe, 0x2000, u64::MAX - 1] {
            assert!(!memory.write(addr, b"disk"), "{addr:#x}");
            let mut data = *b"kept";
            assert!(!memory.read(addr, &mut data), "{addr:#x}");
            assert_eq!(&data, b"kept");
        }
        assert_eq!(test.read(0x1ffe, 2), [0, 0]);
        assert_eq!(test.read(u64::MAX - 1, 1), [0]);
        assert!(memory.write(u64::MAX - 3, b"disk"), "up to the last byte");
        assert!(memory.read(0x5000, &mut []), "nothing is everywhere");
        assert!(memory.first_contiguous_part(0x1000, 0).is_none());
    }
}

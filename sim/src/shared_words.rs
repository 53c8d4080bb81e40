//! Memory that a front-end shares with the daemon, and that outlives it.

use std::ptr::NonNull;

/// Shared words, initially 0; accessed by atomics only, never by reference.
#[derive(Debug)]
pub struct SharedWords(*mut [u64]);

// SAFETY: the pointer is only used for atomics, and to free the memory, once.
unsafe impl Send for SharedWords {}
// SAFETY: as above.
unsafe impl Sync for SharedWords {}

impl SharedWords {
    /// So many.
    #[must_use]
    pub fn new(words: usize) -> Self {
        SharedWords(Box::into_raw(vec![0_u64; words].into_boxed_slice()))
    }

    /// Where they are, as long as `self` lives.
    #[must_use]
    pub fn host(&self) -> NonNull<u8> {
        NonNull::new(self.0.cast::<u8>()).expect("memory has an address")
    }

    /// Bytes.
    #[must_use]
    pub fn len_bytes(&self) -> usize {
        8 * self.0.len()
    }
}

impl Drop for SharedWords {
    fn drop(&mut self) {
        // SAFETY: it was made by `Box::into_raw`, and is freed once.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

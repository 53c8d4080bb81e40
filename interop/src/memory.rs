//! Memory that a client shares with the server, and places in it.
//!
//! The server writes into it on its own, so bytes are only handed out as slices by a client that
//! has no request in flight; nothing here can check that.

use std::ptr::NonNull;

/// A place in an [`Arena`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Bytes from the start of the arena.
    pub offset: usize,
    /// Its length in bytes.
    pub len: usize,
}

impl Span {
    /// The `len` bytes from `offset` on.
    pub fn new(offset: usize, len: usize) -> Self {
        Self { offset, len }
    }
}

/// A shared mapping.
#[derive(Debug)]
pub struct Arena {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: an arena is plain memory that no thread is tied to; `&mut` guards it like any buffer.
unsafe impl Send for Arena {}

impl Arena {
    /// The `len` bytes at `base`.
    ///
    /// # Safety
    /// They stay mapped, readable and writable, as long as the arena is used, nothing else in
    /// this process refers to them, and the server has no request for them in flight while a
    /// slice of them is held.
    pub unsafe fn new(base: NonNull<u8>, len: usize) -> Self {
        Self { base, len }
    }

    /// Its length in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The address of `span`, which must lie inside.
    pub fn address(&self, span: Span) -> *mut u8 {
        let end = span.offset.checked_add(span.len);
        assert!(end.is_some_and(|end| end <= self.len), "{span:?} is inside");
        self.base.as_ptr().wrapping_add(span.offset)
    }

    /// What `span` holds.
    pub fn bytes(&self, span: Span) -> &[u8] {
        let address = self.address(span);
        // SAFETY: `address` checked that the span is inside; `new`'s contract says the rest.
        unsafe { std::slice::from_raw_parts(address, span.len) }
    }

    /// What `span` holds, to change it.
    pub fn bytes_mut(&mut self, span: Span) -> &mut [u8] {
        let address = self.address(span);
        // SAFETY: as in `bytes`, and `&mut self` makes this the only slice.
        unsafe { std::slice::from_raw_parts_mut(address, span.len) }
    }

    /// All of it, to change it.
    pub fn all_mut(&mut self) -> &mut [u8] {
        self.bytes_mut(Span::new(0, self.len))
    }
}

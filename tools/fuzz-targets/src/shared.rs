//! A file of memory that front-ends share: made once, and zero again for each input.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap};

/// The guest's own view of its memory.
pub struct Shared {
    fd: OwnedFd,
    host: *mut u8,
    len: usize,
}

impl Shared {
    /// It stays for ever: inputs come by the million.
    pub fn new(len: usize) -> &'static Self {
        let fd = memfd_create("guest", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&fd, len as u64).expect("memory");
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is never unmapped.
        let host = unsafe { mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, &fd, 0) };
        let host = host.expect("memory").cast();
        Box::leak(Box::new(Shared { fd, host, len }))
    }

    pub fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    pub fn clear(&self) {
        // SAFETY: all of the mapping, to which there is no reference.
        unsafe { self.host.write_bytes(0, self.len) };
    }

    /// Writes as much as there is room for.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        let at = at.min(self.len);
        let len = bytes.len().min(self.len - at);
        // SAFETY: within the mapping, to which there is no reference.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.host.add(at), len) };
    }

    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        let mut bytes = vec![0; len];
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(self.host.add(at), bytes.as_mut_ptr(), len) };
        bytes
    }
}

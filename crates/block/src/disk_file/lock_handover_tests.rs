//! Tests that no other program can take an image's lock while it moves from one opening of the image to another.

use std::cell::RefCell;
use std::fs::OpenOptions;

use super::ImageAccess::{Read, Write};
use super::*;

fn open(path: &Path) -> OwnedFd {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.unwrap().into()
}

/// Tries to lock a byte exclusively; true: it was free. Closing the descriptor releases the lock.
fn lock_exclusively(fd: BorrowedFd<'_>, byte: i64) -> bool {
    let lock = byte_lock(libc::F_WRLCK, byte);
    // SAFETY: F_OFD_SETLK reads the struct that the reference points to, and nothing else.
    unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}

/// The bytes that every user of an image has locked all the time, whether it writes or only reads.
const ALWAYS: [(&str, i64); 3] = [
    ("consistent read", USED_BASE + CONSISTENT_READ),
    ("no other writer", UNSHARED_BASE + WRITE),
    ("no resize", UNSHARED_BASE + RESIZE),
];

/// The name of one of these bytes that is free.
fn free_byte(fd: BorrowedFd<'_>) -> Option<String> {
    let mut bytes = ALWAYS.iter();
    let free = bytes.find(|(_, byte)| lock_exclusively(fd, *byte));
    free.map(|(name, _)| (*name).to_owned())
}

thread_local! {
    /// Another opening of the image, which tests for free bytes when one of this thread has released its locks.
    static STRANGER: RefCell<Option<OwnedFd>> = const { RefCell::new(None) };
    /// The free bytes that it found.
    static FREE: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Called when an opening of this thread has released its locks.
pub(super) fn released() {
    let find = |stranger: &Option<OwnedFd>| free_byte(stranger.as_ref()?.as_fd());
    let free = STRANGER.with_borrow(find);
    FREE.with_borrow_mut(|all| all.extend(free));
}

/// Tests at the moments at which a lock could be lost, so that no thread has to win a race.
#[test]
fn an_opening_releases_its_lock_when_another_one_has_it() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path();
    let acquire = |locking| LockedFd::with_locks(open(path), path, locking, Write).unwrap();
    let (mut from, mut to) = (acquire(Locking::On), acquire(Locking::Off));
    STRANGER.set(Some(open(path)));
    let take_over = |to: &LockedFd, from: &LockedFd, access| {
        let taken = to.move_locks_from(from, path, [Locking::On; 2], access);
        assert_eq!(FREE.take(), [""; 0], "these bytes are free");
        taken
    };
    for access in [[Write, Write], [Read, Write], [Read, Read], [Write, Read]] {
        take_over(&to, &from, access).unwrap();
        std::mem::swap(&mut from, &mut to);
    }
    // Another program that tries to open the image has this lock for a moment, which conflicts.
    let other = open(path);
    assert!(lock_shared(other.as_fd(), USED_BASE + WRITE).unwrap());
    for _ in 0..2 {
        let refused = take_over(&to, &from, [Write; 2]);
        assert!(matches!(refused, Err(NodeError::Locked { .. })));
    }
    drop(other);
    take_over(&to, &from, [Write; 2]).unwrap();
    STRANGER.set(None);
}

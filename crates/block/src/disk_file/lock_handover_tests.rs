//! Tests that no other program can take an image's lock while it moves from one opening of the image to another.

use std::cell::RefCell;
use std::fs::OpenOptions;
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::thread::Scope;
use std::time::{Duration, Instant};

use super::ImageAccess::{Read, Write};
use super::*;

/// A test that takes longer has failed.
const STUCK_AFTER: Duration = Duration::from_secs(60);
const HANDOVERS: u64 = 20_000;
/// Least attempts of the contender, for machines on which threads take turns.
const ATTEMPTS: u64 = 5000;

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

/// A thread that tries to take the lock until the handovers are over.
#[derive(Default)]
struct Contender {
    attempts: AtomicU64,
    over: AtomicBool,
    /// The lock that it took.
    got: OnceLock<String>,
}

impl Contender {
    fn start<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        mut attempt: impl FnMut() -> Option<String> + Send + 'scope,
    ) {
        scope.spawn(move || {
            while !self.over.load(Ordering::Relaxed) && self.got.get().is_none() {
                if let Some(got) = attempt() {
                    let _ = self.got.set(got);
                }
                self.attempts.fetch_add(1, Ordering::Relaxed);
            }
        });
    }

    /// Hands over until there were enough handovers and attempts. `hand_over` gets the number of the handover.
    fn watch(&self, mut hand_over: impl FnMut(u64) -> Result<(), NodeError>) {
        /// Ends the attempts also when a handover has failed.
        struct End<'a>(&'a Contender);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.over.store(true, Ordering::Relaxed);
            }
        }
        let _end = End(self);
        let begin = Instant::now();
        let attempts = || {
            assert!(begin.elapsed() < STUCK_AFTER, "the contender stands still");
            self.attempts.load(Ordering::Relaxed)
        };
        while attempts() == 0 {
            std::thread::yield_now();
        }
        let mut handovers = 0;
        while handovers < HANDOVERS || attempts() < ATTEMPTS {
            let handed_over = hand_over(handovers);
            let got = self.got.get();
            assert_eq!(got, None, "handover {handovers}: the contender got a lock");
            handed_over.unwrap();
            handovers += 1;
        }
    }
}

#[test]
fn no_contender_gets_a_lock_during_a_handover() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path();
    let acquire = |locking| LockedFd::with_locks(open(path), path, locking, Write).unwrap();
    let openings = [acquire(Locking::On), acquire(Locking::Off)];
    let contender = Contender::default();
    std::thread::scope(|scope| {
        let other = open(path);
        contender.start(scope, move || free_byte(other.as_fd()));
        let mut old_access = Write;
        contender.watch(|handover| {
            let (from, to) = match handover % 2 {
                0 => (&openings[0], &openings[1]),
                _ => (&openings[1], &openings[0]),
            };
            let access = if handover % 3 == 2 { Read } else { Write };
            let taken = to.move_locks_from(from, path, [Locking::On; 2], [access, old_access]);
            old_access = access;
            taken
        });
    });
}

/// Another program that opens the image takes conflicting locks for moments. A handover may fail then, and the opening that
/// had the lock keeps it.
#[test]
fn no_contender_gets_a_lock_whose_handover_fails() {
    let image = tempfile::NamedTempFile::new().unwrap();
    let path = image.path();
    let acquire = |locking| LockedFd::with_locks(open(path), path, locking, Write);
    let mut has = acquire(Locking::On).unwrap();
    let mut other = acquire(Locking::Off).unwrap();
    let contender = Contender::default();
    let (mut handed_over, mut failed) = (0, 0);
    std::thread::scope(|scope| {
        contender.start(scope, || {
            let got = acquire(Locking::On).ok();
            got.map(|_| "all of it".to_owned())
        });
        contender.watch(|_| {
            match other.move_locks_from(&has, path, [Locking::On; 2], [Write; 2]) {
                Ok(()) => {
                    std::mem::swap(&mut has, &mut other);
                    handed_over += 1;
                }
                Err(NodeError::Locked { .. }) => failed += 1,
                Err(error) => return Err(error),
            }
            Ok(())
        });
    });
    assert!(handed_over > 0 && failed > 0, "{handed_over}, {failed}");
}

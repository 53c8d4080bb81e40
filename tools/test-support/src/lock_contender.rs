//! Lock contender: a thread that tries to lock a file as often as it can.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, flock};

use crate::deadline::Deadline;

/// Bytes of an image that all who use it have locked, also those that only read: they read, and prevent writing and resizing.
const IMAGE_BYTES: [i64; 3] = [100, 201, 203];

/// A thread that tries to lock a file until it gets the lock or is dropped.
#[derive(Debug)]
pub struct LockContender {
    path: PathBuf,
    attempts: Arc<AtomicU64>,
    over: Arc<AtomicBool>,
    /// It ends when it has got the lock.
    thread: Option<JoinHandle<()>>,
}

impl LockContender {
    /// Contends for the lock of an image, which belongs to the open file. It takes only bytes that are not locked, so it disturbs no user.
    pub fn for_image(path: &Path) -> Self {
        let file = open(path);
        Self::start(path, move |_| {
            IMAGE_BYTES.iter().any(|byte| take_byte(&file, *byte))
        })
    }

    /// For another file, whatever lies at its path at that moment.
    pub fn for_file(path: &Path) -> Self {
        Self::start(path, |path| {
            // While it is replaced there may be none.
            let Ok(file) = OpenOptions::new().read(true).open(path) else {
                return false;
            };
            // One that was replaced after it was opened is anybody's.
            let is_there = || {
                let now = std::fs::metadata(path).map(|file| file.ino());
                now.ok() == file.metadata().map(|file| file.ino()).ok()
            };
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() && is_there()
        })
    }

    /// Starts the thread, which makes attempts until one succeeds or it is stopped.
    fn start(path: &Path, attempt: impl Fn(&Path) -> bool + Send + 'static) -> Self {
        let (attempts, over) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (count, ends, file) = (attempts.clone(), over.clone(), path.to_owned());
        let thread = std::thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) && !attempt(&file) {
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        let contender = LockContender {
            path: path.to_owned(),
            attempts,
            over,
            thread: Some(thread),
        };
        contender.has_tried_again();
        contender
    }

    /// Asserts that it has never got the lock.
    #[track_caller]
    pub fn got_nothing(&self) {
        let tries = self
            .thread
            .as_ref()
            .is_some_and(|thread| !thread.is_finished());
        let path = self.path.display();
        assert!(tries, "the lock of {path} was free for a moment");
    }

    /// It has got nothing up to now: an attempt has begun and ended after this was called.
    #[track_caller]
    pub fn has_tried_again(&self) {
        let attempts = || self.attempts.load(Ordering::Relaxed);
        let (before, deadline) = (attempts(), Deadline::default());
        while attempts() < before + 2 {
            self.got_nothing();
            deadline.check("another attempt to get the lock");
            std::thread::yield_now();
        }
    }
}

impl Drop for LockContender {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // Each attempt ends at once.
            let _ = thread.join();
        }
    }
}

fn open(path: &Path) -> File {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.unwrap()
}

/// Locks a byte exclusively; true if it was not locked.
fn take_byte(file: &File, byte: i64) -> bool {
    let lock = libc::flock {
        l_type: i16::try_from(libc::F_WRLCK).unwrap(),
        l_whence: i16::try_from(libc::SEEK_SET).unwrap(),
        l_start: byte,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: F_OFD_SETLK reads the struct that the reference points to, and nothing else.
    unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) == 0 }
}

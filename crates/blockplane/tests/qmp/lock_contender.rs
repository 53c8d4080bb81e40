//! Lock contender: a thread that tries to lock a file as often as it can.

use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use rustix::fs::{FlockOperation, flock};
use test_support::deadline::Deadline;

/// Bytes of an image that all who use it have locked, also those that only read: they read, and prevent writing and resizing.
const IMAGE_BYTES: [i64; 3] = [100, 201, 203];

pub struct LockContender {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    path: PathBuf,
    attempts: AtomicU64,
    got: AtomicBool,
    over: AtomicBool,
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
        let shared = Arc::new(Shared {
            path: path.to_owned(),
            attempts: AtomicU64::new(0),
            got: AtomicBool::new(false),
            over: AtomicBool::new(false),
        });
        let contends = shared.clone();
        let thread = std::thread::spawn(move || {
            while !contends.over.load(Ordering::Relaxed) && !contends.got.load(Ordering::Relaxed) {
                if attempt(&contends.path) {
                    contends.got.store(true, Ordering::Relaxed);
                }
                contends.attempts.fetch_add(1, Ordering::Relaxed);
            }
        });
        let contender = LockContender {
            shared,
            thread: Some(thread),
        };
        contender.has_tried_again();
        contender
    }

    /// Asserts that it has never got the lock.
    #[track_caller]
    pub fn got_nothing(&self) {
        let Shared { path, got, .. } = &*self.shared;
        let got = got.load(Ordering::Relaxed);
        assert!(!got, "the lock of {} was free for a moment", path.display());
    }

    /// It has got nothing up to now: an attempt has begun and ended after this was called.
    #[track_caller]
    pub fn has_tried_again(&self) {
        let attempts = || self.shared.attempts.load(Ordering::Relaxed);
        let (before, deadline) = (attempts(), Deadline::default());
        while attempts() < before + 2 {
            self.got_nothing();
            deadline.check("another attempt to get the lock");
            std::thread::yield_now();
        }
        self.got_nothing();
    }
}

impl Drop for LockContender {
    fn drop(&mut self) {
        self.shared.over.store(true, Ordering::Relaxed);
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

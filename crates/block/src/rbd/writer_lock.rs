//! The writer lock of an image: its exclusive lock in the cluster, acquired before the first request that changes the image,
//! and released when the last source has left.
//!
//! The destination of a migration opens the image while the source still writes. It changes nothing before its guest runs,
//! and by then the queues of the source have stopped and released the lock.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use ceph::{Image, LockFeatureAndOwner};
use engine::Errno;
use engine::pool::Wake;

use super::lockable_image::LockableImage;
use crate::disk_file::lock::Locking;

#[cfg(test)]
mod tests;

/// How long an acquisition waits for another living process of this host: the source of a migration, or the old process of a
/// live upgrade, releases the lock within that time. It waits longer for a holder that may be dead.
pub(super) const WAIT_FOR_HOLDER: Duration = Duration::from_secs(10);

/// How long a call waits for the lock, such as a resize: longer than for a holder that may be dead, but not for a cluster that does not
/// answer.
const CALL_LOCK_TIMEOUT: Duration = Duration::from_secs(60);

/// Time between two checks of the lock while they fail.
const CHECK_RETRY: Duration = Duration::from_millis(50);

const WAITING: u8 = 0;
const HELD: u8 = 1;
const REFUSED: u8 = 2;

/// The state of an image's writer lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterLockState {
    /// Not used (`locking=off`).
    Off,
    /// Not held: nothing has changed the image since it was opened, since its last user left, or since the lock was lost.
    Released,
    /// It is being acquired: requests wait for that.
    Waiting,
    /// Held.
    Held,
    /// The image has no such lock, and `locking=auto` goes on without.
    Unsupported,
    /// It was not acquired, and requests that change the image fail.
    Refused {
        /// The other client's address as Ceph writes it; `None`: for another reason, which is in the log.
        owner_address: Option<String>,
    },
}

impl WriterLockState {
    /// Names of all states, as monitors have them.
    pub const NAMES: [&'static str; 6] = [
        "off",
        "released",
        "waiting",
        "held",
        "unsupported",
        "refused",
    ];

    /// The name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        let [off, released, waiting, held, unsupported, refused] = Self::NAMES;
        match self {
            WriterLockState::Off => off,
            WriterLockState::Released => released,
            WriterLockState::Waiting => waiting,
            WriterLockState::Held => held,
            WriterLockState::Unsupported => unsupported,
            WriterLockState::Refused { .. } => refused,
        }
    }
}

/// The result of an acquisition, as one queue waits for it.
pub(crate) struct LockAnswer {
    state: AtomicU8,
    wake: Wake,
}

impl LockAnswer {
    /// One that is not known yet. `wake` is called when it is.
    pub fn new(wake: Wake) -> Arc<Self> {
        let state = AtomicU8::new(WAITING);
        Arc::new(LockAnswer { state, wake })
    }

    /// `None`: not known yet.
    pub fn result(&self) -> Option<Result<(), Errno>> {
        match self.state.load(Ordering::Acquire) {
            HELD => Some(Ok(())),
            REFUSED => Some(Err(Errno::ROFS)),
            _ => None,
        }
    }

    pub(super) fn set_and_wake(&self, is_held: bool) {
        let state = if is_held { HELD } else { REFUSED };
        self.state.store(state, Ordering::Release);
        (self.wake)();
    }
}

/// State of the lock, guarded by a mutex. Calls for the image's thread are posted while it is locked, so that the thread makes them in the
/// order of the changes that they belong to. Posting does not wait for the cluster, nor call back.
#[derive(Default)]
struct LockState {
    /// Queues that are attached to the image.
    sources: usize,
    /// An acquisition is under way.
    acquiring: bool,
    held: bool,
    /// The image has no lock, and none is needed.
    unsupported: bool,
    /// The last acquisition failed, with the address of the client that has the lock if it is known.
    refused: Option<Option<String>>,
    waiters: Vec<Arc<LockAnswer>>,
    /// Number of the newest check.
    last_check: u64,
}

/// The writer lock of an image, which all queues of this process share.
pub(crate) struct WriterLock<I = Image> {
    image: Arc<I>,
    locking: Locking,
    /// Requests may change the image: the lock is held, or not needed.
    permits_changes: AtomicBool,
    state: Mutex<LockState>,
}

impl<I: LockableImage> WriterLock<I> {
    pub fn new(image: Arc<I>, locking: Locking) -> Arc<Self> {
        Arc::new(WriterLock {
            image,
            locking,
            permits_changes: AtomicBool::new(locking == Locking::Off),
            state: Mutex::default(),
        })
    }

    /// Follows the image's lock from now on: the permission to change the image ends if the lock is lost, or if the image gets one.
    pub fn follow_image(self: &Arc<Self>) {
        if self.locking == Locking::Off {
            return;
        }
        let lock = Arc::downgrade(self);
        self.image.set_on_header_change(Box::new(move || {
            if let Some(lock) = lock.upgrade() {
                lock.begin_check();
            }
        }));
    }

    fn begin_check(self: &Arc<Self>) {
        self.with_state(|state| {
            // An acquisition that is under way may have looked before the change. One that begins later looks at the change itself.
            if state.held || state.acquiring {
                self.post_check(state, false);
            }
        });
    }

    fn post_check(self: &Arc<Self>, state: &mut LockState, has_failed: bool) {
        state.last_check += 1;
        let (lock, number) = (self.clone(), state.last_check);
        let done = move |found| match found {
            Ok(found) => lock.revoke_unless_valid(found),
            Err(errno) => lock.check_again_later(number, errno, has_failed),
        };
        self.image.spawn_lock_check(Box::new(done));
    }

    /// Repeats a check that has failed, on the image's thread, until one succeeds or the lock is no longer held. The permission stays
    /// meanwhile: librbd reads a changed header before the next request too, which fails if that fails; and if the permission ended, the
    /// lock, which may be held still, would not be released with the last source.
    fn check_again_later(self: &Arc<Self>, number: u64, errno: Errno, has_warned: bool) {
        // The client is on the cluster's blocklist: the cluster refuses all of its requests until the image is opened anew.
        if errno == Errno::SHUTDOWN {
            return;
        }
        if !has_warned {
            tracing::warn!(
                image = self.image.name(), %errno,
                advice = "look at the cluster (ceph -s)",
                "the image's header has changed, and it is not known whether the exclusive lock is held: that is tried again"
            );
        }
        std::thread::sleep(CHECK_RETRY);
        self.with_state(|state| {
            // A newer check is behind this one.
            if state.held && state.last_check == number {
                self.post_check(state, true);
            }
        });
    }

    /// Ends the permission to change the image if its reason has gone; the next change acquires the lock again. Runs on the image's
    /// thread, as `finish` does, so `found` is not older than the last acquisition.
    fn revoke_unless_valid(&self, found: LockFeatureAndOwner) {
        let is_revoked = self.with_state(|state| {
            let is_valid = match state.unsupported {
                true => !found.is_supported,
                false => found.is_ours,
            };
            if !state.held || is_valid {
                return false;
            }
            (state.held, state.unsupported) = (false, false);
            self.permits_changes.store(false, Ordering::Release);
            true
        });
        if is_revoked {
            tracing::warn!(
                image = self.image.name(),
                has_lock_feature = found.is_supported,
                advice = "find out who has changed the image's features, or broken its lock: another client may have written to it",
                "the exclusive lock is not what it was: it is acquired again before the next change"
            );
        }
    }

    /// Counts one more source of requests.
    pub fn add_source(&self) {
        self.with_state(|state| state.sources += 1);
    }

    /// Counts one source less. The last one releases the lock.
    pub fn remove_source(&self) {
        // In one step: a source that is added in between would lose its permission.
        self.with_state(|state| {
            state.sources -= 1;
            if state.sources == 0 {
                self.release(state);
            }
        });
    }

    /// Releases the lock; no request that changes the image is in flight. The next one acquires it again.
    pub fn release_if_held(&self) {
        self.with_state(|state| self.release(state));
    }

    /// Ends the permission to change the image, and has the lock released if it is held.
    fn release(&self, state: &mut LockState) {
        self.permits_changes
            .store(self.locking == Locking::Off, Ordering::Release);
        if std::mem::take(&mut state.held) && !state.unsupported {
            self.image.spawn_unlock();
        }
    }

    /// Whether requests may change the image: the lock is held, or not needed.
    #[inline]
    pub fn permits_changes(&self) -> bool {
        self.permits_changes.load(Ordering::Acquire)
    }

    /// Its state for operators.
    pub fn state(&self) -> WriterLockState {
        self.with_state(|state| match &state.refused {
            _ if self.locking == Locking::Off => WriterLockState::Off,
            _ if state.acquiring => WriterLockState::Waiting,
            _ if state.unsupported => WriterLockState::Unsupported,
            _ if state.held => WriterLockState::Held,
            None => WriterLockState::Released,
            Some(owner_address) => WriterLockState::Refused {
                owner_address: owner_address.clone(),
            },
        })
    }

    /// Acquires the lock, unless it is held or being acquired. The answer may be there at once; otherwise `wake` is called
    /// when it is.
    pub fn acquire(self: &Arc<Self>, wake: Wake) -> Arc<LockAnswer> {
        let answer = LockAnswer::new(wake);
        self.with_state(|state| {
            if state.held {
                answer.state.store(HELD, Ordering::Release);
                return;
            }
            state.waiters.push(answer.clone());
            if !std::mem::replace(&mut state.acquiring, true) {
                let (lock, wanted) = (self.clone(), self.clone());
                self.image.spawn_lock(
                    WAIT_FOR_HOLDER,
                    Box::new(move || wanted.with_state(|state| state.sources > 0)),
                    Box::new(move |result| lock.finish(result)),
                );
            }
        });
        answer
    }

    /// Makes a call that changes the image while the lock is held. It waits for the cluster.
    ///
    /// # Errors
    /// [`Errno::ROFS`] if the lock is refused, [`Errno::TIMEDOUT`] if it is not acquired within [`CALL_LOCK_TIMEOUT`]; those of `call`.
    pub fn run_with_lock<T>(
        self: &Arc<Self>,
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.add_source();
        let (sender, answered) = channel();
        let wake = move || {
            let _ = sender.send(());
        };
        let answer = self.acquire(Arc::new(wake));
        let deadline = Instant::now() + CALL_LOCK_TIMEOUT;
        let locked = loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match answer.result() {
                Some(locked) => break locked,
                None if left.is_zero() => break Err(Errno::TIMEDOUT),
                None => drop(answered.recv_timeout(left)),
            }
        };
        let result = locked.and_then(|()| call());
        self.remove_source();
        result
    }

    /// Ends an acquisition, on the image's thread.
    fn finish(&self, result: Result<(), ceph::LockError>) {
        let is_unsupported = matches!(result, Err(ceph::LockError::Unsupported { .. }));
        let result = match result {
            Err(ceph::LockError::Unsupported { .. }) if self.locking == Locking::Auto => {
                tracing::warn!(
                    image = self.image.name(),
                    advice = "rbd feature enable POOL/IMAGE exclusive-lock",
                    "the image has no exclusive lock: nothing keeps a second host from writing to it"
                );
                Ok(())
            }
            result => result,
        };
        if let Err(error) = &result {
            tracing::error!(
                image = self.image.name(), %error,
                "requests that change the image fail: its exclusive lock was not acquired"
            );
        }
        let waiters = self.with_state(|state| {
            state.acquiring = false;
            let has_left = state.sources == 0;
            state.held = result.is_ok() && !has_left;
            state.unsupported = result.is_ok() && is_unsupported;
            state.refused = result.as_ref().err().map(owner_address);
            if state.held {
                self.permits_changes.store(true, Ordering::Release);
            }
            if result.is_ok() && has_left && !is_unsupported {
                self.image.spawn_unlock();
            }
            std::mem::take(&mut state.waiters)
        });
        for waiter in waiters {
            waiter.set_and_wake(result.is_ok());
        }
    }

    fn with_state<T>(&self, change: impl FnOnce(&mut LockState) -> T) -> T {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The address of the client that has the lock, if that is the reason.
fn owner_address(error: &ceph::LockError) -> Option<String> {
    match error {
        ceph::LockError::Held { owner_address, .. } => Some(owner_address.clone()),
        _ => None,
    }
}

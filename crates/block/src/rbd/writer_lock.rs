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

use crate::disk_file::lock::Locking;

/// How long an acquisition waits for another living process of this host: the source of a migration, or the old process of a
/// live upgrade, releases the lock within that time. It waits longer for a holder that may be dead.
const WAIT_FOR_HOLDER: Duration = Duration::from_secs(10);

/// How long a call waits for the lock, such as a resize: longer than for a holder that may be dead, but not for a cluster that does not
/// answer.
const WAIT_OF_CALLS: Duration = Duration::from_secs(60);

const WAITING: u8 = 0;
const HELD: u8 = 1;
const REFUSED: u8 = 2;

/// The state of an image's writer lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriterLockState {
    /// Not used (`locking=off`).
    Off,
    /// Not held: nothing has changed the image since it was opened, or since its last user left.
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

/// State of the lock, guarded by a mutex.
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
}

/// The writer lock of an image, which all queues of this process share.
pub(crate) struct WriterLock {
    image: Arc<Image>,
    locking: Locking,
    /// Requests may change the image: the lock is held, or not needed.
    permits_changes: AtomicBool,
    state: Mutex<LockState>,
}

impl WriterLock {
    pub fn new(image: Arc<Image>, locking: Locking) -> Arc<Self> {
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
                lock.begin_check_if_held();
            }
        }));
    }

    fn begin_check_if_held(self: &Arc<Self>) {
        if self.with_state(|state| state.held) {
            let lock = self.clone();
            self.image
                .spawn_lock_check(move |found| lock.revoke_unless_valid(found));
        }
    }

    /// Ends the permission to change the image if its reason has gone; the next change acquires the lock again. Acquisitions end on this
    /// thread too.
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
        // In one step: the next source acquires the lock again.
        let was_held = self.with_state(|state| {
            state.sources -= 1;
            state.sources == 0 && self.end_permission(state)
        });
        if was_held {
            self.image.spawn_unlock();
        }
    }

    /// Releases the lock; no request that changes the image is in flight. The next one acquires it again.
    pub fn release_if_held(&self) {
        if self.with_state(|state| self.end_permission(state)) {
            self.image.spawn_unlock();
        }
    }

    /// Ends the permission to change the image. True: the lock is held, and has to be released.
    fn end_permission(&self, state: &mut LockState) -> bool {
        self.permits_changes
            .store(self.locking == Locking::Off, Ordering::Release);
        std::mem::take(&mut state.held) && !state.unsupported
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
        let begins = self.with_state(|state| {
            if state.held {
                answer.state.store(HELD, Ordering::Release);
                return false;
            }
            state.waiters.push(answer.clone());
            !std::mem::replace(&mut state.acquiring, true)
        });
        if begins {
            let (lock, wanted) = (self.clone(), self.clone());
            self.image.spawn_lock(
                WAIT_FOR_HOLDER,
                move || wanted.with_state(|state| state.sources > 0),
                Box::new(move |result| lock.finish(result)),
            );
        }
        answer
    }

    /// Makes a call that changes the image while the lock is held. It waits for the cluster.
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
        let deadline = Instant::now() + WAIT_OF_CALLS;
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

    /// Ends an acquisition, on a thread of the image's connection.
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
        let (waiters, release) = self.with_state(|state| {
            state.acquiring = false;
            let has_left = state.sources == 0;
            state.held = result.is_ok() && !has_left;
            state.unsupported = result.is_ok() && is_unsupported;
            state.refused = result.as_ref().err().map(owner_address);
            if state.held {
                self.permits_changes.store(true, Ordering::Release);
            }
            let release = result.is_ok() && has_left && !is_unsupported;
            (std::mem::take(&mut state.waiters), release)
        });
        if release {
            self.image.spawn_unlock();
        }
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

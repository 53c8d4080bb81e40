//! An opened image: its sizes, and the calls that wait.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::Errno;

use crate::errno::check;
use crate::ffi::{ImagePointer, PoolPointer};
use crate::header_watch::{HeaderWatch, OnHeaderChange, OnResize};
use crate::image_handle::{ImageHandle, OpenArguments, OpenStep};
use crate::library::Functions;
use crate::lock::{Attempt, Lock, LockFeatureAndOwner};
use crate::pending_lock::{LockDone, PendingLock};
use crate::waiting_calls::WaitingCalls;
use crate::{
    Connection, Extent, ImageGeometry, ImageOptions, LockError, OpenError, RequestStats,
    allocations, watchers,
};

/// Longest time that a caller waits for the cluster.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);

/// The same for a resize: shrinking removes objects one by one.
const RESIZE_TIMEOUT: Duration = Duration::from_secs(600);

/// Time between two attempts to take a lock that another image or client has.
const LOCK_RETRY: Duration = Duration::from_millis(50);

/// Longest wait for another image of this process: closing an image takes two rounds to the cluster.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(5);

/// Called on the image's thread with the result of [`Image::spawn_lock_check`].
pub type LockCheckDone = Box<dyn FnOnce(Result<LockFeatureAndOwner, Errno>) + Send>;

/// An opened image.
///
/// Dropping it does not wait: the image is closed later, by its thread.
pub struct Image {
    connection: Arc<Connection>,
    /// Its own, so that none waits for those of an image whose OSDs do not answer.
    calls: WaitingCalls,
    /// `None` only at the end.
    handle: Option<ImageHandle>,
    pool: PoolPointer,
    pointer: ImagePointer,
    watch: Arc<HeaderWatch>,
    geometry: ImageGeometry,
    options: ImageOptions,
    name: String,
    request_stats: Arc<RequestStats>,
}

impl Image {
    /// Opens an image; waits at most 30 s.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(
        connection: &Arc<Connection>,
        options: &ImageOptions,
        on_resize: OnResize,
    ) -> Result<Arc<Image>, OpenError> {
        let arguments = OpenArguments::new(options)?;
        let name = options.to_string();
        let functions = connection.functions;
        let failed = |step, errno| open_error(options, &name, step, errno);
        let cluster = connection
            .cluster()
            .ok_or_else(|| failed(OpenStep::Pool, Errno::SHUTDOWN))?;
        let calls = WaitingCalls::start().map_err(|error| OpenError::Thread {
            image: name.clone(),
            error,
        })?;
        connection.log.add_image(&name);
        let of_thread = Arc::clone(connection);
        // Other clients' notifications wait for one that watches the image, also if it was killed.
        let watches = !options.read_only || options.snapshot.is_some();
        let opened = calls
            .call(CALL_TIMEOUT, move || {
                let opened = ImageHandle::open(functions, cluster, &arguments, on_resize)?;
                if watches {
                    let lock = Lock {
                        connection: of_thread,
                        pool: opened.0.pool(),
                        image: opened.0.pointer(),
                    };
                    // A failure is reported when this process has the lock.
                    let _ = lock.record_this_process();
                }
                Ok(opened)
            })
            .unwrap_or_else(|errno| Err((OpenStep::Image, errno)));
        let (handle, geometry, watch) = opened.map_err(|(step, errno)| {
            connection.status().learn_from_error(errno);
            connection.log.remove_image(&name);
            failed(step, errno)
        })?;
        let request_stats = Arc::<RequestStats>::default();
        connection.status().add_image(&request_stats);
        Ok(Arc::new(Image {
            connection: Arc::clone(connection),
            calls,
            pool: handle.pool(),
            pointer: handle.pointer(),
            handle: Some(handle),
            watch,
            geometry,
            options: options.clone(),
            name,
            request_stats,
        }))
    }

    /// Sizes as of open.
    #[must_use]
    pub fn geometry(&self) -> ImageGeometry {
        self.geometry
    }

    /// Whether it was opened for reading only.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.options.read_only || self.options.snapshot.is_some()
    }

    /// The image's name: `POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]`.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pool, namespace, image and snapshot, as it was opened.
    #[must_use]
    pub fn options(&self) -> &ImageOptions {
        &self.options
    }

    /// Statistics of its requests.
    #[must_use]
    pub fn request_stats(&self) -> &Arc<RequestStats> {
        &self.request_stats
    }

    /// The connection.
    #[must_use]
    pub fn connection(&self) -> &Arc<Connection> {
        &self.connection
    }

    /// The last known size in bytes, without waiting: [`OnResize`] is called when it changes.
    #[must_use]
    pub fn known_size(&self) -> u64 {
        self.watch.size()
    }

    /// The size in bytes; waits for the cluster.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 30 s.
    pub fn size(&self) -> Result<u64, Errno> {
        let watch = Arc::clone(&self.watch);
        self.wait_for(CALL_TIMEOUT, move |_, _| watch.read_size())
    }

    /// Changes the size, in bytes; shrinking discards what is beyond.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 10 min.
    pub fn resize(&self, bytes: u64) -> Result<(), Errno> {
        self.wait_for(RESIZE_TIMEOUT, move |functions, image| {
            // SAFETY: the image is open.
            check(unsafe { (functions.rbd_resize)(image.0, bytes) })
        })
    }

    /// Waits until all completed writes are stable.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 30 s.
    pub fn flush(&self) -> Result<(), Errno> {
        self.wait_for(CALL_TIMEOUT, |functions, image| {
            // SAFETY: the image is open.
            check(unsafe { (functions.rbd_flush)(image.0) })
        })
    }

    /// Ranges with and without objects, from `offset` on, in order and without gaps: at most `most`, which may end before
    /// `offset + len`. Everything counts as allocated where librbd would have to ask for each object: without the feature
    /// `fast-diff`, and in a clone or a striped image.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 30 s.
    pub fn allocations(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, Errno> {
        let geometry = self.geometry;
        self.wait_for(CALL_TIMEOUT, move |functions, image| {
            allocations::read(
                functions,
                image,
                &geometry,
                offset..offset.saturating_add(len),
                most,
            )
        })
    }

    /// Takes the exclusive lock, which stays ours until [`unlock`](Self::unlock) or the image is closed: other clients'
    /// writes then fail. Breaks the lock of a process of ours on this host that was killed, and of no other client. Waits 5 s
    /// for another image of this process, which may be about to be closed.
    ///
    /// # Errors
    /// [`LockError`].
    pub fn lock(&self) -> Result<(), LockError> {
        if self.is_read_only() {
            return Err(LockError::ReadOnly {
                image: self.name.clone(),
            });
        }
        let deadline = Instant::now() + RELEASE_TIMEOUT;
        while let Attempt::HeldHere { address } = self.try_lock()? {
            if Instant::now() >= deadline {
                return Err(LockError::Held {
                    image: self.name.clone(),
                    owner_address: address,
                    is_alive: true,
                });
            }
            std::thread::sleep(LOCK_RETRY);
        }
        Ok(())
    }

    fn try_lock(&self) -> Result<Attempt, LockError> {
        let name = self.name.clone();
        let lock = self.exclusive_lock();
        let attempt = self.calls.call(CALL_TIMEOUT, move || lock.acquire(&name));
        let attempt = attempt.unwrap_or_else(|errno| {
            Err(LockError::Failed {
                image: self.name.clone(),
                errno,
            })
        });
        attempt.inspect_err(|error| self.learn_from_lock_error(error))
    }

    fn learn_from_lock_error(&self, error: &LockError) {
        if let LockError::Failed { errno, .. } = error {
            self.connection.status().learn_from_error(*errno);
        }
    }

    fn exclusive_lock(&self) -> Lock {
        Lock {
            connection: Arc::clone(&self.connection),
            pool: self.pool,
            image: self.pointer,
        }
    }

    /// Takes the exclusive lock as [`lock`](Self::lock) does, on the image's thread, and calls `done` there. While another
    /// client has it, this tries again: until `patience` is over if that is a living process of this host, or else until the
    /// cluster would have released the lock of a client that has died. While the cluster's monitors do not answer, it tries again as
    /// long as the lock `is_wanted`. If an attempt panics, `done` gets an error.
    pub fn spawn_lock(
        self: &Arc<Self>,
        patience: Duration,
        is_wanted: impl Fn() -> bool + Send + 'static,
        done: LockDone,
    ) {
        let pending = PendingLock::new(self.name.clone(), patience, is_wanted, done);
        let image = Arc::clone(self);
        self.calls.post(move || image.lock_or_try_later(pending));
    }

    /// On the thread: tries to take the lock. Other calls are made between two tries.
    fn lock_or_try_later(self: Arc<Self>, mut pending: PendingLock) {
        let result = match self.exclusive_lock().acquire(&self.name) {
            Ok(Attempt::Locked) => Ok(()),
            Ok(Attempt::HeldHere { address }) => Err(LockError::Held {
                image: self.name.clone(),
                owner_address: address,
                is_alive: true,
            }),
            Err(error) => {
                self.learn_from_lock_error(&error);
                Err(error)
            }
        };
        if pending.tries_again(&result) {
            std::thread::sleep(LOCK_RETRY);
            let image = Arc::clone(&self);
            self.calls.post(move || image.lock_or_try_later(pending));
        } else {
            pending.finish(result);
        }
    }

    /// Has a function, which must not wait, called on a thread of librbd after each change of the image's header. The first function that
    /// is set stays.
    pub fn set_on_header_change(&self, on_header_change: OnHeaderChange) {
        self.watch.set_on_header_change(on_header_change);
    }

    /// Finds out on the image's thread, and passes to `done` there, whether the image has an exclusive lock, and whether this client
    /// has it: an administrator may have disabled the feature, or broken the lock. An error is one of librbd, by which that is not known.
    pub fn spawn_lock_check(self: &Arc<Self>, done: LockCheckDone) {
        let image = Arc::clone(self);
        self.calls.post(move || {
            let found = image.exclusive_lock().feature_and_owner();
            if let Err(errno) = &found {
                image.connection.status().learn_from_error(*errno);
            }
            done(found);
        });
    }

    /// Releases the exclusive lock on the image's thread; a failure is logged.
    pub fn spawn_unlock(self: &Arc<Self>) {
        let image = Arc::clone(self);
        self.calls.post(move || {
            // SAFETY: the image is open.
            let released =
                check(unsafe { (image.connection.functions.rbd_lock_release)(image.pointer.0) });
            if let Err(errno) = released {
                image.connection.status().learn_from_error(errno);
                tracing::warn!(image = image.name, %errno, "the exclusive lock was not released");
            }
        });
    }

    /// Releases the exclusive lock.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 30 s.
    pub fn unlock(&self) -> Result<(), Errno> {
        self.wait_for(CALL_TIMEOUT, |functions, image| {
            // SAFETY: the image is open.
            check(unsafe { (functions.rbd_lock_release)(image.0) })
        })
    }

    /// Addresses of the clients that have the image open for writing, this one included, as Ceph writes them.
    ///
    /// # Errors
    /// Those of librbd; [`Errno::TIMEDOUT`] without an answer in 30 s.
    pub fn watchers(&self) -> Result<Vec<String>, Errno> {
        self.wait_for(CALL_TIMEOUT, watchers::addresses)
    }

    /// Makes a call on the image's thread. The image stays open until it is made: closing is queued behind it.
    fn wait_for<T: Send + 'static>(
        &self,
        timeout: Duration,
        call: impl FnOnce(&'static Functions, ImagePointer) -> Result<T, Errno> + Send + 'static,
    ) -> Result<T, Errno> {
        let (functions, image) = (self.connection.functions, self.pointer);
        let result = self
            .calls
            .call(timeout, move || call(functions, image))
            .flatten();
        result.inspect_err(|errno| self.connection.status().learn_from_error(*errno))
    }

    /// The functions of librbd, for queues.
    pub(crate) fn functions(&self) -> &'static Functions {
        self.connection.functions
    }

    /// The pointer for librbd, for queues. The image is open as long as this is there.
    pub(crate) fn pointer(&self) -> ImagePointer {
        self.pointer
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        self.connection.log.remove_image(&self.name);
        if let Some(handle) = self.handle.take() {
            self.calls.post(move || drop(handle));
        }
    }
}

impl fmt::Debug for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Image")
            .field("name", &self.name)
            .field("geometry", &self.geometry)
            .finish_non_exhaustive()
    }
}

/// The error for an error number of a step.
fn open_error(options: &ImageOptions, name: &str, step: OpenStep, errno: Errno) -> OpenError {
    let image = name.to_owned();
    match (step, errno) {
        (OpenStep::Pool, Errno::NOENT) => OpenError::NoPool {
            pool: options.pool.clone(),
        },
        (OpenStep::Image, Errno::NOENT) => OpenError::NoImage { image },
        (_, Errno::PERM | Errno::ACCESS) => OpenError::Permission { image, errno },
        (_, Errno::TIMEDOUT) => OpenError::Timeout {
            image,
            timeout: CALL_TIMEOUT,
        },
        (_, errno) => OpenError::Failed { image, errno },
    }
}

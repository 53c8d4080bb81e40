//! Requests of one thread to images of Ceph RBD, through librbd alone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ceph::{Image, ImageQueue};
use engine::{Completion, Full, Request};
use rustix::event::{EventfdFlags, eventfd};

use crate::error::{Error, Result};

/// A queue for each image. Tokens of requests are numbers of slots, of which each image has as many as the others.
pub(in crate::load) struct ImageQueues {
    queues: Vec<ImageQueue>,
    slots_per_image: usize,
    woken: Arc<OwnedFd>,
}

impl ImageQueues {
    /// Slots from 0 on belong to the first image, the next ones to the second, and so on.
    pub fn new(images: &[Arc<Image>], slots_per_image: usize) -> Result<Self> {
        let woken = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let woken = Arc::new(woken.map_err(Error::io("make an eventfd"))?);
        let queue = |image: &Arc<Image>| {
            let woken = Arc::clone(&woken);
            let wake = move || {
                // It would have to be full, and then the thread is awake.
                let _ = rustix::io::write(&woken, &1u64.to_ne_bytes());
            };
            ImageQueue::new(Arc::clone(image), Arc::new(wake))
        };
        Ok(ImageQueues {
            queues: images.iter().map(queue).collect(),
            slots_per_image,
            woken,
        })
    }

    /// Signalled for completions; a poller that watches it for edges never needs to read it.
    pub fn eventfd(&self) -> BorrowedFd<'_> {
        self.woken.as_fd()
    }

    /// Starts a request to the image of its slot.
    ///
    /// # Safety
    /// As for [`ImageQueue::start`].
    pub unsafe fn start(&mut self, request: &Request) -> std::result::Result<(), Full> {
        let slot = usize::try_from(request.token).unwrap_or(usize::MAX);
        // SAFETY: our caller promises the same.
        unsafe { self.queues[slot / self.slots_per_image].start(request) }
    }

    /// Whether [`reap`](Self::reap) finds something.
    pub fn has_completions(&self) -> bool {
        self.queues.iter().any(ImageQueue::has_completions)
    }

    /// Appends completions to `out`.
    pub fn reap(&mut self, out: &mut Vec<Completion>) {
        for queue in &mut self.queues {
            queue.reap(out);
        }
    }

    /// Waits until nothing is in flight, at most a second; then false.
    pub fn drain(&mut self) -> bool {
        const LIMIT: Duration = Duration::from_secs(1);
        const LOOK_INTERVAL: Duration = Duration::from_millis(1);
        let deadline = Instant::now() + LIMIT;
        let mut ignored = Vec::new();
        loop {
            self.reap(&mut ignored);
            if self.queues.iter().all(|queue| queue.in_flight() == 0) {
                return true;
            }
            if Instant::now() > deadline {
                return false;
            }
            sleep(LOOK_INTERVAL);
        }
    }
}

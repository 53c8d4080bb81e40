//! Sampler of `blockplane top`: a thread that takes one sample of the daemon's counters per request, over the connection that
//! it was given, and then signals an eventfd. So keys work while the daemon does not answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::sample::Sample;

/// A thread that takes samples on request. It ends when this is dropped, after the reply that it may wait for.
pub(super) struct OnDemandSampler {
    requests: Sender<()>,
    samples: Receiver<Result<Sample>>,
    /// Readable once there is a sample.
    ready_fd: Arc<OwnedFd>,
    /// When the sample was requested that has not arrived yet.
    requested_at: Option<Instant>,
}

impl OnDemandSampler {
    /// Starts the thread, which waits for a request.
    pub fn start(mut client: Client) -> Result<Self> {
        let ready_fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Arc::new)
            .map_err(Error::io("make an eventfd"))?;
        let (requests, requested) = channel();
        let (results, samples) = channel();
        let notify = Arc::clone(&ready_fd);
        let serve_requests = move || {
            for () in requested {
                // The screen may have been closed meanwhile.
                if results.send(Sample::take(&mut client)).is_err() {
                    return;
                }
                // This fails only when the counter overflows.
                let _ = rustix::io::write(&*notify, &1_u64.to_ne_bytes());
            }
        };
        let spawned = thread::Builder::new()
            .name("sampler".to_owned())
            .spawn(serve_requests);
        spawned.map_err(Error::io("start a thread"))?;
        Ok(OnDemandSampler {
            requests,
            samples,
            ready_fd,
            requested_at: None,
        })
    }

    /// Requests a sample.
    pub fn request_sample(&mut self) {
        // This fails only if the thread panicked; then no sample ever comes.
        let _ = self.requests.send(());
        self.requested_at = Some(Instant::now());
    }

    /// The time since a sample was requested that has not arrived; `None` without a request.
    pub fn pending_request_age(&self) -> Option<Duration> {
        self.requested_at.map(|requested_at| requested_at.elapsed())
    }

    /// A descriptor that is readable once [`OnDemandSampler::take_sample_if_arrived`] has a sample.
    pub fn ready_fd(&self) -> &OwnedFd {
        &self.ready_fd
    }

    /// The requested sample or its error, once it has arrived.
    pub fn take_sample_if_arrived(&mut self) -> Option<Result<Sample>> {
        // The read only resets the counter; it fails while that is 0.
        let _ = rustix::io::read(&*self.ready_fd, &mut [0; 8]);
        let sample = self.samples.try_recv().ok();
        if sample.is_some() {
            self.requested_at = None;
        }
        sample
    }
}

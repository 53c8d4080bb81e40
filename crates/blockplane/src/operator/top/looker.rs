//! Looks at the daemon from a thread of its own, so that keys are answered while the daemon does not answer.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};

use crate::operator::client::Client;
use crate::operator::error::{Error, Result};
use crate::operator::sample::Sample;

/// Takes a sample when it is asked. Its thread ends when this is dropped, or when the answer it waits for has come.
pub(super) struct Looker {
    wanted: Sender<()>,
    samples: Receiver<Result<Sample>>,
    /// Readable once there is a sample.
    ready: Arc<OwnedFd>,
    asked: Option<Instant>,
}

impl Looker {
    /// Starts the thread, which does nothing yet.
    pub fn start(mut client: Client) -> Result<Self> {
        let ready = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map(Arc::new)
            .map_err(Error::io("make an eventfd"))?;
        let (wanted, wishes) = channel();
        let (taken, samples) = channel();
        let notify = Arc::clone(&ready);
        let look = move || {
            for () in wishes {
                // Who wished may have left.
                if taken.send(Sample::take(&mut client)).is_err() {
                    return;
                }
                // An eventfd takes it, unless 2^64 of them are not read.
                let _ = rustix::io::write(&*notify, &1_u64.to_ne_bytes());
            }
        };
        let spawned = thread::Builder::new().name("looker".to_owned()).spawn(look);
        spawned.map_err(Error::io("start a thread"))?;
        Ok(Looker {
            wanted,
            samples,
            ready,
            asked: None,
        })
    }

    /// Wishes for a sample.
    pub fn ask(&mut self) {
        // The thread is there as long as we are, unless it panicked; then there is never an answer.
        let _ = self.wanted.send(());
        self.asked = Some(Instant::now());
    }

    /// Since when a sample is waited for, if one is.
    pub fn waited(&self) -> Option<Duration> {
        self.asked.map(|asked| asked.elapsed())
    }

    /// What is readable once [`Looker::take`] has something.
    pub fn ready(&self) -> &OwnedFd {
        &self.ready
    }

    /// The sample that was wished for, if it is there, or why there is none.
    pub fn take(&mut self) -> Option<Result<Sample>> {
        // Nothing to read is no error.
        let _ = rustix::io::read(&*self.ready, &mut [0; 8]);
        let sample = self.samples.try_recv().ok();
        if sample.is_some() {
            self.asked = None;
        }
        sample
    }
}

//! One of the daemon's iothreads: event loop, engines and control messages are the program's own. It runs when the simulator lets it.

use std::sync::Arc;

use block::{BackendSettings, IoContext};
use engine::{AioKernel, AioSettings, PoolSettings};
use iothread::event_loop::{EventLoop, PollSettings, Remote};
use iothread::{Message, QueuesRunner};

use crate::plan::Config;
use crate::poller::Wakeups;

/// An iothread without a thread.
pub struct Iothread {
    io: EventLoop<QueuesRunner>,
    remote: Remote<Message>,
    /// What wakes it.
    pub wakeups: Wakeups,
}

impl Iothread {
    /// Without queues, above that kernel.
    #[must_use]
    pub fn new(config: &Config, kernel: Box<dyn AioKernel>) -> Self {
        let wakeups = Wakeups::default();
        let polling = PollSettings {
            max_ns: 0,
            ..PollSettings::default()
        };
        let settings = BackendSettings {
            aio: AioSettings {
                max_events: config.max_events,
                ..AioSettings::default()
            },
            pool: PoolSettings::default(),
        };
        let io = EventLoop::new(Box::new(wakeups.clone()), polling, |_, remote| {
            let (waker, mail) = (remote.waker(), wakeups.clone());
            let wake = Arc::new(move || {
                waker.wake();
                mail.state().wake();
            });
            let mut io = IoContext::new(settings, wake).map_err(std::io::Error::other)?;
            io.set_simulated_aio_kernel(kernel);
            Ok::<_, std::io::Error>(QueuesRunner::new(remote, io))
        });
        let io = io.expect("an iothread");
        Iothread {
            remote: io.remote(),
            io,
            wakeups,
        }
    }

    /// Sends a message, and does not wait.
    pub fn send(&self, message: Message) {
        self.remote.send(message).expect("a loop that runs");
        self.wakeups.state().wake();
    }

    /// Whether there is a reason to run.
    #[must_use]
    pub fn is_awake(&self) -> bool {
        self.wakeups.state().is_awake()
    }

    /// One iteration, if there is a reason.
    pub fn iterate(&mut self) {
        if self.is_awake() {
            let goes_on = self.io.iterate().expect("a poller that works");
            assert!(goes_on, "it was not stopped");
        }
    }

    /// Its engines.
    pub fn io(&mut self) -> &mut IoContext {
        self.io.runner().io_context_mut()
    }
}

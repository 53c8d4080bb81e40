//! A queue of a connection: its set-up by the front-end's messages, and its control once it runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use eventfd::Signaller;
use virtqueue::queue_setup::{QueueCommand, QueueFds, QueueSetup, StartError};
use virtqueue::{DirtyLog, GuestMemory, InflightRegion, QueueDirtyLog, RingFeatures, RingLayout};

use crate::device::{StartedQueue, VirtioDevice};

/// Addresses of the rings in the front-end's own address space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

/// Duplicates a descriptor. `None` also when descriptors have run out: then only the signal at the queue's start is
/// missed, which is optional.
fn try_duplicate(fd: Option<&OwnedFd>) -> Option<OwnedFd> {
    fd.and_then(|fd| fd.try_clone().ok())
}

/// The connection's part of a queue's set-up.
pub(crate) struct StartContext<'a> {
    pub memory: &'a Arc<GuestMemory>,
    pub features: RingFeatures,
    pub inflight: Option<InflightRegion>,
    /// The dirty log, while logging is on.
    pub log: Option<&'a Arc<DirtyLog>>,
    pub device: &'a dyn VirtioDevice,
    pub signaller: &'a Signaller,
}

/// A queue of a connection.
#[derive(Default)]
pub(crate) struct Vring {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub base: u32,
    pub enabled: bool,
    /// The guest address by which its used ring is logged, if it is to be.
    pub used_ring_log_address: Option<u64>,
    /// Eventfds for the start of the queue; while the queue runs, it has them.
    stopped_fds: QueueFds,
    running: Option<Box<dyn StartedQueue>>,
    /// The in-flight region of the running queue.
    inflight: Option<InflightRegion>,
    start_failed: bool,
    /// It takes no requests, whether it is enabled or not: a live upgrade.
    paused: bool,
    /// Nor before the node behind its device was exchanged.
    exchanging: bool,
    /// It stops without waiting for parked requests, and replies with its base.
    stopping: Option<Receiver<u32>>,
}

impl Vring {
    /// Whether the queue runs.
    pub fn is_running(&self) -> bool {
        self.running.is_some()
    }

    /// The queue, while it runs.
    pub fn running_queue(&self) -> Option<&dyn StartedQueue> {
        self.running.as_deref()
    }

    /// Sets whether the front-end has enabled the queue.
    pub fn set_enabled(&mut self, enabled: bool) {
        self.enabled = enabled;
        if let Some(running) = &self.running {
            running.send_command(QueueCommand::Enable(self.may_take_requests()));
        }
    }

    /// Whether it takes requests, if it runs.
    fn may_take_requests(&self) -> bool {
        self.enabled && !self.paused && !self.exchanging
    }

    /// Sets whether the node behind its device is about to be exchanged: it takes no requests meanwhile.
    pub fn set_paused_for_exchange(&mut self, exchanging: bool) {
        self.exchanging = exchanging;
        self.set_enabled(self.enabled);
    }

    /// Takes no more requests, also when it is started later.
    pub fn pause(&mut self) {
        self.paused = true;
        self.set_enabled(self.enabled);
    }

    /// Takes requests again, if it is enabled.
    pub fn resume(&mut self) {
        self.paused = false;
        self.set_enabled(self.enabled);
    }

    /// Sets the eventfd that notifies the guest of used buffers.
    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        match &self.running {
            Some(running) => running.send_command(QueueCommand::SetCall(call)),
            None => self.stopped_fds.call = call,
        }
    }

    /// Sets the eventfd that tells the front-end of errors.
    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        match &self.running {
            Some(running) => running.send_command(QueueCommand::SetErr(err)),
            None => self.stopped_fds.err = err,
        }
    }

    /// Starts the queue: the kick descriptor completes its set-up. A running queue gets another kick descriptor.
    pub fn start_or_set_kick(
        &mut self,
        index: u16,
        kick: Option<OwnedFd>,
        context: StartContext<'_>,
    ) -> Result<(), StartError> {
        let StartContext {
            memory,
            features,
            inflight,
            log,
            device,
            signaller,
        } = context;
        if let Some(running) = &self.running {
            let watched = running.send_and_wait(|reply| QueueCommand::SetKick(kick, reply));
            return watched.unwrap_or(Err(StartError::Stopped));
        }
        let layout = self.ring_layout(memory)?;
        // Kept in case the queue does not start.
        let kept_fds = QueueFds {
            kick: None,
            call: try_duplicate(self.stopped_fds.call.as_ref()),
            err: try_duplicate(self.stopped_fds.err.as_ref()),
        };
        let setup = QueueSetup {
            memory: memory.clone(),
            layout,
            features,
            base: self.base,
            inflight: inflight.clone(),
            log: self.make_queue_log(log),
            descriptors: QueueFds {
                kick,
                ..std::mem::take(&mut self.stopped_fds)
            },
            enabled: self.may_take_requests(),
        };
        match device.start_queue(index, setup) {
            Ok(started) => {
                self.running = Some(started);
                self.inflight = inflight;
                self.start_failed = false;
                // Front-ends expect a call when a queue starts: one of the previous
                // connection may never have reached the guest.
                if let Some(call) = &kept_fds.call {
                    signaller.signal(call);
                }
                Ok(())
            }
            Err(error) => {
                self.stopped_fds = kept_fds;
                Err(error)
            }
        }
    }

    /// Sets the dirty log, or that there is none.
    pub fn set_dirty_log_if_running(&self, log: Option<&Arc<DirtyLog>>) {
        if let Some(running) = &self.running {
            let log = self.make_queue_log(log);
            running.send_and_wait(|reply| QueueCommand::SetLog(log, reply));
        }
    }

    /// A dirty log with this queue's address for the used ring.
    fn make_queue_log(&self, log: Option<&Arc<DirtyLog>>) -> Option<QueueDirtyLog> {
        let used = self.used_ring_log_address;
        log.cloned().map(|log| QueueDirtyLog { log, used })
    }

    /// The eventfds that it would signal, call and err, while it does not run.
    pub fn stopped_call_and_err_fds(&self) -> [Option<&OwnedFd>; 2] {
        [
            self.stopped_fds.call.as_ref(),
            self.stopped_fds.err.as_ref(),
        ]
    }

    /// The ring's addresses in guest memory, which are those of the front-end's process in the messages.
    fn ring_layout(&self, memory: &GuestMemory) -> Result<RingLayout, StartError> {
        let addresses = self.addresses.ok_or_else(|| {
            StartError::FrontEnd(
                "kick descriptor before the ring addresses (SET_VRING_ADDR)".into(),
            )
        })?;
        if self.size == 0 {
            return Err(StartError::FrontEnd(
                "kick descriptor before the ring size (SET_VRING_NUM)".into(),
            ));
        }
        let guest_address = |what, user_addr| {
            memory.user_to_guest(user_addr).ok_or_else(|| {
                StartError::FrontEnd(format!(
                    "{what} ring at front-end address {user_addr:#x}, which is in no memory region"
                ))
            })
        };
        Ok(RingLayout {
            size: self.size,
            desc: guest_address("descriptor", addresses.desc)?,
            avail: guest_address("available", addresses.avail)?,
            used: guest_address("used", addresses.used)?,
        })
    }

    /// Signals to the front-end that the queue is broken and was not started. True for the first time since
    /// it last ran: then it should be logged.
    pub fn signal_and_note_start_failure(&mut self, signaller: &Signaller) -> bool {
        if let Some(err) = &self.stopped_fds.err {
            signaller.signal(err);
        }
        !std::mem::replace(&mut self.start_failed, true)
    }

    /// Whether the queue has an in-flight region, or had one when it ran last.
    pub fn has_inflight_region(&self) -> bool {
        self.inflight.is_some()
    }

    /// Clears the in-flight region of a stopped queue. The front-end gets the queue's base, and passes it when it starts the
    /// queue again.
    pub fn clear_and_drop_inflight_region(&mut self) {
        if let Some(inflight) = self.inflight.take() {
            inflight.clear_if_idle();
        }
    }

    /// Stops the queue if it runs, and returns its base.
    pub fn stop(&mut self) -> u32 {
        self.begin_stop();
        self.wait_for_stop(None).unwrap_or(self.base)
    }

    /// Lets the queue stop if it runs.
    pub fn begin_stop(&mut self) {
        if let Some(running) = self.running.take() {
            self.stopping = Some(running.begin_stop());
        }
    }

    /// Lets the queue stop if it runs; parked requests stay in its in-flight region, if it has one.
    pub fn begin_stop_leaving_parked(&mut self) {
        if let Some(running) = &self.running {
            running.send_command(QueueCommand::LeaveParked);
        }
        self.begin_stop();
    }

    /// The same, and waits for the queue's base.
    pub fn stop_leaving_parked(&mut self) -> u32 {
        self.begin_stop_leaving_parked();
        self.wait_for_stop(None).unwrap_or(self.base)
    }

    /// The queue's base after [`Vring::begin_stop_leaving_parked`]; `None` if the queue has not stopped within
    /// `timeout`.
    pub fn wait_for_stop(&mut self, timeout: Option<Duration>) -> Option<u32> {
        if let Some(stopping) = &self.stopping {
            let stopped = match timeout {
                Some(timeout) => stopping.recv_timeout(timeout),
                None => stopping.recv().map_err(RecvTimeoutError::from),
            };
            match stopped {
                Ok(base) => self.base = base,
                Err(RecvTimeoutError::Timeout) => return None,
                // Its iothread is gone.
                Err(RecvTimeoutError::Disconnected) => {}
            }
            self.stopping = None;
        }
        Some(self.base)
    }

    /// The reply comes when all requests are done that the queue has taken so far. Waits for a queue that is stopping.
    pub fn begin_settle(&self) -> Option<Receiver<()>> {
        if let Some(stopping) = &self.stopping {
            // The base is not needed: the connection is about to end.
            let _ = stopping.recv();
        }
        let running = self.running.as_ref()?;
        Some(running.send_for_reply(QueueCommand::Settle))
    }

    /// Lets the requests that the queue has taken so far pass limits, if it runs.
    pub fn let_present_requests_pass_limits(&self) {
        if let Some(running) = &self.running {
            // They do while something waits for them, whether or not the reply is received.
            drop(running.send_for_reply(QueueCommand::Settle));
        }
    }

    /// Stops the queue and clears its set-up.
    pub fn stop_and_reset(&mut self) {
        self.stop();
        self.clear_and_drop_inflight_region();
        *self = Vring {
            start_failed: self.start_failed,
            paused: self.paused,
            exchanging: self.exchanging,
            ..Vring::default()
        };
    }
}

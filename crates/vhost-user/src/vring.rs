//! One queue as the front-end sets it up, message by message, and once it runs.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use virtqueue::control::{Descriptors, QueueCommand, QueueSetup, StartError};
use virtqueue::{DirtyLog, GuestMemory, InflightRegion, QueueLog, RingFeatures, RingLayout};

use crate::target::{StartedQueue, Target};

/// Addresses of the rings in the front-end's own address space.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct RingAddresses {
    pub desc: u64,
    pub avail: u64,
    pub used: u64,
}

/// `None` also when descriptors have run out: a signal is missed then that nobody could be sure of.
fn duplicate(fd: Option<&OwnedFd>) -> Option<OwnedFd> {
    fd.and_then(|fd| fd.try_clone().ok())
}

fn signal(fd: Option<&OwnedFd>) {
    if let Some(fd) = fd {
        // A full counter is a signal already.
        let _ = rustix::io::write(fd, &1u64.to_ne_bytes());
    }
}

/// What the connection has for a queue that is started, beside what was said of the queue itself.
pub(crate) struct Surroundings<'a> {
    pub memory: &'a Arc<GuestMemory>,
    pub features: RingFeatures,
    pub inflight: Option<InflightRegion>,
    /// Where what is written to the guest's memory is logged, if it is.
    pub log: Option<&'a Arc<DirtyLog>>,
    pub target: &'a dyn Target,
}

/// A queue of a connection.
#[derive(Default)]
pub(crate) struct Vring {
    pub size: u16,
    pub addresses: Option<RingAddresses>,
    pub base: u32,
    pub enabled: bool,
    /// The guest address under which its used ring is logged, if it is to be.
    pub logged_used: Option<u64>,
    /// What it signals with when it starts; once it runs, it has them.
    signals: Descriptors,
    running: Option<Box<dyn StartedQueue>>,
    /// Where the queue that runs records what it takes.
    inflight: Option<InflightRegion>,
    start_failed: bool,
    /// It takes nothing before it is released, whether it is enabled or not.
    held: bool,
    /// Nor before what stands behind its device was exchanged.
    awaits_exchange: bool,
    /// It was told to leave what is not done in its record, and says here where it has stopped.
    leaving: Option<Receiver<u32>>,
}

impl Vring {
    pub fn runs(&self) -> bool {
        self.running.is_some()
    }

    pub fn running(&self) -> Option<&dyn StartedQueue> {
        self.running.as_deref()
    }

    pub fn enable(&mut self, enabled: bool) {
        self.enabled = enabled;
        if let Some(running) = &self.running {
            running.send(QueueCommand::Enable(self.may_take()));
        }
    }

    /// Whether it takes requests, if it runs.
    fn may_take(&self) -> bool {
        self.enabled && !self.held && !self.awaits_exchange
    }

    /// It takes nothing while this is so: what stands behind its device is about to be exchanged.
    pub fn await_exchange(&mut self, awaits: bool) {
        self.awaits_exchange = awaits;
        self.enable(self.enabled);
    }

    /// From now on it takes nothing, also when it is started.
    pub fn hold(&mut self) {
        self.held = true;
        self.enable(self.enabled);
    }

    /// It goes on.
    pub fn release(&mut self) {
        self.held = false;
        self.enable(self.enabled);
    }

    pub fn set_call(&mut self, call: Option<OwnedFd>) {
        match &self.running {
            Some(running) => running.send(QueueCommand::SetCall(call)),
            None => self.signals.call = call,
        }
    }

    pub fn set_err(&mut self, err: Option<OwnedFd>) {
        match &self.running {
            Some(running) => running.send(QueueCommand::SetErr(err)),
            None => self.signals.err = err,
        }
    }

    /// The kick descriptor completes the set-up: the queue starts.
    pub fn start(
        &mut self,
        index: u16,
        kick: Option<OwnedFd>,
        surroundings: Surroundings<'_>,
    ) -> Result<(), StartError> {
        let Surroundings {
            memory,
            features,
            inflight,
            log,
            target,
        } = surroundings;
        if let Some(running) = &self.running {
            let watched = running.ask(|reply| QueueCommand::SetKick(kick, reply));
            return watched.unwrap_or(Err(StartError::Stopped));
        }
        let layout = self.layout(memory)?;
        // To have them back if it does not start.
        let signals = Descriptors {
            kick: None,
            call: duplicate(self.signals.call.as_ref()),
            err: duplicate(self.signals.err.as_ref()),
        };
        let setup = QueueSetup {
            memory: memory.clone(),
            layout,
            features,
            base: self.base,
            inflight: inflight.clone(),
            log: self.log(log),
            descriptors: Descriptors {
                kick,
                ..std::mem::take(&mut self.signals)
            },
            enabled: self.may_take(),
        };
        match target.start_queue(index, setup) {
            Ok(started) => {
                self.running = Some(started);
                self.inflight = inflight;
                self.start_failed = false;
                // Front-ends expect a call when a queue starts: one that was meant for the connection
                // before may never have reached the guest.
                signal(signals.call.as_ref());
                Ok(())
            }
            Err(error) => {
                self.signals = signals;
                Err(error)
            }
        }
    }

    /// What is written to the guest's memory is logged there, or is not.
    pub fn set_log(&self, log: Option<&Arc<DirtyLog>>) {
        if let Some(running) = &self.running {
            let log = self.log(log);
            running.ask(|reply| QueueCommand::SetLog(log, reply));
        }
    }

    fn log(&self, log: Option<&Arc<DirtyLog>>) -> Option<QueueLog> {
        let used = self.logged_used;
        log.cloned().map(|log| QueueLog { log, used })
    }

    /// What it signals with, while it does not run.
    pub fn signals(&self) -> [Option<&OwnedFd>; 2] {
        [self.signals.call.as_ref(), self.signals.err.as_ref()]
    }

    fn layout(&self, memory: &GuestMemory) -> Result<RingLayout, StartError> {
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
        let guest = |what, user_addr| {
            memory.user_to_guest(user_addr).ok_or_else(|| {
                StartError::FrontEnd(format!(
                    "{what} ring at front-end address {user_addr:#x}, which is in no memory region"
                ))
            })
        };
        Ok(RingLayout {
            size: self.size,
            desc: guest("descriptor", addresses.desc)?,
            avail: guest("available", addresses.avail)?,
            used: guest("used", addresses.used)?,
        })
    }

    /// Tells the front-end that a queue that does not run is broken. True for the first time since
    /// it last ran: then the log should say it.
    pub fn fail_to_start(&mut self) -> bool {
        signal(self.signals.err.as_ref());
        !std::mem::replace(&mut self.start_failed, true)
    }

    /// Whether what it takes is recorded, if it runs, or was when it ran last.
    pub fn has_record(&self) -> bool {
        self.inflight.is_some()
    }

    /// The front-end hears where the queue has stopped, and will say it when it starts it again: with nothing in
    /// flight there is nothing to be recorded.
    pub fn forget_inflight(&mut self) {
        if let Some(inflight) = self.inflight.take() {
            inflight.forget();
        }
    }

    /// Stops the queue if it runs, and says where it stopped.
    pub fn stop(&mut self) -> u32 {
        if let Some(running) = self.running.take()
            && let Ok(base) = running.begin_stop().recv()
        {
            self.base = base;
        }
        self.base
    }

    /// Lets the queue stop if it runs; what is not done stays in its record, if it has one.
    pub fn begin_leave(&mut self) {
        if let Some(running) = self.running.take() {
            running.send(QueueCommand::LeaveParked);
            self.leaving = Some(running.begin_stop());
        }
    }

    /// The same, and says where it stopped.
    pub fn leave(&mut self) -> u32 {
        self.begin_leave();
        self.left(None).unwrap_or(self.base)
    }

    /// Where it has stopped after [`Vring::begin_leave`]; `None` if it has not after so long, where that is said.
    pub fn left(&mut self, patience: Option<Duration>) -> Option<u32> {
        if let Some(leaving) = &self.leaving {
            let left = match patience {
                Some(patience) => leaving.recv_timeout(patience),
                None => leaving.recv().map_err(RecvTimeoutError::from),
            };
            match left {
                Ok(base) => self.base = base,
                Err(RecvTimeoutError::Timeout) => return None,
                // Its iothread is gone.
                Err(RecvTimeoutError::Disconnected) => {}
            }
            self.leaving = None;
        }
        Some(self.base)
    }

    /// The answer comes when all is done that it has taken so far. Waits if it stops already.
    pub fn begin_settle(&self) -> Option<Receiver<()>> {
        if let Some(leaving) = &self.leaving {
            // The end of the connection, which is near, needs no answer.
            let _ = leaving.recv();
        }
        let running = self.running.as_ref()?;
        Some(running.begin(QueueCommand::Settle))
    }

    /// Stops the queue and forgets what the front-end said.
    pub fn reset(&mut self) {
        self.stop();
        self.forget_inflight();
        *self = Vring {
            start_failed: self.start_failed,
            held: self.held,
            awaits_exchange: self.awaits_exchange,
            ..Vring::default()
        };
    }
}

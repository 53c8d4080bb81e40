//! Front-ends and operators: queues start and stop, descriptors, memory and sizes change.

use std::sync::mpsc::{Receiver, TryRecvError};

use iothread::ResumeAction;
use virtqueue::QueueDirtyLog;
use virtqueue::queue_setup::{QueueCommand, QueueFds, QueueSetup};

use crate::daemon::Daemon;
use crate::inflight_memory::InflightMemory;
use crate::migration_copy::MigrationCopy;
use crate::model::SECTOR;
use crate::plan::DisconnectReason;

use super::{KnownQueue, Waits, World};

impl World {
    /// A daemon is started if there is none, and the queues that do not run.
    pub(super) fn connect(&mut self) {
        if self.waits.is_some() {
            return;
        }
        if self.daemon.is_none() {
            self.start_daemon();
        } else if self.running().is_empty() {
            self.negotiate();
        }
        for index in 0..self.known.len() {
            if !self.runs(index) {
                let enabled = !self.known[index].disabled;
                self.start_queue(index, enabled && !self.config.starts_disabled);
                if enabled && self.config.starts_disabled {
                    self.enable(index, true);
                }
            }
        }
        self.start_client();
        self.is_logged();
    }

    fn runs(&self, index: usize) -> bool {
        self.daemon
            .as_ref()
            .is_some_and(|daemon| daemon.queues[index].is_some())
    }

    pub(super) fn running(&self) -> Vec<usize> {
        let all = 0..self.known.len();
        all.filter(|index| self.runs(*index)).collect()
    }

    pub(super) fn start_daemon(&mut self) {
        self.start_daemon_with(None);
    }

    /// Starts a daemon, which takes over these bitmaps.
    pub(super) fn start_daemon_with(&mut self, bitmaps: Option<Vec<u8>>) {
        let sectors = self.kernel.state().disk().bytes().len() / SECTOR;
        self.trace
            .say(|| format!("a daemon starts, for {sectors} sectors"));
        self.daemon = Some(Daemon::new(
            &self.config,
            &self.kernel,
            sectors,
            self.filters,
            self.limits,
        ));
        self.begin_bitmaps(bitmaps);
        self.begin_throttling();
        let mut guest = self.guest.borrow_mut();
        if self.filters.are_tasks() {
            guest.is_served_by_tasks();
        }
        guest.resized(sectors as u64);
        guest.restarted();
        // Another process does not know what a driver has set.
        let mode = guest.cache.mode;
        drop(guest);
        if let Some(daemon) = &self.daemon {
            daemon.device.set_cache_mode(mode);
        }
        self.negotiate();
    }

    /// A queue starts where it stands.
    pub(super) fn start_queue(&mut self, index: usize, enabled: bool) {
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let mut guest = self.guest.borrow_mut();
        let (queue, known) = (&guest.queues[index], &mut self.known[index]);
        let log = guest.copying.as_ref().and_then(MigrationCopy::log);
        let after_crash = queue.driver.base_after_crash();
        let base = match (known.clean, self.config.packed) {
            (true, _) | (false, true) => known.base.unwrap_or(after_crash),
            (false, false) => after_crash,
        };
        known.clean = false;
        self.trace.say(|| {
            let disabled = if enabled { "" } else { ", disabled" };
            format!("queue {index} starts at {base:#x}{disabled}")
        });
        let layout = queue.driver.layout();
        let used = Some(layout.used);
        daemon.start(
            index,
            QueueSetup {
                layout,
                features: guest.features(),
                base,
                inflight: known.record.as_ref().map(InflightMemory::region),
                log: log.map(|log| QueueDirtyLog { log, used }),
                descriptors: QueueFds {
                    call: Some(queue.call.try_clone().expect("a descriptor")),
                    ..QueueFds::default()
                },
                memory: guest.memory.guest_memory(),
                enabled,
            },
        );
        // As the front-end's side of the daemon does: one that was meant for the connection before may be lost.
        rustix::io::write(&queue.call, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
        if enabled {
            guest.enabled(index);
        } else {
            guest.disabled(index);
        }
    }

    pub(super) fn leave(&mut self, how: DisconnectReason) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        if how == DisconnectReason::Migrate && self.is_copied() && daemon.queues.contains(&None) {
            // Who is gone without a word cannot go on elsewhere.
            return;
        }
        if self.config.inflight && (how == DisconnectReason::Vanish || self.config.suspends) {
            daemon.tell(|| QueueCommand::LeaveParked);
        }
        let answers = self.stop_all(|_| true);
        if how == DisconnectReason::Migrate {
            self.stop_client();
        }
        self.begin_wait(Waits::Stopped(how, answers));
    }

    /// One queue stops while the others go on.
    pub(super) fn stop_queue(&mut self, index: usize, reset: bool) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let Some(running) = daemon.queues[index] else {
            return;
        };
        if self.config.inflight && self.config.suspends {
            daemon.tell_queue(running, QueueCommand::LeaveParked);
        }
        let answers = self.stop_all(|other| other == index);
        self.begin_wait(Waits::QueueStopped(reset, index, answers));
    }

    pub(super) fn look_for_answers(&mut self) {
        let Some(mut waits) = self.waits.take() else {
            return;
        };
        let done = match &mut waits {
            Waits::Stopped(how, answers) => {
                let reported = *how != DisconnectReason::Vanish || !self.config.inflight;
                self.have_stopped(answers, reported) & self.client_has_stopped()
            }
            Waits::ClientStopped => self.client_has_stopped(),
            Waits::CopierStopped(answer) => answer.try_recv().is_ok(),
            Waits::QueueStopped(_, _, answers) | Waits::HandoverStopped(_, _, answers) => {
                self.have_stopped(answers, true) & self.client_has_stopped()
            }
            Waits::Settled(_, answers)
            | Waits::Logged(answers)
            | Waits::Mapped(answers)
            | Waits::CacheSettled(answers)
            | Waits::ExchangeSettled(_, answers)
            | Waits::Exchanged(_, _, answers)
            | Waits::Job(_, answers)
            | Waits::HandoverSettled(_, answers) => {
                answers.retain(|answer| answer.try_recv() == Err(TryRecvError::Empty));
                answers.is_empty()
            }
        };
        if !done {
            self.waits = Some(waits);
            return;
        }
        match waits {
            Waits::Stopped(how, _) => self.left(how),
            Waits::QueueStopped(reset, index, _) => {
                if reset {
                    self.guest.borrow_mut().reset_queue(index);
                    self.drop_region();
                    let disabled = self.known[index].disabled;
                    // What is recorded is about the ring that was.
                    self.known[index] = KnownQueue {
                        disabled,
                        ..KnownQueue::new(self.new_record())
                    };
                }
            }
            Waits::Settled(sectors, _) => {
                self.kernel.state().disk().resize(sectors.into());
                self.resize_bitmaps();
                self.guest.borrow_mut().cut(sectors.into());
            }
            Waits::ClientStopped => {}
            Waits::CopierStopped(_) => self.copier_has_stopped(),
            Waits::Job(step, _) => self.job_goes_on(step),
            Waits::Logged(_) => self.is_logged(),
            Waits::Mapped(_) => self.guest.borrow_mut().table_is_in_force(),
            Waits::CacheSettled(_) => self.flush(),
            Waits::ExchangeSettled(rewrites, _) => self.exchange_settled(rewrites),
            Waits::Exchanged(how, old, _) => self.exchanged(how, &old),
            Waits::HandoverSettled(how, _) => self.handover_settled(how),
            Waits::HandoverStopped(how, moved, _) => self.handover_stopped(how, &moved),
        }
    }

    /// The front-end drops an in-flight region. What a dead process had begun may be in there, which is not carried
    /// out and logged any more.
    fn drop_region(&self) {
        if self.has_lost_log {
            self.guest.borrow_mut().takes_back();
        }
    }

    /// Whether these have stopped. The front-end learns where they stand if it is still there (`reported`).
    fn have_stopped(&mut self, answers: &mut Vec<(usize, Receiver<u32>)>, reported: bool) -> bool {
        answers.retain(|(index, answer)| match answer.try_recv() {
            Ok(base) => {
                self.trace
                    .say(|| format!("queue {index} has stopped at {base:#x}"));
                self.seen.add("stops", 1);
                let known = &mut self.known[*index];
                known.disabling = false;
                if reported {
                    (known.base, known.clean) = (Some(base), true);
                    if let Some(record) = &known.record {
                        record.region().clear_if_idle();
                    }
                }
                if let Some(daemon) = &mut self.daemon {
                    daemon.queues[*index] = None;
                }
                false
            }
            Err(error) => {
                assert_eq!(error, TryRecvError::Empty, "a queue that stops says where");
                true
            }
        });
        answers.is_empty()
    }

    fn left(&mut self, how: DisconnectReason) {
        match how {
            DisconnectReason::Disconnect | DisconnectReason::Vanish => {}
            DisconnectReason::Reset(driver) => {
                if let Some(daemon) = &self.daemon {
                    daemon.device.reset();
                }
                self.seen.add("resets", 1);
                self.guest.borrow_mut().reset(driver);
                self.drop_region();
                self.new_queues();
            }
            DisconnectReason::Migrate => self.moves(),
        }
    }

    pub(super) fn set_call(&mut self, index: usize) {
        let daemon = self.daemon.as_ref().filter(|_| self.waits.is_none());
        let Some((daemon, running)) =
            daemon.and_then(|daemon| Some((daemon, daemon.queues[index]?)))
        else {
            return;
        };
        let queue = &mut self.guest.borrow_mut().queues[index];
        let flags = rustix::event::EventfdFlags::CLOEXEC | rustix::event::EventfdFlags::NONBLOCK;
        queue.call = rustix::event::eventfd(0, flags).expect("an eventfd");
        let call = queue.call.try_clone().expect("a descriptor");
        daemon.tell_queue(running, QueueCommand::SetCall(Some(call)));
    }

    /// The front-end enables a queue, or disables it. During an exchange or a handover its messages are not read.
    pub(super) fn enable(&mut self, index: usize, enabled: bool) {
        if let Some(
            Waits::ExchangeSettled(..)
            | Waits::Exchanged(..)
            | Waits::HandoverSettled(..)
            | Waits::HandoverStopped(..),
        ) = self.waits
        {
            return;
        }
        let known = &mut self.known[index];
        known.disabled = !enabled;
        if let Some(daemon) = &self.daemon
            && let Some(running) = daemon.queues[index]
        {
            daemon.tell_queue(running, QueueCommand::Enable(enabled));
            known.disabling = !enabled;
            if enabled {
                self.guest.borrow_mut().enabled(index);
            } else {
                self.seen.add("disabled", 1);
            }
        }
    }

    /// An iothread has run: it has read its messages, and those that sleep have seen all completions.
    pub(super) fn has_run(&mut self, iothread: usize) {
        self.untold.remove(&iothread);
        self.has_just_failed &= self.daemon.as_ref().is_some_and(Daemon::is_awake);
        for (index, known) in self.known.iter_mut().enumerate() {
            let is_there = index % self.config.iothreads == iothread;
            if is_there && std::mem::take(&mut known.disabling) {
                self.guest.borrow_mut().disabled(index);
            }
        }
    }

    pub(super) fn resize(&mut self, sectors: u16) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        if self.has_job() {
            return;
        }
        let now = self.kernel.state().disk().bytes().len() / SECTOR;
        let bytes = usize::from(sectors) * SECTOR;
        if usize::from(sectors) >= now {
            self.kernel.state().disk().resize(sectors.into());
            self.resize_bitmaps();
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
        } else {
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
            self.begin_wait(Waits::Settled(sectors, daemon.settle()));
        }
    }

    pub(super) fn resume(&mut self, how: ResumeAction) {
        if let Some(daemon) = &self.daemon
            && daemon.waiting() > 0
        {
            // Unless some have failed of which it does not know yet: it has not run, or other parts of the same request are at the disk.
            let at_disk = self.kernel.state().held_count() + daemon.waiting_job_count();
            self.may_be_parked &= self.has_just_failed || at_disk > 0;
            daemon.resume(how);
        }
    }
}

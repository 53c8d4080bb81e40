//! What front-ends and operators do: queues start and stop, descriptors, memory and sizes change.

use std::sync::mpsc::{TryRecvError, channel};

use data_plane::{Message, Resume};

use crate::copying::Copying;
use crate::daemon::{Daemon, Start};
use crate::model::SECTOR;
use crate::plan::Leave;
use crate::record::Record;

use super::{Waits, World};

impl World {
    pub(super) fn connect(&mut self) {
        if self.waits.is_some() {
            return;
        }
        if self.daemon.is_none() {
            let sectors = self.kernel.state().disk.bytes().len() / SECTOR;
            self.trace
                .say(|| format!("a daemon starts, for {sectors} sectors"));
            self.daemon = Some(Daemon::new(&self.config, &self.kernel, sectors));
            let mut guest = self.guest.borrow_mut();
            guest.resized(sectors as u64);
            guest.restarted();
        }
        let Some(daemon) = &mut self.daemon else {
            return;
        };
        let guest = self.guest.borrow();
        for (index, known) in self.known.iter_mut().enumerate() {
            if daemon.queues[index].is_some() {
                continue;
            }
            let queue = &guest.queues[index];
            let log = guest.copying.as_ref().and_then(Copying::log);
            let after_crash = queue.driver.base_after_crash();
            let base = match (known.clean, self.config.packed) {
                (true, _) | (false, true) => known.base.unwrap_or(after_crash),
                (false, false) => after_crash,
            };
            known.clean = false;
            known.disabled = false;
            self.trace
                .say(|| format!("queue {index} starts at {base:#x}"));
            daemon.start(
                index,
                Start {
                    layout: queue.driver.layout(),
                    features: guest.features(),
                    base,
                    inflight: known.record.as_ref().map(Record::region),
                    log,
                    call: queue.call.try_clone().expect("a descriptor"),
                    memory: guest.memory.guest_memory(),
                },
            );
            // As the front-end's side of the daemon does: one that was meant for the connection before may be lost.
            rustix::io::write(&queue.call, &1_u64.to_ne_bytes()).expect("an eventfd takes it");
        }
        drop(guest);
        self.is_logged();
    }

    pub(super) fn leave(&mut self, how: Leave) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        if how == Leave::Migrate && self.is_copied() && daemon.queues.contains(&None) {
            // Who is gone without a word cannot go on elsewhere.
            return;
        }
        self.trace
            .say(|| format!("the front-end stops the queues: {how:?}"));
        if how == Leave::Vanish && self.config.inflight {
            daemon.tell(Message::LeaveParked);
        }
        let running = (0..daemon.queues.len()).filter(|index| daemon.queues[*index].is_some());
        let answers = running.zip(daemon.ask(Message::Stop)).collect();
        self.waits = Some(Waits::Stopped(how, answers));
    }

    pub(super) fn look_for_answers(&mut self) {
        match &mut self.waits {
            None => {}
            Some(Waits::Stopped(how, answers)) => {
                let told = *how != Leave::Vanish || !self.config.inflight;
                answers.retain(|(index, answer)| match answer.try_recv() {
                    Ok(base) => {
                        self.trace
                            .say(|| format!("queue {index} has stopped at {base:#x}"));
                        self.seen.stops += 1;
                        let known = &mut self.known[*index];
                        if told {
                            (known.base, known.clean) = (Some(base), true);
                            if let Some(record) = &known.record {
                                record.region().forget();
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
                if answers.is_empty() {
                    self.left();
                }
            }
            Some(Waits::Logged(answers)) => {
                answers.retain(|answer| answer.try_recv() == Err(TryRecvError::Empty));
                if answers.is_empty() {
                    self.waits = None;
                    self.is_logged();
                }
            }
            Some(Waits::Settled(sectors, answers)) => {
                answers.retain(|answer| answer.try_recv() == Err(TryRecvError::Empty));
                if answers.is_empty() {
                    let sectors = *sectors;
                    self.waits = None;
                    self.trace
                        .say(|| format!("all have settled: the disk is cut to {sectors} sectors"));
                    self.kernel.state().disk.resize(sectors.into());
                    self.guest.borrow_mut().cut(sectors.into());
                }
            }
        }
    }

    fn left(&mut self) {
        let Some(Waits::Stopped(how, _)) = self.waits.take() else {
            return;
        };
        match how {
            Leave::Disconnect | Leave::Vanish => {}
            Leave::Reset => {
                self.guest.borrow_mut().new_queues();
                self.new_queues();
            }
            Leave::Migrate => self.moves(),
        }
    }

    pub(super) fn remap(&mut self) {
        if let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) {
            self.trace
                .say(|| "the guest's memory is mapped anew".to_owned());
            let memory = self.guest.borrow_mut().remap();
            daemon.tell(|place| Message::SetMemory(place, memory.clone(), channel().0));
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
        daemon.send(Message::SetCall(running.place, Some(call)));
    }

    pub(super) fn enable(&mut self, index: usize, enabled: bool) {
        if let Some(daemon) = &self.daemon
            && let Some(running) = daemon.queues[index]
        {
            self.trace
                .say(|| format!("queue {index}: enabled: {enabled}"));
            daemon.send(Message::Enable(running.place, enabled));
            self.known[index].disabled = !enabled;
        }
    }

    pub(super) fn resize(&mut self, sectors: u16) {
        let Some(daemon) = self.daemon.as_ref().filter(|_| self.waits.is_none()) else {
            return;
        };
        let now = self.kernel.state().disk.bytes().len() / SECTOR;
        let bytes = usize::from(sectors) * SECTOR;
        self.trace
            .say(|| format!("the disk of {now} sectors is to have {sectors}"));
        if usize::from(sectors) >= now {
            self.kernel.state().disk.resize(sectors.into());
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
        } else {
            daemon.device.resize(bytes as u64);
            self.guest.borrow_mut().resized(sectors.into());
            self.waits = Some(Waits::Settled(sectors, daemon.ask(Message::Settle)));
        }
    }

    pub(super) fn resume(&mut self, how: Resume) {
        if let Some(daemon) = &self.daemon
            && daemon.waiting() > 0
        {
            self.trace
                .say(|| format!("what waits after an error goes on: {how:?}"));
            daemon.tell(|place| Message::Resume(place, how));
        }
    }
}

//! A server that another process goes on with: its thread stands still between two messages, its queues are stopped,
//! and what the front-end has set up is described.
//!
//! Nothing of it is final: a [`Parked`] that is dropped goes on where it was.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use vhost::vhost_user::message::{VhostUserProtocolFeatures, VhostUserVirtioFeatures};
use virtqueue::control::{Descriptors, QueueCommand, StartError};

use crate::connection::Connection;
use crate::message::{Message, Request};
use crate::server::{Server, Shared, lock};
use crate::vring::Surroundings;

/// A connection on its way to another process.
#[derive(Debug)]
pub struct HandedOver {
    /// The front-end's socket.
    pub stream: OwnedFd,
    /// What it has said, as far as it still matters.
    pub messages: Vec<Message>,
    /// Queues that run, and what each is kicked with.
    pub queues: Vec<(u16, Option<OwnedFd>)>,
}

/// A server whose thread stands still. It goes on when this is dropped, and so do its queues.
pub struct Parked {
    shared: Arc<Shared>,
    session: Option<Arc<Mutex<Connection>>>,
    /// Of the queues that ran.
    descriptors: Vec<(u16, Descriptors)>,
    /// Those that were stopped.
    stopped: bool,
}

impl Server {
    /// Lets the thread stand still before its next message or front-end. `None`: it is at one that does not end within
    /// `patience`, or it is at its end.
    #[must_use]
    pub fn park(&self, patience: Duration) -> Option<Parked> {
        let shared = &self.shared;
        let mut state = shared.state();
        if state.stopping {
            return None;
        }
        state.parking = true;
        drop(state);
        self.wake();
        let waited = shared
            .changed
            .wait_timeout_while(shared.state(), patience, |state| !state.parked);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        if !state.parked {
            state.parking = false;
            return None;
        }
        let session = state.session.clone();
        drop(state);
        Some(Parked {
            shared: shared.clone(),
            session,
            descriptors: Vec::new(),
            stopped: false,
        })
    }
}

impl Parked {
    /// Describes the connection, if there is one.
    ///
    /// # Errors
    /// Too many files are open, or the guest is being migrated.
    pub fn hand_over(&mut self) -> io::Result<Option<HandedOver>> {
        let Some(session) = &self.session else {
            return Ok(None);
        };
        let stream = self.shared.state().connection.clone();
        let Some(stream) = stream else {
            return Ok(None);
        };
        let session = lock(session);
        if session.logs() {
            return Err(io::Error::other(
                "its guest is being migrated; try again when that is over",
            ));
        }
        self.descriptors = session.descriptors()?;
        let kicks = self.descriptors.iter().map(|(index, descriptors)| {
            let kick = descriptors.kick.as_ref().map(OwnedFd::try_clone);
            Ok((*index, kick.transpose()?))
        });
        Ok(Some(HandedOver {
            queues: kicks.collect::<io::Result<_>>()?,
            messages: session.described(&self.descriptors)?,
            stream: stream.as_fd().try_clone_to_owned()?,
        }))
    }

    /// Lets the queues take no more. Each answers when it has done what it had taken.
    #[must_use]
    pub fn begin_rest(&mut self) -> Vec<Receiver<()>> {
        let Some(session) = &self.session else {
            return Vec::new();
        };
        let mut session = lock(session);
        for vring in &mut session.vrings {
            vring.hold();
        }
        let running = session.vrings.iter().filter_map(|vring| vring.running());
        running
            .map(|running| running.begin(QueueCommand::Settle))
            .collect()
    }

    /// The same for one of them, which answers if it runs; the others are left as they are.
    #[must_use]
    pub fn begin_rest_of(&mut self, index: u16) -> Option<Receiver<()>> {
        let mut session = lock(self.session.as_ref()?);
        let vring = session.vrings.get_mut(usize::from(index))?;
        vring.hold();
        let running = vring.running()?;
        Some(running.begin(QueueCommand::Settle))
    }

    /// Stops the queues, and says where they stand. What is not done stays in the record, which goes along.
    #[must_use]
    pub fn stop(&mut self) -> Vec<(u16, u32)> {
        let Some(session) = &self.session else {
            return Vec::new();
        };
        self.stopped = true;
        let mut session = lock(session);
        let indices = self.descriptors.iter().map(|(index, _)| *index);
        let stop = |index| {
            let vring = session.vrings.get_mut(usize::from(index))?;
            let base = vring.leave();
            vring.forget_inflight();
            Some((index, base))
        };
        indices.filter_map(stop).collect()
    }

    /// Another process has all of it: nothing goes on here, and this process is to end.
    pub fn leave(self) {
        std::mem::forget(self);
    }
}

impl Drop for Parked {
    fn drop(&mut self) {
        if let Some(session) = &self.session {
            let mut session = lock(session);
            if self.stopped {
                for (index, descriptors) in self.descriptors.drain(..) {
                    session.restart(index, descriptors);
                }
            }
            for vring in &mut session.vrings {
                vring.release();
            }
        }
        self.shared.go_on();
    }
}

impl Connection {
    /// Of the queues that run.
    fn descriptors(&self) -> io::Result<Vec<(u16, Descriptors)>> {
        let running = (0..).zip(&self.vrings);
        let running = running.filter_map(|(index, vring)| Some((index, vring.running()?)));
        running
            .map(|(index, running)| {
                let gone = || Err(io::Error::other(StartError::Stopped));
                let descriptors = running.ask(QueueCommand::Descriptors);
                Ok((index, descriptors.unwrap_or_else(gone)?))
            })
            .collect()
    }

    /// What a front-end would say to have this connection again, but for the start of its queues.
    fn described(&self, running: &[(u16, Descriptors)]) -> io::Result<Vec<Message>> {
        let mut messages = vec![Message::bare(Request::GetFeatures)?];
        let mut say = |message: io::Result<Message>| message.map(|message| messages.push(message));
        let protocol = self.acked_protocol_features;
        if protocol != 0 {
            say(Message::bare(Request::GetProtocolFeatures))?;
            say(Message::number(Request::SetProtocolFeatures, protocol))?;
        }
        if self.acked_features != 0 {
            say(Message::number(Request::SetFeatures, self.acked_features))?;
        }
        let regions = self.table.regions();
        if protocol & VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS.bits() != 0 {
            for region in &regions {
                say(Message::add_memory(&region.said, region.file))?;
            }
        } else if !regions.is_empty() {
            let said: Vec<_> = regions.iter().map(|region| region.said).collect();
            let files: Vec<_> = regions.iter().map(|region| region.file).collect();
            say(Message::memory(&said, &files))?;
        }
        let inflight = self.inflight.as_ref().and_then(|buffer| buffer.described());
        if let Some((said, file)) = inflight {
            say(Message::inflight(&said, file))?;
        }
        if let Some(channel) = &self.channel {
            say(Message::backend_channel(channel.socket()))?;
        }
        let enables = self.acked_features & VhostUserVirtioFeatures::PROTOCOL_FEATURES.bits() != 0;
        for (index, vring) in (0..).zip(&self.vrings) {
            if vring.size != 0 {
                say(Message::vring(
                    Request::SetVringNum,
                    index,
                    vring.size.into(),
                ))?;
            }
            if let Some(addresses) = vring.addresses {
                say(Message::vring_addr(index, addresses))?;
            }
            say(Message::vring(Request::SetVringBase, index, vring.base))?;
            let of_running = running.iter().find(|(found, _)| *found == index);
            let [call, err] = match of_running {
                Some((_, found)) => [found.call.as_ref(), found.err.as_ref()],
                None => vring.signals(),
            };
            for (request, fd) in [(Request::SetVringCall, call), (Request::SetVringErr, err)] {
                if let Some(fd) = fd {
                    say(Message::vring_fd(request, index, Some(fd.as_fd())))?;
                }
            }
            if enables {
                let enabled = u32::from(vring.enabled);
                say(Message::vring(Request::SetVringEnable, index, enabled))?;
            }
        }
        Ok(messages)
    }

    /// Starts a queue again where it was stopped.
    fn restart(&mut self, index: u16, descriptors: Descriptors) {
        let (target, features) = (self.target.clone(), self.ring_features());
        let inflight = self.inflight_region(index);
        let (Some(memory), Some(vring)) =
            (self.memory.clone(), self.vrings.get_mut(usize::from(index)))
        else {
            return;
        };
        vring.set_call(descriptors.call);
        vring.set_err(descriptors.err);
        let kick = descriptors.kick;
        let surroundings = Surroundings {
            memory: &memory,
            features,
            inflight,
            // It is handed over only while nothing is logged.
            log: None,
            target: &*target,
        };
        if let Err(error) = vring.start(index, kick, surroundings) {
            tracing::error!(
                export = target.name(), queue = index, %error,
                advice = "the guest's driver has to reset the device",
                "a queue that was stopped cannot be started again"
            );
        }
    }
}

//! epoll(7) of the monitors' thread: its eventfd, the listening sockets and the clients. Idle clients cost nothing.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::limits::MAX_CLIENTS;

/// The data of the first listening socket. Clients are below, by their ids from 1.
const FIRST_LISTENER: u64 = 1 << 63;

/// A descriptor that is polled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PolledDescriptor {
    /// The eventfd of messages from the program.
    Messages,
    /// A socket that clients connect to, by its index.
    Listener(usize),
    /// A client, by its id.
    Client(u64),
}

impl PolledDescriptor {
    /// What epoll returns when it is ready.
    fn to_data(self) -> EventData {
        EventData::new_u64(match self {
            PolledDescriptor::Messages => 0,
            PolledDescriptor::Listener(index) => FIRST_LISTENER + index as u64,
            PolledDescriptor::Client(id) => id,
        })
    }

    /// The descriptor that epoll has returned as ready.
    fn from_data(data: EventData) -> Self {
        match data.u64() {
            0 => PolledDescriptor::Messages,
            // Its index was a usize.
            #[allow(clippy::cast_possible_truncation)]
            listener if listener >= FIRST_LISTENER => {
                PolledDescriptor::Listener((listener - FIRST_LISTENER) as usize)
            }
            id => PolledDescriptor::Client(id),
        }
    }
}

/// A descriptor that is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReadyDescriptor {
    pub source: PolledDescriptor,
    pub flags: EventFlags,
}

/// Set of polled descriptors. A descriptor leaves it when it is closed.
pub(crate) struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    /// Polls the eventfd of messages.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub fn polling_messages(messages: &OwnedFd) -> io::Result<Self> {
        let poller = Poller {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        };
        poller.add(messages, PolledDescriptor::Messages, EventFlags::IN)?;
        Ok(poller)
    }

    /// Starts to poll a descriptor.
    pub fn add(
        &self,
        fd: impl AsFd,
        source: PolledDescriptor,
        events: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, source.to_data(), events)?)
    }

    /// Changes the events that a descriptor is polled for.
    pub fn change_polled_events(
        &self,
        fd: impl AsFd,
        source: PolledDescriptor,
        events: EventFlags,
    ) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, source.to_data(), events)?)
    }

    /// Waits until a descriptor is ready, or for `timeout`.
    pub fn wait(&self, timeout: Option<Duration>) -> io::Result<Vec<ReadyDescriptor>> {
        // A time beyond the range of the type is no timeout.
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        let mut ready_events: Vec<Event> = Vec::with_capacity(MAX_CLIENTS);
        epoll::wait(
            &self.epoll,
            spare_capacity(&mut ready_events),
            timeout.as_ref(),
        )?;
        let ready = ready_events.iter().map(|event| ReadyDescriptor {
            source: PolledDescriptor::from_data(event.data),
            flags: event.flags,
        });
        Ok(ready.collect())
    }
}

//! Descriptors that the monitors' thread waits for. The kernel says what is ready: clients that are silent cost nothing,
//! however many they are.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};

use crate::limits::MAX_CLIENTS;

/// Doors are numbered from here, below them clients from 1.
const FIRST_DOOR: u64 = 1 << 63;

/// Whose descriptor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Key {
    /// The program's letters.
    Letters,
    /// A socket that clients connect to, by its index.
    Endpoint(usize),
    /// A client, by its id.
    Client(u64),
}

impl Key {
    fn to_data(self) -> EventData {
        EventData::new_u64(match self {
            Key::Letters => 0,
            Key::Endpoint(index) => FIRST_DOOR + index as u64,
            Key::Client(id) => id,
        })
    }

    fn of(data: EventData) -> Self {
        match data.u64() {
            0 => Key::Letters,
            // Its index was a usize.
            #[allow(clippy::cast_possible_truncation)]
            door if door >= FIRST_DOOR => Key::Endpoint((door - FIRST_DOOR) as usize),
            id => Key::Client(id),
        }
    }
}

/// Something is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ready {
    pub key: Key,
    pub flags: EventFlags,
}

/// Descriptors until they are closed.
pub(crate) struct Watch {
    epoll: OwnedFd,
}

impl Watch {
    /// Of the letters only.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new(letters: &OwnedFd) -> io::Result<Self> {
        let watch = Watch {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
        };
        watch.add(letters, Key::Letters, EventFlags::IN)?;
        Ok(watch)
    }

    /// From now on.
    pub fn add(&self, fd: impl AsFd, key: Key, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::add(&self.epoll, fd, key.to_data(), interest)?)
    }

    /// For something else from now on.
    pub fn change(&self, fd: impl AsFd, key: Key, interest: EventFlags) -> io::Result<()> {
        Ok(epoll::modify(&self.epoll, fd, key.to_data(), interest)?)
    }

    /// Waits until something is ready, or for so long.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<Vec<Ready>> {
        // (What is longer than a clock counts is for ever.)
        let limit = limit.and_then(|limit| Timespec::try_from(limit).ok());
        let mut events: Vec<Event> = Vec::with_capacity(MAX_CLIENTS);
        epoll::wait(&self.epoll, spare_capacity(&mut events), limit.as_ref())?;
        let ready = events.iter().map(|event| Ready {
            key: Key::of(event.data),
            flags: event.flags,
        });
        Ok(ready.collect())
    }
}

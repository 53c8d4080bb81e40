//! One queue of a front-end: a ring in guest memory, and the eventfds of both directions.

use std::os::fd::{AsFd, OwnedFd};

use virtqueue::testing::TestMemory;

use super::ring::Ring;
use super::wire::*;
use crate::events::{event, signal};

/// A queue.
#[derive(Debug)]
pub struct Queue {
    /// The driver's side.
    pub ring: Ring,
    /// Signalled by the driver.
    pub kick: OwnedFd,
    /// Signalled by the device.
    pub call: OwnedFd,
}

impl Queue {
    /// With eventfds of its own.
    #[must_use]
    pub fn new(ring: Ring) -> Self {
        Queue {
            ring,
            kick: event(),
            call: event(),
        }
    }

    /// Kicks the device.
    pub fn kick(&self) {
        signal(&self.kick);
    }

    /// Makes what was added available, and kicks if the device wants that.
    pub fn submit(&mut self) {
        if self.ring.publish() {
            self.kick();
        }
    }

    /// Payload of `SET_VRING_ADDR`.
    #[must_use]
    pub fn addresses(&self, memory: &TestMemory, index: u32, flags: u32) -> Vec<u8> {
        let layout = self.ring.layout();
        let [desc, avail, used] =
            [layout.desc, layout.avail, layout.used].map(|addr| memory.user_addr(addr));
        vring_addr(index, flags, desc, avail, used)
    }

    /// Describes it to a server as queue `index`, which begins at `base`.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn set_up(
        &self,
        wire: &Wire,
        memory: &TestMemory,
        index: u32,
        base: u32,
    ) -> Result<(), Disconnected> {
        wire.must(SET_VRING_BASE, &u32s(&[index, base]), &[])?;
        self.set_up_without_base(wire, memory, index)
    }

    /// The same, and does not say where it begins.
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn set_up_without_base(
        &self,
        wire: &Wire,
        memory: &TestMemory,
        index: u32,
    ) -> Result<(), Disconnected> {
        let entries = self.ring.layout().size.into();
        wire.must(SET_VRING_NUM, &u32s(&[index, entries]), &[])?;
        wire.must(SET_VRING_ADDR, &self.addresses(memory, index, 0), &[])?;
        let call = self.call.as_fd();
        wire.must(SET_VRING_CALL, &u64s(&[index.into()]), &[call])
    }

    /// Starts it; requests that were added are served without a kick once it is [enabled](Wire::enable).
    ///
    /// # Errors
    /// [`Disconnected`].
    #[track_caller]
    pub fn start(&self, wire: &Wire, index: u32) -> Result<(), Disconnected> {
        let kick = self.kick.as_fd();
        wire.must(SET_VRING_KICK, &u64s(&[index.into()]), &[kick])
    }
}

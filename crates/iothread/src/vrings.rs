//! Started queues of an iothread, by place. A place is the upper half of every token of the
//! queue's block requests; it is free again only when the last of them has completed.

use crate::socket_devices::SocketDevices;
use crate::vring::Vring;

#[derive(Default)]
pub(crate) struct Vrings {
    /// The socket devices, which share the places.
    pub socket_devices: SocketDevices,
    places: Vec<Option<Box<Vring>>>,
    free: Vec<u32>,
}

impl Vrings {
    /// Reserves a place.
    pub fn reserve(&mut self) -> u32 {
        self.free.pop().unwrap_or_else(|| {
            self.places.push(None);
            u32::try_from(self.places.len() - 1).expect("fewer than 2^32 queues")
        })
    }

    /// Number of places, at least that of queues.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Puts a queue into its reserved place.
    pub fn put(&mut self, place: u32, vring: Vring) {
        self.places[place as usize] = Some(Box::new(vring));
    }

    /// Frees a place; returns the queue in it.
    pub fn remove(&mut self, place: u32) -> Option<Box<Vring>> {
        self.free.push(place);
        self.places[place as usize].take()
    }

    #[inline]
    pub fn get(&self, place: u32) -> Option<&Vring> {
        self.places.get(place as usize)?.as_deref()
    }

    #[inline]
    pub fn get_mut(&mut self, place: u32) -> Option<&mut Vring> {
        self.places.get_mut(place as usize)?.as_deref_mut()
    }
}

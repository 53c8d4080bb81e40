//! Memory maps and routes of a queue that requests in flight still use.
//!
//! A new memory map or route begins a new generation of requests; those of older ones keep what they came with until they
//! have left the queue.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::AttachedDisk;
use device_queue::AdmitTime;
use virtqueue::GuestMemory;

/// What the requests of a generation use.
pub(crate) struct Used {
    pub memory: Arc<GuestMemory>,
    /// If the queue continues with another one.
    pub disk: Option<AttachedDisk>,
}

/// An older generation that has requests in flight.
struct Epoch {
    /// Requests that were admitted before, and are of no older generation, belong to it.
    end: AdmitTime,
    in_flight: u32,
    used: Used,
}

/// Those of a queue, from old to young.
#[derive(Default)]
pub(crate) struct Epochs {
    older: Vec<Epoch>,
    /// Waits until no older generation has requests in flight but parked ones.
    settling: Option<Sender<()>>,
}

impl Epochs {
    /// Requests of older generations that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.older.iter().map(|epoch| epoch.in_flight).sum()
    }

    /// The current generation ends: its requests, `in_flight` many, use this, which is returned if there are none.
    pub fn begin(&mut self, end: AdmitTime, in_flight: u32, used: Used) -> Option<Used> {
        if in_flight == 0 {
            return Some(used);
        }
        self.older.push(Epoch {
            end,
            in_flight,
            used,
        });
        None
    }

    /// Requests that were admitted then have left the queue. Returns what no request uses any more.
    pub fn release(&mut self, admitted: AdmitTime, requests: u32) -> Option<Used> {
        let index = self.older.iter().position(|epoch| admitted < epoch.end)?;
        self.older[index].in_flight -= requests;
        (self.older[index].in_flight == 0).then(|| self.older.remove(index).used)
    }

    /// `reply` hears when no older generation has requests in flight but parked ones.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.settling = Some(reply);
    }

    /// Nothing waits for requests of older generations, and there are none.
    #[inline]
    pub fn are_over(&self) -> bool {
        self.older.is_empty() && self.settling.is_none()
    }

    /// So many requests of older generations are parked.
    pub fn end_settling(&mut self, parked: u32) {
        if self.in_flight() == parked
            && let Some(reply) = self.settling.take()
        {
            // The receiver may be gone; ignore the error.
            let _ = reply.send(());
        }
    }
}

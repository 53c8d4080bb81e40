//! Memory maps and disks of a queue that requests in flight still use.
//!
//! A new memory map or disk begins a new generation of requests; those of older ones keep what they came with until they
//! have left the queue.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::AttachedDisk;
use telemetry::queue::AdmitTime;
use virtqueue::GuestMemory;

/// Memory and disks that the requests of a generation use.
pub(crate) struct Used {
    pub memory: Arc<GuestMemory>,
    /// Those that the queue continues without.
    pub disks: Vec<AttachedDisk>,
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
    /// Each waits until no older generation has requests in flight but parked ones.
    settling: Vec<Sender<()>>,
}

impl Epochs {
    /// Requests of older generations that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.older.iter().map(|epoch| epoch.in_flight).sum()
    }

    /// The current generation ends: its requests, `in_flight` many, use this, which is returned if there are none.
    pub fn begin(&mut self, end: AdmitTime, in_flight: u32, used: Used) -> Option<Used> {
        if in_flight == 0 {
            return Some(self.unused(self.older.len(), used));
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
        if self.older[index].in_flight > 0 {
            return None;
        }
        let used = self.older.remove(index).used;
        Some(self.unused(index, used))
    }

    /// No request of the generation at this place uses this any more. Its disks wait for the generations before it: later steps and
    /// retries of their requests went the way that was current then.
    fn unused(&mut self, index: usize, mut used: Used) -> Used {
        if let Some(before) = self.older[..index].last_mut() {
            before.used.disks.append(&mut used.disks);
        }
        used
    }

    /// The disks of older generations, whose requests are all parked: those that are retried go to the current ones.
    pub fn take_disks(&mut self) -> impl Iterator<Item = AttachedDisk> {
        self.older
            .iter_mut()
            .flat_map(|epoch| epoch.used.disks.drain(..))
    }

    /// `reply` is sent to when no older generation has requests in flight but parked ones.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
    }

    /// Nothing waits for requests of older generations, and there are none.
    #[inline]
    pub fn are_over(&self) -> bool {
        self.older.is_empty() && self.settling.is_empty()
    }

    /// Something waits for requests of older generations.
    pub fn are_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// So many requests of older generations are parked.
    pub fn end_settling(&mut self, parked: u32) {
        if self.in_flight() == parked {
            for reply in self.settling.drain(..) {
                // The receiver may be gone; ignore the error.
                let _ = reply.send(());
            }
        }
    }
}

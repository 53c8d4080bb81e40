//! Memory maps and disks of a queue that requests of older generations still use.
//!
//! A new memory map or disk begins a new generation of requests; requests of older ones keep their map and disks until they have
//! left the queue.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::AttachedDisk;
use telemetry::queue::AdmitTime;
use virtqueue::GuestMemory;

/// Memory and disks that the requests of a generation use.
pub(crate) struct Used {
    pub memory: Arc<GuestMemory>,
    /// Disks that the queue continues without.
    pub disks: Vec<AttachedDisk>,
}

/// An older generation that has requests in flight.
struct Epoch {
    /// Requests that were admitted before, and are of no older generation, belong to it.
    end: AdmitTime,
    in_flight: u32,
    used: Used,
}

/// Older generations of a queue, from old to young.
#[derive(Default)]
pub(crate) struct Epochs {
    older: Vec<Epoch>,
    /// Senders to be notified when no older generation has requests in flight but parked ones.
    settling: Vec<Sender<()>>,
}

impl Epochs {
    /// Requests of older generations that are in flight.
    pub fn in_flight(&self) -> u32 {
        self.older.iter().map(|epoch| epoch.in_flight).sum()
    }

    /// Ends the current generation, whose requests, `in_flight` many, use this. Returns it if there are none.
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

    /// Counts requests with this admit time that have left the queue. Returns what no request uses any more.
    pub fn release(&mut self, admitted: AdmitTime, requests: u32) -> Option<Used> {
        let index = self.older.iter().position(|epoch| admitted < epoch.end)?;
        self.older[index].in_flight -= requests;
        if self.older[index].in_flight > 0 {
            return None;
        }
        let used = self.older.remove(index).used;
        Some(self.unused(index, used))
    }

    /// The resources of a generation without requests, which can be released. Its disks pass to the generation before it, since later steps
    /// and retries of that one may have gone to them.
    fn unused(&mut self, index: usize, mut used: Used) -> Used {
        if let Some(before) = self.older[..index].last_mut() {
            before.used.disks.append(&mut used.disks);
        }
        used
    }

    /// Takes the disks of older generations whose requests are all parked: retries go to the current disks.
    pub fn take_disks(&mut self) -> impl Iterator<Item = AttachedDisk> {
        self.older
            .iter_mut()
            .flat_map(|epoch| epoch.used.disks.drain(..))
    }

    /// Notifies `reply` when no older generation has requests in flight but parked ones.
    pub fn settle(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
    }

    /// Whether there are no older generations, and no waits for them.
    #[inline]
    pub fn are_over(&self) -> bool {
        self.older.is_empty() && self.settling.is_empty()
    }

    /// Whether there are waits for older generations.
    pub fn are_settling(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Ends the waits if the requests of older generations are all parked, `parked` many.
    pub fn end_settling(&mut self, parked: u32) {
        if self.in_flight() == parked {
            for reply in self.settling.drain(..) {
                // The receiver may be gone; ignore the error.
                let _ = reply.send(());
            }
        }
    }
}

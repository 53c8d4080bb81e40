//! Memory maps and disks of a queue that requests of older generations still use.
//!
//! A new memory map or disk begins a new generation of requests; requests of older ones keep their map and disks until they have
//! left the queue.

use std::sync::Arc;
use std::sync::mpsc::Sender;

use block::AttachedDisk;
use telemetry::queue::AdmitTimeAndKind;
use virtqueue::GuestMemory;

/// Memory and disks that the requests of a generation use.
pub(crate) struct GenerationResources {
    pub memory: Arc<GuestMemory>,
    /// Disks that the queue continues without.
    pub disks: Vec<AttachedDisk>,
}

/// An older generation that has requests in flight.
struct OlderGeneration {
    /// Requests that were admitted before, and are of no older generation, belong to it.
    end: AdmitTimeAndKind,
    in_flight: u32,
    resources: GenerationResources,
}

/// Older generations of a queue, from old to young.
#[derive(Default)]
pub(crate) struct OlderGenerations {
    older: Vec<OlderGeneration>,
    /// Senders to be notified when no older generation has requests in flight but parked ones.
    settling: Vec<Sender<()>>,
}

impl OlderGenerations {
    /// Requests of older generations that are in flight.
    pub fn in_flight_count(&self) -> u32 {
        self.older
            .iter()
            .map(|generation| generation.in_flight)
            .sum()
    }

    /// Ends the current generation, whose requests, `in_flight` many, use this. Returns it if there are none.
    pub fn end_current_generation(
        &mut self,
        end: AdmitTimeAndKind,
        in_flight: u32,
        resources: GenerationResources,
    ) -> Option<GenerationResources> {
        if in_flight == 0 {
            return Some(self.pass_disks_to_previous(self.older.len(), resources));
        }
        self.older.push(OlderGeneration {
            end,
            in_flight,
            resources,
        });
        None
    }

    /// Counts requests with this admit time that have left the queue. Returns what no request uses any more.
    pub fn remove_finished_and_take_unused(
        &mut self,
        admitted: AdmitTimeAndKind,
        requests: u32,
    ) -> Option<GenerationResources> {
        let index = self
            .older
            .iter()
            .position(|generation| admitted < generation.end)?;
        self.older[index].in_flight -= requests;
        if self.older[index].in_flight > 0 {
            return None;
        }
        let resources = self.older.remove(index).resources;
        Some(self.pass_disks_to_previous(index, resources))
    }

    /// Passes the disks of a generation without requests to the generation before it, since later steps and retries of that
    /// one may have gone to them. Returns its other resources, which can be released.
    fn pass_disks_to_previous(
        &mut self,
        index: usize,
        mut resources: GenerationResources,
    ) -> GenerationResources {
        if let Some(before) = self.older[..index].last_mut() {
            before.resources.disks.append(&mut resources.disks);
        }
        resources
    }

    /// Takes the disks of older generations whose requests are all parked: retries go to the current disks.
    pub fn take_disks(&mut self) -> impl Iterator<Item = AttachedDisk> {
        self.older
            .iter_mut()
            .flat_map(|generation| generation.resources.disks.drain(..))
    }

    /// Notifies `reply` when no older generation has requests in flight but parked ones.
    pub fn reply_when_settled(&mut self, reply: Sender<()>) {
        self.settling.push(reply);
    }

    /// Whether there are no older generations, and no waits for them.
    #[inline]
    pub fn is_settled(&self) -> bool {
        self.older.is_empty() && self.settling.is_empty()
    }

    /// Whether there are waits for older generations.
    pub fn has_settle_waiters(&self) -> bool {
        !self.settling.is_empty()
    }

    /// Ends the waits if the requests of older generations are all parked, `parked` many.
    pub fn reply_if_only_parked(&mut self, parked: u32) {
        if self.in_flight_count() == parked {
            for reply in self.settling.drain(..) {
                // The receiver may be gone; ignore the error.
                let _ = reply.send(());
            }
        }
    }
}

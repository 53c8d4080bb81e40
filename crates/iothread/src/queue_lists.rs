//! Lists of queues with work (active, stalled, unpublished), and passes over them: to admit requests, to submit stalled ones,
//! and to enable kicks before the loop blocks.
//!
//! Queues, by their indices, are in three lists, each at most once:
//! - *active*: was kicked, has completed a request, or was found non-empty. It is polled in every
//!   iteration, with kicks disabled, until the loop is about to block and finds it empty, or it was
//!   found empty [`MAX_EMPTY_POLLS`](crate::vring::MAX_EMPTY_POLLS) times in a row while others kept the loop busy.
//! - *stalled*: an engine had no room. It becomes active when a request has completed, ahead of queues
//!   that did not wait. The list has two parts: queues that got no room at all go before those that got some.
//! - *unpublished*: has used entries that the guest does not see yet, or is about to end.
//!
//! Socket devices have indices as well, and are in *stalled* and in a list of their own:
//! - *ready devices*: those that wait for a turn, in the order in which they have become ready.

use block::IoContext;
use telemetry::queue::AdmissionEnd;

use crate::source_set::SourceSet;
use crate::source_table::SourceTable;
use crate::vring::Vring;

/// The lists of an iothread.
#[derive(Default)]
pub(crate) struct QueueLists {
    pub active: SourceSet,
    stalled: SourceSet,
    /// The second part of *stalled*: queues that got some room before there was no more.
    stalled_served: SourceSet,
    pub unpublished: SourceSet,
    pub ready_devices: SourceSet,
}

impl QueueLists {
    /// Makes room for every source in every list, so that none grows while requests are processed.
    pub fn reserve_sources(&mut self, source_count: usize) {
        for list in [
            &mut self.active,
            &mut self.stalled,
            &mut self.stalled_served,
            &mut self.unpublished,
            &mut self.ready_devices,
        ] {
            list.reserve_sources(source_count);
        }
    }

    /// Whether the source waits for room in an engine.
    fn is_stalled(&self, source_index: u32) -> bool {
        self.stalled.contains(source_index) || self.stalled_served.contains(source_index)
    }

    /// Makes a queue active, if requests may be admitted from it.
    #[inline]
    pub fn activate_if_may_admit(&mut self, vring: &mut Vring, source_index: u32) {
        if self.active.contains(source_index) || self.is_stalled(source_index) || !vring.may_admit()
        {
            return;
        }
        self.active.insert(source_index);
        vring.empty_polls = 0;
        vring.disable_kicks();
    }

    /// Removes a queue, from which no requests are admitted any more, from all lists but *unpublished*.
    pub fn stop_admitting(&mut self, source_index: u32) {
        self.stalled.remove(source_index);
        self.stalled_served.remove(source_index);
        self.active.remove(source_index);
    }

    /// Removes a source that has ended from all lists.
    pub fn remove_everywhere(&mut self, source_index: u32) {
        self.stop_admitting(source_index);
        self.unpublished.remove(source_index);
        self.ready_devices.remove(source_index);
    }

    /// Makes a queue stalled, which has requests that wait for room in an engine.
    #[cold]
    pub fn stall(&mut self, source_index: u32) {
        if !self.is_stalled(source_index) {
            self.active.remove(source_index);
            self.stalled.insert(source_index);
        }
    }

    /// Submits requests of stalled queues first, now that requests have completed and there is room. True if there were any.
    #[inline]
    pub fn submit_stalled(
        &mut self,
        sources: &mut SourceTable,
        io: &mut IoContext,
        now: u64,
    ) -> bool {
        let waited = !self.stalled.is_empty() || !self.stalled_served.is_empty();
        if waited {
            self.submit_stalled_slow(sources, io, now);
        }
        waited
    }

    /// Submits the requests of stalled queues until there is no room, and makes those active that have none left.
    fn submit_stalled_slow(&mut self, sources: &mut SourceTable, io: &mut IoContext, now: u64) {
        let QueueLists {
            active,
            stalled,
            stalled_served,
            unpublished: _,
            ready_devices,
        } = self;
        let mut resumed = 0;
        let mut stays = |source_index| {
            let Some(vring) = sources.get_mut(source_index) else {
                // A socket device.
                ready_devices.insert(source_index);
                return false;
            };
            let stays = !vring.submit_waiting(io, now);
            if !stays && vring.may_admit() {
                vring.empty_polls = 0;
                active.insert(source_index);
                resumed += 1;
            }
            stays
        };
        stalled.retain(&mut stays);
        stalled_served.retain(&mut stays);
        active.move_last_to_front(resumed);
    }

    /// Admits requests from each active queue in order, so that the one that waited longest gets the room there is.
    /// True when a queue was left with work because its budget was used up.
    #[inline]
    pub fn admit(
        &mut self,
        sources: &mut SourceTable,
        mut admit: impl FnMut(&mut Vring) -> Option<AdmissionEnd>,
    ) -> bool {
        let mut more = false;
        self.active.retain(|source_index| {
            let Some(vring) = sources
                .get_mut(source_index)
                .filter(|vring| vring.may_admit())
            else {
                return false;
            };
            let avail_before = vring.next_avail();
            let admission = admit(vring);
            if vring.take_pushed_outside_completions() {
                self.unpublished.insert(source_index);
            }
            let admitted_any = vring.next_avail() != avail_before;
            if admitted_any {
                vring.empty_polls = 0;
            }
            match admission {
                Some(AdmissionEnd::Drained) => {
                    admitted_any || !vring.count_empty_poll_or_enable_kicks()
                }
                Some(AdmissionEnd::Budget) => {
                    more |= vring.has_available();
                    true
                }
                Some(AdmissionEnd::Stalled) => {
                    match admitted_any {
                        true => self.stalled_served.insert(source_index),
                        false => self.stalled.insert(source_index),
                    };
                    false
                }
                Some(AdmissionEnd::Waits) | None => {
                    if vring.stopping.is_some() {
                        self.unpublished.insert(source_index);
                    }
                    false
                }
            }
        });
        more
    }

    /// Enables the kicks of all active queues, and keeps those active that have requests.
    pub fn enable_kicks(&mut self, sources: &mut SourceTable) -> EnableKicksResult {
        let mut result = EnableKicksResult::default();
        self.active.retain(|source_index| {
            let Some(vring) = sources
                .get_mut(source_index)
                .filter(|vring| vring.may_admit())
            else {
                return false;
            };
            if vring.kick.is_none() {
                result.any_unkicked = true;
                result.found_work |= vring.has_available();
                return true;
            }
            let found = !vring.enable_kicks_if_empty();
            result.found_work |= found;
            found
        });
        result
    }
}

/// Result of enabling the kicks of all active queues before the loop blocks.
#[derive(Default)]
pub(crate) struct EnableKicksResult {
    /// Whether there is work.
    pub found_work: bool,
    /// Whether there are queues whose guests do not kick.
    pub any_unkicked: bool,
}

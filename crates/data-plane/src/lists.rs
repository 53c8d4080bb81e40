//! Which queues are looked at, wait, or have something to tell.
//!
//! Queues move between three lists, each entered at most once (a flag in the queue says so):
//! - *active*: was kicked, has completed something, or was found non-empty; looked at in every
//!   iteration, its kicks suppressed, until the loop is about to block and finds it empty, or it was
//!   found empty [`EMPTY_LOOKS`] times in a row while others kept the loop busy;
//! - *stalled*: an engine had no room; becomes active when something has completed, ahead of those
//!   that did not wait. The list is in two parts: who got nothing at all goes before who got some;
//! - *unpublished*: has used entries that the guest does not see yet.

use block::Engines;
use virtio_blk::Admission;
use virtqueue::planted::{Mistake, is_planted};

use crate::vring::Vring;
use crate::vrings::Vrings;

/// How often in a row an active queue is found empty before it has to kick again. So many looks cost
/// about as much as the kick that they spare, which is the best that one can do without knowing when
/// the next request comes.
pub(crate) const EMPTY_LOOKS: u16 = 256;

/// The lists of an iothread, of places.
#[derive(Default)]
pub(crate) struct Lists {
    pub active: Vec<u32>,
    stalled: Vec<u32>,
    /// The second part of *stalled*: queues that got some room before there was no more.
    stalled_served: Vec<u32>,
    pub unpublished: Vec<u32>,
}

impl Lists {
    /// Every queue may be in every list: none of them grows on a request's way.
    pub fn make_room(&mut self, queues: usize) {
        for list in [
            &mut self.active,
            &mut self.stalled,
            &mut self.stalled_served,
            &mut self.unpublished,
        ] {
            list.reserve(queues.saturating_sub(list.len()));
        }
    }

    /// Puts a queue among those that are looked at, if requests may be taken from it.
    #[inline(always)]
    pub fn activate(&mut self, vring: &mut Vring, place: u32) {
        if !vring.active && !vring.stalled && vring.runs() {
            vring.active = true;
            vring.empty_looks = 0;
            vring.disable_kicks();
            self.active.push(place);
        }
    }

    /// The queue has used entries, or an end, that is not told yet.
    #[inline]
    pub fn mark_unpublished(&mut self, vring: &mut Vring, place: u32) {
        vring.unsettled = true;
        self.mark_finished_alone(vring, place);
    }

    /// The same for one request that was finished alone, if nothing else is told.
    #[inline]
    pub fn mark_finished_alone(&mut self, vring: &mut Vring, place: u32) {
        if !vring.unpublished {
            vring.unpublished = true;
            self.unpublished.push(place);
        }
    }

    /// A controller waits for room in an engine.
    pub fn stall_controller(&mut self, place: u32) {
        if !self.stalled.contains(&place) {
            self.stalled.push(place);
        }
    }

    /// A controller is gone.
    pub fn forget_controller(&mut self, place: u32) {
        self.stalled.retain(|other| *other != place);
        self.unpublished.retain(|other| *other != place);
    }

    /// No requests are taken from this queue any more.
    pub fn remove(&mut self, vring: &mut Vring, place: u32) {
        if vring.stalled {
            vring.stalled = false;
            self.stalled.retain(|other| *other != place);
            self.stalled_served.retain(|other| *other != place);
        }
        if vring.active {
            vring.active = false;
            self.active.retain(|other| *other != place);
        }
    }

    /// Something has completed, so there is room again: who waited for it goes first. True when
    /// somebody did.
    #[inline]
    pub fn resume_stalled(&mut self, vrings: &mut Vrings, engines: &mut Engines) -> bool {
        let waited = !self.stalled.is_empty() || !self.stalled_served.is_empty();
        if is_planted(Mistake::StalledForgotten) {
            return false;
        }
        if waited {
            self.resume(vrings, engines);
        }
        waited
    }

    fn resume(&mut self, vrings: &mut Vrings, engines: &mut Engines) {
        let Lists {
            active,
            stalled,
            stalled_served,
            unpublished,
        } = self;
        let others = active.len();
        let mut stays = |place: &u32| {
            let Some(vring) = vrings.get_mut(*place) else {
                // A controller's place. Twice does no harm.
                unpublished.push(*place);
                return false;
            };
            vring.stalled = !vring.hand_over_deferred(engines);
            if !vring.stalled && vring.runs() {
                vring.active = true;
                vring.empty_looks = 0;
                active.push(*place);
            }
            vring.stalled
        };
        stalled.retain(&mut stays);
        stalled_served.retain(&mut stays);
        active.rotate_left(others);
    }

    /// The queue has taken something that finds no room.
    #[cold]
    pub fn stall(&mut self, vring: &mut Vring, place: u32) {
        if !vring.stalled {
            self.remove(vring, place);
            vring.stalled = true;
            self.stalled.push(place);
        }
    }

    /// Looks at each active queue in order, so that who waited longest takes what room there is.
    /// True when a queue was left with work because its budget was used up.
    #[inline]
    pub fn admit(
        &mut self,
        vrings: &mut Vrings,
        mut admit: impl FnMut(&mut Vring) -> Option<Admission>,
    ) -> bool {
        let Lists {
            active,
            stalled,
            stalled_served,
            unpublished,
        } = self;
        let mut more = false;
        active.retain(|&place| {
            let Some(vring) = vrings.get_mut(place) else {
                return false;
            };
            if !vring.runs() {
                vring.active = false;
                return false;
            }
            let first = vring.next_avail();
            let admission = admit(vring);
            if vring.take_answered() && !vring.unpublished {
                vring.unpublished = true;
                vring.unsettled = true;
                unpublished.push(place);
            }
            let took = vring.next_avail() != first;
            vring.active = match admission {
                Some(Admission::Drained) => took || !vring.aged(),
                Some(Admission::Budget) => {
                    more |= vring.has_available();
                    true
                }
                Some(Admission::Stalled) => {
                    vring.stalled = true;
                    let stalled = if took {
                        &mut *stalled_served
                    } else {
                        &mut *stalled
                    };
                    stalled.push(place);
                    false
                }
                None => {
                    if vring.stopping.is_some() && !vring.unpublished {
                        vring.unpublished = true;
                        vring.unsettled = true;
                        unpublished.push(place);
                    }
                    false
                }
            };
            if took {
                vring.empty_looks = 0;
            }
            vring.active
        });
        more
    }

    /// Asks the guests of all active queues for kicks again, and keeps those that have something.
    pub fn park(&mut self, vrings: &mut Vrings) -> Parked {
        let mut parked = Parked::default();
        self.active.retain(|place| {
            let Some(vring) = vrings.get_mut(*place) else {
                return false;
            };
            if !vring.runs() {
                vring.active = false;
                return false;
            }
            if vring.kick.is_none() {
                parked.unkicked = true;
                parked.found |= vring.has_available();
                return true;
            }
            vring.active = !vring.rests();
            parked.found |= vring.active;
            vring.active
        });
        parked
    }
}

/// What was found when the loop was about to block.
#[derive(Default)]
pub(crate) struct Parked {
    /// There is work.
    pub found: bool,
    /// There are queues whose guests do not kick.
    pub unkicked: bool,
}

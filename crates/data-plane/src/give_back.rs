//! Completions on their way back to the queues that their requests came from.

use block::Engines;
use engine::Completion;

use crate::lists::Lists;
use crate::trace::Trace;
use crate::vring::Vring;
use crate::vrings::Vrings;

/// Whom completions are given back to, and when.
pub(crate) struct GiveBack<'a> {
    pub engines: &'a mut Engines,
    pub vrings: &'a mut Vrings,
    pub lists: &'a mut Lists,
    pub trace: &'a mut Trace,
}

impl GiveBack<'_> {
    /// Several, `now` in ticks.
    #[inline(never)]
    pub fn many(&mut self, completions: &[Completion], now: u64) {
        let done = match completions.first() {
            Some(first) if self.is_controllers(first) => self.of_controllers(completions, now),
            _ => 0,
        };
        for &completion in &completions[done..] {
            self.one::<false>(completion, |vring, slot, result, engines| {
                vring.complete(slot, result, engines, now);
            });
        }
    }

    /// Those of controllers' queues, up to the first of a disk's queue; how many these are. A controller takes all that are its own
    /// and follow each other at once.
    #[inline(never)]
    fn of_controllers(&mut self, completions: &[Completion], now: u64) -> usize {
        let mut done = 0;
        while let Some(completion) = completions.get(done)
            && self.is_controllers(completion)
        {
            done += 1;
            self.one::<false>(*completion, |vring, slot, result, engines| {
                let following = &completions[done..];
                done += vring.complete_scsi(slot, result, following, engines, now);
            });
        }
        done
    }

    #[inline(always)]
    fn is_controllers(&self, completion: &Completion) -> bool {
        let vring = self.vrings.get(place_of(completion.token));
        vring.is_some_and(Vring::is_controllers)
    }

    /// The only one of its phase: without a loop around it, and it counts at once. See [`Vring::complete_alone`].
    #[inline(always)]
    pub fn alone(&mut self, completion: Completion) {
        self.one::<true>(completion, |vring, slot, result, engines| {
            vring.complete_alone(slot, result, engines);
        });
    }

    #[inline(always)]
    fn one<const ALONE: bool>(
        &mut self,
        completion: Completion,
        complete: impl FnOnce(&mut Vring, u32, Result<(), engine::Errno>, &mut Engines),
    ) {
        let Completion { token, result } = completion;
        // The other half is the request's slot.
        #[allow(clippy::cast_possible_truncation)]
        let (place, slot) = (place_of(token), token as u32);
        let Some(vring) = self.vrings.get_mut(place) else {
            return self.controller_completed(place, slot, result);
        };
        complete(vring, slot, result, self.engines);
        self.trace.completed(place);
        if !vring.unpublished {
            if ALONE {
                self.lists.mark_finished_alone(vring, place);
            } else {
                self.lists.mark_unpublished(vring, place);
            }
            // Its guest is likely to ask again: it need not kick for that.
            self.lists.activate(vring, place);
        }
    }

    /// No queue has that place.
    #[cold]
    fn controller_completed(&mut self, place: u32, slot: u32, result: Result<(), engine::Errno>) {
        let Some(running) = self.vrings.controllers.get_mut(place) else {
            debug_assert!(
                false,
                "who has requests in flight is kept until the last has completed"
            );
            return;
        };
        if running.completed(slot, result) {
            self.lists.unpublished.push(place);
        }
    }
}

/// The queue's place, which is the upper half of a token.
#[inline(always)]
#[allow(clippy::cast_possible_truncation, reason = "a half")]
fn place_of(token: u64) -> u32 {
    (token >> 32) as u32
}

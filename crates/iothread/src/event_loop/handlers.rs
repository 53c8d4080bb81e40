//! Slab of the descriptors that a loop watches, each with the tag that the runner is called with when it is ready.
//!
//! A handler's cookie is its slot and the slot's generation. Looking one up is an index and a
//! comparison; a cookie whose handler was deleted in the meantime (also by another handler of the
//! same iteration) no longer compares equal and is skipped. There is no list to walk, no flag to
//! sweep, and no moment at which deleting is forbidden.

use std::os::fd::OwnedFd;

/// Identifier of a registered handler: slot and generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct HandlerId {
    slot: u32,
    generation: u32,
}

impl HandlerId {
    /// The cookie for the poller.
    #[must_use]
    pub fn cookie(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.slot)
    }

    /// The identifier from a cookie.
    #[must_use]
    #[allow(clippy::cast_possible_truncation)] // the two halves of the cookie are taken apart
    pub fn from_cookie(cookie: u64) -> Self {
        HandlerId {
            slot: cookie as u32,
            generation: (cookie >> 32) as u32,
        }
    }
}

/// End of the free list.
const NONE: u32 = u32::MAX;

/// A slot of the slab: in the free list, or a watched descriptor with its tag.
enum Slot<H, D> {
    Free { next: u32 },
    Used { fd: D, handler: H },
}

/// Slab of handlers. `H` is a small tag, with which the runner is called when the descriptor is ready. `D` is the descriptor;
/// only a measurement of the slab alone uses another type.
pub struct Handlers<H, D = OwnedFd> {
    slots: Vec<(u32, Slot<H, D>)>,
    first_free: u32,
    len: usize,
}

impl<H: Copy, D> Default for Handlers<H, D> {
    fn default() -> Self {
        Handlers {
            slots: Vec::new(),
            first_free: NONE,
            len: 0,
        }
    }
}

impl<H: Copy, D> Handlers<H, D> {
    /// Number of registered handlers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether none is registered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Registers a descriptor and its tag.
    ///
    /// # Panics
    /// With 2^32 - 1 handlers, which no process has descriptors for.
    pub fn insert(&mut self, fd: D, handler: H) -> HandlerId {
        self.len += 1;
        let used = Slot::Used { fd, handler };
        if self.first_free == NONE {
            let slot = u32::try_from(self.slots.len()).expect("fewer than 2^32 descriptors");
            self.slots.push((0, used));
            return HandlerId {
                slot,
                generation: 0,
            };
        }
        let slot = self.first_free;
        let (generation, place) = &mut self.slots[slot as usize];
        if let Slot::Free { next } = *place {
            self.first_free = next;
        }
        *place = used;
        HandlerId {
            slot,
            generation: *generation,
        }
    }

    /// The tag of a live handler; `None` for one that was deleted.
    #[must_use]
    pub fn get(&self, id: HandlerId) -> Option<H> {
        self.live_entry(id).map(|(_, handler)| handler)
    }

    /// The descriptor of a live handler.
    #[must_use]
    pub fn fd(&self, id: HandlerId) -> Option<&D> {
        self.live_entry(id).map(|(fd, _)| fd)
    }

    /// Deletes a handler and returns its descriptor; `None` when it was deleted before.
    pub fn remove(&mut self, id: HandlerId) -> Option<D> {
        self.live_entry(id)?;
        let (generation, place) = &mut self.slots[id.slot as usize];
        *generation = generation.wrapping_add(1);
        let freed = std::mem::replace(
            place,
            Slot::Free {
                next: self.first_free,
            },
        );
        self.first_free = id.slot;
        self.len -= 1;
        match freed {
            Slot::Used { fd, .. } => Some(fd),
            Slot::Free { .. } => None,
        }
    }

    /// The descriptor and the tag of a handler; `None` when it was removed.
    fn live_entry(&self, id: HandlerId) -> Option<(&D, H)> {
        match self.slots.get(id.slot as usize) {
            Some((generation, Slot::Used { fd, handler })) if *generation == id.generation => {
                Some((fd, *handler))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rustix::event::{EventfdFlags, eventfd};
    use std::collections::HashMap;

    fn fd() -> OwnedFd {
        eventfd(0, EventfdFlags::CLOEXEC).unwrap()
    }

    #[test]
    fn a_reused_slot_does_not_answer_to_the_old_id() {
        let mut handlers = Handlers::default();
        let first = handlers.insert(fd(), 'a');
        assert!(handlers.remove(first).is_some());
        let second = handlers.insert(fd(), 'b');
        assert_eq!(first.slot, second.slot, "the slot is reused");
        assert_eq!(handlers.get(first), None);
        assert!(handlers.remove(first).is_none());
        assert_eq!(handlers.get(second), Some('b'));
        assert_eq!(handlers.len(), 1);
    }

    #[test]
    fn cookies_survive_the_round_trip() {
        let id = HandlerId {
            slot: 0xdead_beef,
            generation: 0xfeed_cafe,
        };
        assert_eq!(HandlerId::from_cookie(id.cookie()), id);
    }

    proptest! {
        #[test]
        fn behaves_like_a_map(steps in proptest::collection::vec((any::<bool>(), any::<u8>()), 1..200)) {
            let mut handlers = Handlers::default();
            let mut model: HashMap<HandlerId, u8> = HashMap::new();
            let mut gone = Vec::new();
            for (add, value) in steps {
                if add || model.is_empty() {
                    let id = handlers.insert(fd(), value);
                    prop_assert!(model.insert(id, value).is_none());
                } else {
                    let id = *model.keys().nth(usize::from(value) % model.len()).unwrap();
                    prop_assert!(handlers.remove(id).is_some());
                    model.remove(&id);
                    gone.push(id);
                }
                prop_assert_eq!(handlers.len(), model.len());
                for (id, value) in &model {
                    prop_assert_eq!(handlers.get(*id), Some(*value));
                }
                for id in &gone {
                    prop_assert_eq!(handlers.get(*id), None);
                }
            }
        }
    }
}

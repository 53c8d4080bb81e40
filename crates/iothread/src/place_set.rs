//! Set of places in insertion order, with a membership test in constant time.

/// Places of queues, each at most once.
#[derive(Default)]
pub(crate) struct PlaceSet {
    order: Vec<u32>,
    /// By place.
    members: Vec<bool>,
}

impl PlaceSet {
    /// Makes room for so many places.
    pub fn make_room(&mut self, places: usize) {
        self.order.reserve(places.saturating_sub(self.order.len()));
        if self.members.len() < places {
            self.members.resize(places, false);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub fn contains(&self, place: u32) -> bool {
        self.members.get(place as usize).is_some_and(|is| *is)
    }

    /// False: it was a member already. There is [room](Self::make_room) for the place.
    #[inline]
    pub fn insert(&mut self, place: u32) -> bool {
        let was = std::mem::replace(&mut self.members[place as usize], true);
        if !was {
            self.order.push(place);
        }
        !was
    }

    /// False: it was no member.
    pub fn remove(&mut self, place: u32) -> bool {
        let was = self.contains(place);
        if was {
            self.members[place as usize] = false;
            self.order.retain(|other| *other != place);
        }
        was
    }

    /// Removes the member that was inserted last.
    #[inline]
    pub fn pop(&mut self) -> Option<u32> {
        let place = self.order.pop()?;
        self.members[place as usize] = false;
        Some(place)
    }

    /// Keeps the members for which `keep` returns true, which is called in their order.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let PlaceSet { order, members } = self;
        order.retain(|place| {
            let kept = keep(*place);
            members[*place as usize] = kept;
            kept
        });
    }

    /// Moves the last `count` members to the front.
    pub fn move_to_front(&mut self, count: usize) {
        self.order.rotate_right(count);
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.order.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::PlaceSet;

    #[test]
    fn a_place_is_in_a_set_once_and_in_its_order() {
        let mut set = PlaceSet::default();
        set.make_room(8);
        for place in [7, 2, 7, 5, 2] {
            set.insert(place);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [7, 2, 5]);
        assert!(!set.insert(2) && set.contains(2) && !set.contains(3));
        set.retain(|place| place != 2);
        assert!(!set.contains(2) && set.insert(2));
        set.move_to_front(1);
        assert_eq!(set.iter().collect::<Vec<_>>(), [2, 7, 5]);
        assert!(set.remove(7) && !set.remove(7) && !set.contains(7));
        assert_eq!((set.pop(), set.pop(), set.pop()), (Some(5), Some(2), None));
        assert!(set.is_empty() && !set.contains(5));
    }
}

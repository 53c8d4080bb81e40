//! Set of indices of sources (queues and socket devices) in insertion order, with a membership test in constant time.

/// Indices of sources (queues and socket devices), each at most once.
#[derive(Default)]
pub(crate) struct SourceSet {
    order: Vec<u32>,
    /// By index: whether the source is a member.
    members: Vec<bool>,
}

impl SourceSet {
    /// Makes room for the indices below `source_count`.
    pub fn reserve_sources(&mut self, source_count: usize) {
        self.order
            .reserve(source_count.saturating_sub(self.order.len()));
        if self.members.len() < source_count {
            self.members.resize(source_count, false);
        }
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    #[inline]
    pub fn contains(&self, source_index: u32) -> bool {
        self.members
            .get(source_index as usize)
            .is_some_and(|is| *is)
    }

    /// False: it was a member already. There is [room](Self::reserve_sources) for the index.
    #[inline]
    pub fn insert(&mut self, source_index: u32) -> bool {
        let was = std::mem::replace(&mut self.members[source_index as usize], true);
        if !was {
            self.order.push(source_index);
        }
        !was
    }

    /// False: it was no member.
    pub fn remove(&mut self, source_index: u32) -> bool {
        let was = self.contains(source_index);
        if was {
            self.members[source_index as usize] = false;
            self.order.retain(|other| *other != source_index);
        }
        was
    }

    /// Removes the member that was inserted last.
    #[inline]
    pub fn pop_last(&mut self) -> Option<u32> {
        let source_index = self.order.pop()?;
        self.members[source_index as usize] = false;
        Some(source_index)
    }

    /// Keeps the members for which `keep` returns true, which is called in their order.
    #[inline]
    pub fn retain(&mut self, mut keep: impl FnMut(u32) -> bool) {
        let SourceSet { order, members } = self;
        order.retain(|source_index| {
            let kept = keep(*source_index);
            members[*source_index as usize] = kept;
            kept
        });
    }

    /// Moves the last `count` members to the front.
    pub fn move_last_to_front(&mut self, count: usize) {
        self.order.rotate_right(count);
    }

    #[inline]
    pub fn iter(&self) -> impl Iterator<Item = u32> {
        self.order.iter().copied()
    }
}

#[cfg(test)]
mod tests {
    use super::SourceSet;

    #[test]
    fn a_source_is_in_a_set_once_and_in_its_order() {
        let mut set = SourceSet::default();
        set.reserve_sources(8);
        for source_index in [7, 2, 7, 5, 2] {
            set.insert(source_index);
        }
        assert_eq!(set.iter().collect::<Vec<_>>(), [7, 2, 5]);
        assert!(!set.insert(2) && set.contains(2) && !set.contains(3));
        set.retain(|source_index| source_index != 2);
        assert!(!set.contains(2) && set.insert(2));
        set.move_last_to_front(1);
        assert_eq!(set.iter().collect::<Vec<_>>(), [2, 7, 5]);
        assert!(set.remove(7) && !set.remove(7) && !set.contains(7));
        assert_eq!(
            (set.pop_last(), set.pop_last(), set.pop_last()),
            (Some(5), Some(2), None)
        );
        assert!(set.is_empty() && !set.contains(5));
    }
}

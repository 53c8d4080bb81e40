//! The bits of a dirty bitmap: one for each *granule* of a disk, set by several threads, with a count of the set ones.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use super::BitmapError;
use super::memory::MAX_BYTES;

/// The smallest granule, in bytes.
pub const MIN_GRANULARITY: u64 = 512;
/// The largest granule, in bytes.
pub const MAX_GRANULARITY: u64 = 2 << 30;
/// The most bits of one bitmap.
const MAX_BITS: u64 = 8 * MAX_BYTES;

/// The bits of a dirty bitmap. Several threads set them. Bits of named bitmaps are never cleared here: clearing one gives it new bits.
pub struct BitmapBits {
    /// Bytes of the disk.
    size: u64,
    /// log2 of the granularity.
    shift: u32,
    words: Box<[AtomicU64]>,
    /// Number of bits that are set.
    set_count: AtomicU64,
}

/// A part of a disk, all of it dirty or all of it clean.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirtyExtent {
    /// Bytes.
    pub len: u64,
    /// Whether it may have changed.
    pub dirty: bool,
}

impl BitmapBits {
    /// Clear bits for a disk of `size` bytes.
    ///
    /// # Errors
    /// [`BitmapError::Granularity`], [`BitmapError::TooLarge`].
    pub fn new(size: u64, granularity: u64) -> Result<Self, BitmapError> {
        if !granularity.is_power_of_two()
            || !(MIN_GRANULARITY..=MAX_GRANULARITY).contains(&granularity)
        {
            return Err(BitmapError::Granularity);
        }
        let bits = size.div_ceil(granularity);
        let too_large = || BitmapError::TooLarge {
            size,
            granularity,
            bits,
        };
        let words = usize::try_from(bits.div_ceil(64)).map_err(|_| too_large())?;
        let mut memory = Vec::new();
        if bits > MAX_BITS || memory.try_reserve_exact(words).is_err() {
            return Err(too_large());
        }
        memory.resize_with(words, AtomicU64::default);
        Ok(BitmapBits {
            size,
            shift: granularity.trailing_zeros(),
            words: memory.into_boxed_slice(),
            set_count: AtomicU64::new(0),
        })
    }

    /// Bytes of the disk.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Bytes for which there is one bit.
    #[must_use]
    pub fn granularity(&self) -> u64 {
        1 << self.shift
    }

    /// Bytes that may have changed, in whole granules.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.set_count.load(Ordering::Relaxed) << self.shift
    }

    /// Sets the bits of a range; what is behind the end of the disk has none. A bit that is set is only read: threads that
    /// write the same places do not take the memory from each other.
    pub fn mark(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.size);
        if bytes.start >= end {
            return;
        }
        let (first, last) = (bytes.start >> self.shift, (end - 1) >> self.shift);
        for (word, mask) in masks_of_bits(first, last) {
            self.set(word, mask);
        }
    }

    /// Sets the bits of a mask in one word.
    fn set(&self, word: usize, mask: u64) {
        let word = &self.words[word];
        if word.load(Ordering::Relaxed) & mask == mask {
            return;
        }
        let before = word.fetch_or(mask, Ordering::Release);
        let added = (mask & !before).count_ones();
        self.set_count
            .fetch_add(u64::from(added), Ordering::Relaxed);
    }

    /// Clears the bits of all granules that a range touches. A bit that is clear is only read.
    pub fn clear(&self, bytes: Range<u64>) {
        let end = bytes.end.min(self.size);
        if bytes.start >= end {
            return;
        }
        let (first, last) = (bytes.start >> self.shift, (end - 1) >> self.shift);
        for (index, mask) in masks_of_bits(first, last) {
            let word = &self.words[index];
            if word.load(Ordering::Relaxed) & mask == 0 {
                continue;
            }
            let removed = (word.fetch_and(!mask, Ordering::Release) & mask).count_ones();
            self.set_count
                .fetch_sub(u64::from(removed), Ordering::Relaxed);
        }
    }

    /// The first dirty range at or behind `from`, as long as it is, but not beyond `end`.
    #[must_use]
    pub fn next_dirty(&self, from: u64, end: u64) -> Option<Range<u64>> {
        let end = end.min(self.size);
        let end_bit = end.div_ceil(self.granularity());
        let start = self.next_bit(from >> self.shift, end_bit, true)? << self.shift;
        let start = start.max(from);
        if start >= end {
            return None;
        }
        let clean = self.next_bit(start >> self.shift, end_bit, false);
        let until = clean.map_or(end, |bit| (bit << self.shift).min(end));
        Some(start..until)
    }

    /// All dirty ranges.
    pub fn dirty_ranges(&self) -> impl Iterator<Item = Range<u64>> {
        let mut from = 0;
        std::iter::from_fn(move || {
            let range = self.next_dirty(from, self.size)?;
            from = range.end;
            Some(range)
        })
    }

    /// The dirty and the clean parts of a range, in order, in at most `most` pieces, which may be less than all.
    #[must_use]
    pub fn extents(&self, range: Range<u64>, most: usize) -> Vec<DirtyExtent> {
        let end = range.end.min(self.size);
        let (mut extents, mut at) = (Vec::new(), range.start);
        while at < end && extents.len() < most {
            let dirty = self.next_dirty(at, end).unwrap_or(end..end);
            let (is_dirty, until) = match dirty.start {
                start if start == at => (true, dirty.end),
                start => (false, start),
            };
            extents.push(DirtyExtent {
                len: until - at,
                dirty: is_dirty,
            });
            at = until;
        }
        extents
    }

    /// The first bit at or behind `from` that is set, or clear, in the words of the bits before `end`.
    fn next_bit(&self, from: u64, end: u64, set: bool) -> Option<u64> {
        let first = usize::try_from(from / 64).ok()?;
        let end = usize::try_from(end.div_ceil(64)).ok()?;
        let mut below = (1u64 << (from % 64)) - 1;
        for (index, word) in self.words.iter().enumerate().take(end).skip(first) {
            let value = word.load(Ordering::Acquire);
            let found = if set { value } else { !value };
            let wanted = found & !below;
            below = 0;
            if wanted != 0 {
                return Some(index as u64 * 64 + u64::from(wanted.trailing_zeros()));
            }
        }
        None
    }

    /// Sets what is set in other bits of a disk of the same size, which may have another granularity.
    pub fn merge(&self, other: &BitmapBits) {
        if self.shift != other.shift {
            for range in other.dirty_ranges() {
                self.mark(range);
            }
            return;
        }
        for (index, word) in other.words.iter().enumerate() {
            self.set(index, word.load(Ordering::Acquire));
        }
    }

    /// The bits of the same disk with another size. What is behind the former end is dirty: it may hold anything.
    ///
    /// # Errors
    /// [`BitmapError::TooLarge`].
    pub fn resized(&self, size: u64) -> Result<Self, BitmapError> {
        let resized = Self::new(size, self.granularity())?;
        for range in self.dirty_ranges() {
            resized.mark(range);
        }
        resized.mark(self.size..size);
        Ok(resized)
    }

    /// The bits, 64 to a word, the lowest first.
    pub fn words(&self) -> impl ExactSizeIterator<Item = u64> {
        self.words.iter().map(|word| word.load(Ordering::Acquire))
    }

    /// Sets bits as [`words`](Self::words) returned them. Bits behind the end of the disk are ignored.
    pub fn set_words(&self, words: impl Iterator<Item = u64>) {
        let bits = self.size.div_ceil(self.granularity());
        for (index, value) in words.take(self.words.len()).enumerate() {
            let left = bits - index as u64 * 64;
            let mask = if left < 64 { (1 << left) - 1 } else { u64::MAX };
            self.set(index, value & mask);
        }
    }
}

/// The words of the bits `first` to `last`, with the mask of these bits in each.
fn masks_of_bits(first: u64, last: u64) -> impl Iterator<Item = (usize, u64)> {
    (first / 64..=last / 64).map(move |word| {
        let low = if word == first / 64 { first % 64 } else { 0 };
        let high = if word == last / 64 { last % 64 } else { 63 };
        let index = usize::try_from(word).unwrap_or(usize::MAX);
        (index, u64::MAX << low & u64::MAX >> (63 - high))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Numbers that seem to be random, the same in each run.
    fn random() -> impl FnMut(u64) -> u64 {
        let mut state = 7_u64;
        move |end| {
            state = state.wrapping_mul(6_364_136_223_846_793_005) + 1;
            (state >> 33) % end
        }
    }

    fn dirty_granules(bits: &BitmapBits, granularity: u64) -> BTreeSet<u64> {
        let ranges = bits.dirty_ranges();
        let granules =
            ranges.flat_map(|range| range.start / granularity..range.end.div_ceil(granularity));
        granules.collect()
    }

    #[test]
    fn bits_agree_with_a_set_of_granules() {
        let mut random = random();
        for granularity in [512, 4096, 65536] {
            let size = 1_000_448;
            let bits = BitmapBits::new(size, granularity).unwrap();
            let mut model = BTreeSet::new();
            for _ in 0..60 {
                let start = random(size);
                let len = random(20_000);
                bits.mark(start..start + len);
                let end = (start + len).min(size);
                if len > 0 {
                    model.extend(start / granularity..end.div_ceil(granularity));
                }
                assert_eq!(bits.dirty_bytes(), model.len() as u64 * granularity);
            }
            assert_eq!(dirty_granules(&bits, granularity), model);
            let extents = bits.extents(0..size, usize::MAX);
            assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), size);
            let alternate = |pair: &[DirtyExtent]| pair[0].dirty != pair[1].dirty;
            assert!(extents.windows(2).all(alternate));
        }
    }

    #[test]
    fn cleared_granules_are_clean_and_the_others_stay() {
        let bits = BitmapBits::new(1 << 20, 4096).unwrap();
        bits.mark(0..1 << 20);
        bits.clear(4095..8193);
        bits.clear(4096..8192);
        bits.clear((1 << 20) - 1..2 << 20);
        assert_eq!(bits.dirty_bytes(), (1 << 20) - 4 * 4096);
        let all_but_the_ends = 3 * 4096..(1 << 20) - 4096;
        assert!(bits.dirty_ranges().eq([all_but_the_ends]));
    }

    #[test]
    fn extents_of_a_part_begin_and_end_inside_a_granule() {
        let bits = BitmapBits::new(1 << 20, 65536).unwrap();
        bits.mark(65536..65537);
        let extent = |len, dirty| DirtyExtent { len, dirty };
        let all = bits.extents(512..100_000, 9);
        assert_eq!(all, [extent(65024, false), extent(34464, true)]);
        let first = bits.extents(70_000..1 << 30, 1);
        assert_eq!(first, [extent(131_072 - 70_000, true)]);
        let rest = bits.extents(131_072..1 << 30, 9);
        assert_eq!(rest, [extent((1 << 20) - 131_072, false)]);
    }

    #[test]
    fn merging_into_another_granularity_loses_nothing() {
        let size = 1 << 20;
        for (from, to) in [(512, 65536), (65536, 512), (4096, 4096)] {
            let source = BitmapBits::new(size, from).unwrap();
            let target = BitmapBits::new(size, to).unwrap();
            target.mark(0..512);
            source.mark(200_000..200_001);
            source.mark(size - 1..size);
            target.merge(&source);
            let sectors = dirty_granules(&target, 512);
            assert!(sectors.is_superset(&dirty_granules(&source, 512)) && sectors.contains(&0));
            let once = target.dirty_bytes();
            target.merge(&source);
            assert_eq!(target.dirty_bytes(), once);
        }
    }

    #[test]
    fn a_disk_that_grows_is_dirty_behind_its_former_end() {
        let bits = BitmapBits::new(200_192, 4096).unwrap();
        bits.mark(0..1);
        bits.mark(100_000..100_001);
        let grown = bits.resized(300_032).unwrap();
        let expected = [0..4096, 98_304..102_400, 196_608..300_032];
        assert!(grown.dirty_ranges().eq(expected));
        let shrunk = grown.resized(1024).unwrap();
        assert!(shrunk.dirty_ranges().eq(std::iter::once(0..1024)));
        assert_eq!(shrunk.dirty_bytes(), 4096);
    }

    #[test]
    fn words_restore_the_bits_and_nothing_behind_the_end() {
        let bits = BitmapBits::new(70 * 512, 512).unwrap();
        bits.mark(0..512);
        bits.mark(69 * 512..70 * 512);
        let copy = BitmapBits::new(70 * 512, 512).unwrap();
        copy.set_words(bits.words());
        assert!(copy.dirty_ranges().eq(bits.dirty_ranges()));
        copy.set_words([u64::MAX; 3].into_iter());
        assert_eq!(copy.dirty_bytes(), 70 * 512);
    }

    #[test]
    fn sizes_without_room_in_memory_are_refused() {
        for granularity in [0, 256, 1000, 4 << 30] {
            let refused = BitmapBits::new(1 << 20, granularity);
            assert!(matches!(refused, Err(BitmapError::Granularity)));
        }
        let refused = BitmapBits::new(i64::MAX as u64, 512);
        assert!(matches!(refused, Err(BitmapError::TooLarge { .. })));
    }

    #[test]
    fn threads_that_set_the_same_bits_count_each_once() {
        let bits = BitmapBits::new(1 << 20, 512).unwrap();
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let bits = &bits;
                scope.spawn(move || {
                    for sector in 0..2048u64 {
                        let start = (sector * (2 * thread + 1)) % 2048 * 512;
                        bits.mark(start..start + 512);
                    }
                });
            }
        });
        assert_eq!(bits.dirty_bytes(), 1 << 20);
    }
}

//! Position in a packed queue's descriptor ring: index and wrap counter (section 2.8.1).
//!
//! A wrap counter of one bit distinguishes laps. It is 1 in the first, so a position is one of `2 * size`: two laps later it is the same
//! again.

/// `VIRTQ_DESC_F_AVAIL`: in a descriptor that the driver made available, its wrap counter.
pub(super) const F_AVAIL: u16 = 1 << 7;
/// `VIRTQ_DESC_F_USED`: the inverse of the above until the device has used the descriptor.
pub(super) const F_USED: u16 = 1 << 15;

/// A wrap counter's bit in the 16 bits of a position, as guest memory and vhost-user have it.
const WRAP_BIT: u16 = 1 << 15;

/// An index of the descriptor ring with its wrap counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PackedPosition {
    pub index: u16,
    pub wrap: bool,
}

impl PackedPosition {
    /// The position in which driver and device begin.
    pub const START: PackedPosition = PackedPosition {
        index: 0,
        wrap: true,
    };

    /// Decodes bits 0 to 14 and 15. The index may be anything.
    #[inline]
    pub fn from_bits(bits: u16) -> PackedPosition {
        PackedPosition {
            index: bits & !WRAP_BIT,
            wrap: bits & WRAP_BIT != 0,
        }
    }

    /// The index in bits 0 to 14, the wrap counter in bit 15.
    #[inline]
    pub fn to_bits(self) -> u16 {
        self.index | if self.wrap { WRAP_BIT } else { 0 }
    }

    /// The position `count` descriptors later, at most `size`, in a ring of `size`.
    #[inline]
    pub fn advance(self, count: u16, size: u16) -> PackedPosition {
        let index = self.index.wrapping_add(count);
        if index >= size {
            PackedPosition {
                index: index - size,
                wrap: !self.wrap,
            }
        } else {
            PackedPosition { index, ..self }
        }
    }

    /// Number of descriptors that `to` is ahead of this position, modulo two laps. Any index of `to`
    /// gives some number.
    #[inline]
    pub fn distance(self, to: PackedPosition, size: u16) -> u16 {
        let lap = if self.wrap == to.wrap { 0 } else { size };
        let ahead = to.index.wrapping_add(lap).wrapping_sub(self.index);
        // Only in the same lap can `to` lie behind; it comes again after two.
        if to.index < self.index && lap == 0 {
            ahead.wrapping_add(2 * size)
        } else {
            ahead
        }
    }

    /// Whether a descriptor at this position with these flags was made available in this lap.
    #[inline]
    pub fn is_available(self, flags: u16) -> bool {
        flags & (F_AVAIL | F_USED) == self.available_flags()
    }

    /// The AVAIL and USED flags of a descriptor that was made available at this position.
    #[inline]
    pub fn available_flags(self) -> u16 {
        if self.wrap { F_AVAIL } else { F_USED }
    }

    /// The flags of a used descriptor at this position, without `WRITE`.
    #[inline]
    pub fn used_flags(self) -> u16 {
        if self.wrap { F_AVAIL | F_USED } else { 0 }
    }
}

//! Pseudo-random numbers from a seed.

/// Marsaglia's xorshift64: three shifts per number, so that drawing one does not show in a
/// measurement.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        // Zero is the one state that it never leaves.
        Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `bound`, which is not 0.
    #[inline]
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        // The upper half of the product: no division, and no bias that matters here.
        let product = u128::from(self.0) * u128::from(bound);
        u64::try_from(product >> 64).unwrap_or(0)
    }

    /// An index into a slice of `len` elements, which is not 0.
    #[inline]
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).unwrap_or(0)
    }
}

//! Pseudo-random numbers from a seed.

/// A generator, and its seed.
#[derive(Clone, Copy, Debug)]
pub struct Random(pub u64);

impl Random {
    /// Less than `bound`.
    pub fn below(&mut self, bound: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(self.0 >> 33).unwrap() % bound
    }

    /// True once in so many times.
    pub fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }
}

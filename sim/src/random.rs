//! Numbers from a seed: the same seed, the same numbers, on every machine.

/// A generator (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From a seed.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Random(seed)
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ word >> 31
    }

    /// One below `end`, which is not 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end
    }

    /// One below `end`, for whatever is that small.
    #[expect(clippy::cast_possible_truncation, reason = "it is below a u32")]
    pub fn small(&mut self, end: u32) -> u32 {
        self.below(end.into()) as u32
    }

    /// One below `end`, which is at most 256.
    pub fn byte(&mut self, end: u32) -> u8 {
        u8::try_from(self.small(end)).expect("below 256")
    }

    /// One below `end`, which is at most 65536.
    pub fn short(&mut self, end: u32) -> u16 {
        u16::try_from(self.small(end)).expect("below 65536")
    }

    /// A place in a list of so many.
    #[expect(clippy::cast_possible_truncation, reason = "it is below a usize")]
    pub fn index(&mut self, count: usize) -> usize {
        self.below(count as u64) as usize
    }

    /// True once in so many times.
    pub fn one_in(&mut self, times: u64) -> bool {
        self.below(times) == 0
    }

    /// One of these.
    pub fn pick<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.index(list.len())]
    }
}

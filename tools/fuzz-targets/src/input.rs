//! Fuzz input as a source of choices.

/// What is left of an input. Behind its end there are zeroes, so that any input is a valid one.
pub struct Input<'a>(&'a [u8]);

impl<'a> Input<'a> {
    /// All of it.
    pub fn new(bytes: &'a [u8]) -> Self {
        Input(bytes)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lets `event` take what it wants, again and again until nothing is left, `most` times at most.
    pub fn events(&mut self, most: usize, mut event: impl FnMut(&mut Self)) {
        for _ in 0..most {
            if self.is_empty() {
                break;
            }
            event(self);
        }
    }

    /// The next `N` bytes.
    pub fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut array = [0; N];
        let bytes = self.bytes(N);
        array[..bytes.len()].copy_from_slice(bytes);
        array
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    /// A number below `limit`, at most 256.
    pub fn below(&mut self, limit: usize) -> usize {
        usize::from(self.byte()) % limit
    }

    /// Yes or no.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 != 0
    }

    /// At most `count` bytes, as they are.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, left) = self.0.split_at(count.min(self.0.len()));
        self.0 = left;
        bytes
    }
}

//! Registered buffers of a ring: which memory is pinned once instead of for every request, at which place of the kernel's table.
//!
//! The kernel's table has places, each for a piece of at most 1 GiB; a longer range takes several. The place of a request's
//! buffers is that of the last hit, or is found in a sorted list. A request that is not within one piece names its memory by
//! address, as without registered buffers.
//!
//! Each range has a count of users; the last one unregisters it.

use libc::iovec;
use rustix::io::Errno;

/// Most bytes of one place in the table: the kernel's limit.
const PIECE_BYTES: usize = 1 << 30;

/// Why memory could not be registered with a ring, with the remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BufferError {
    /// The kernel returned `ENOMEM`.
    #[error(
        "pinning {len} bytes of memory takes more than the limit of locked memory allows; \
         raise it (ulimit -l, LimitMEMLOCK=), which each iothread needs for itself, or give the \
         program CAP_IPC_LOCK"
    )]
    Locked {
        /// Bytes of the range.
        len: usize,
    },
    /// The kernel returned `EFAULT` or `EOPNOTSUPP`.
    #[error(
        "memory in a file cannot be pinned, nor can what its file is too short for; \
         let the VMM take it from memfd, tmpfs or hugetlbfs"
    )]
    Backing,
    /// The table has no free place.
    #[error("all {places} places of 1 GiB of the ring's table are taken; use more iothreads")]
    Full {
        /// Places of the table.
        places: u16,
    },
    /// The kernel has no sparse table.
    #[error("this kernel is too old: Linux 5.19 is needed")]
    TooOld,
    /// The kernel returned another error.
    #[error("io_uring_register failed: {0}")]
    Call(Errno),
}

impl BufferError {
    /// The error for an errno of io_uring_register(2) for `len` bytes.
    pub(super) fn from_errno(errno: Errno, len: usize) -> Self {
        match errno {
            Errno::NOMEM => Self::Locked { len },
            Errno::FAULT | Errno::OPNOTSUPP => Self::Backing,
            errno => Self::Call(errno),
        }
    }
}

/// The kernel's table.
pub(super) trait BufferTable {
    /// Registers memory at a place.
    ///
    /// # Safety
    /// The memory is mapped.
    unsafe fn register(&mut self, place: u16, buffer: &iovec) -> Result<(), BufferError>;

    /// Empties a place.
    fn unregister(&mut self, place: u16);
}

/// A piece of memory at one place in the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct RegisteredPiece {
    start: usize,
    len: usize,
    place: u16,
    users: u32,
}

impl RegisteredPiece {
    /// Whether the buffer lies inside of the piece.
    #[inline]
    fn contains(&self, buffer: &iovec) -> bool {
        // The kernel treats an empty buffer as outside.
        let (addr, len) = (buffer.iov_base as usize, buffer.iov_len);
        addr >= self.start && len > 0 && len <= self.len && addr - self.start <= self.len - len
    }
}

/// The registered pieces of a ring's table.
#[derive(Debug)]
pub(super) struct RegisteredBuffers {
    /// Sorted by address.
    pieces: Vec<RegisteredPiece>,
    /// Index of the piece that was found last.
    hint: usize,
    free: Vec<u16>,
    /// The first place that was never used.
    first_unused: u16,
    places: u16,
}

impl RegisteredBuffers {
    /// An empty table of so many places.
    pub fn new(places: u16) -> Self {
        Self {
            pieces: Vec::new(),
            hint: 0,
            free: Vec::new(),
            first_unused: 0,
            places,
        }
    }

    /// Whether any memory is registered.
    #[inline]
    pub fn has_any(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The place of a piece that holds all of these buffers.
    #[inline]
    pub fn find_place(&mut self, buffers: &[iovec]) -> Option<u16> {
        let (first, others) = buffers.split_first()?;
        let piece = match self.pieces.get(self.hint) {
            Some(piece) if piece.contains(first) => piece,
            Some(_) => self.search_piece_and_keep_hint(first)?,
            None => return None,
        };
        let are_all_inside = others.iter().all(|buffer| piece.contains(buffer));
        are_all_inside.then_some(piece.place)
    }

    /// The piece that holds a buffer, by binary search; the next look-up tries it first.
    fn search_piece_and_keep_hint(&mut self, buffer: &iovec) -> Option<&RegisteredPiece> {
        let addr = buffer.iov_base as usize;
        let after = self.pieces.partition_point(|piece| piece.start <= addr);
        let index = after.checked_sub(1)?;
        let piece = self
            .pieces
            .get(index)
            .filter(|piece| piece.contains(buffer))?;
        self.hint = index;
        Some(piece)
    }

    /// Adds a user of a range, and registers the range for the first one. Either all of it is registered or nothing.
    ///
    /// # Safety
    /// The range is mapped, and stays so until it has no users any more.
    pub unsafe fn register_or_share_range(
        &mut self,
        start: usize,
        len: usize,
        table: &mut impl BufferTable,
    ) -> Result<(), BufferError> {
        let mut added_bytes = 0;
        for (piece_start, piece_len) in split_into_pieces(start, len) {
            // SAFETY: our caller promises the same.
            let added = unsafe { self.register_or_share_piece(piece_start, piece_len, table) };
            if let Err(error) = added {
                self.unshare_or_unregister_if_idle(start, added_bytes, table, |_| true);
                return Err(error);
            }
            added_bytes += piece_len;
        }
        Ok(())
    }

    /// Adds a user of a piece, and registers the piece at a free place for the first one.
    ///
    /// # Safety
    /// As for [`register_or_share_range`](Self::register_or_share_range).
    unsafe fn register_or_share_piece(
        &mut self,
        start: usize,
        len: usize,
        table: &mut impl BufferTable,
    ) -> Result<(), BufferError> {
        if let Some(piece) = self.find_piece_index(start, len) {
            self.pieces[piece].users += 1;
            return Ok(());
        }
        let place = match self.free.pop() {
            Some(place) => place,
            None if self.first_unused < self.places => {
                self.first_unused += 1;
                self.first_unused - 1
            }
            None => {
                let places = self.places;
                return Err(BufferError::Full { places });
            }
        };
        let buffer = iovec {
            iov_base: std::ptr::with_exposed_provenance_mut(start),
            iov_len: len,
        };
        // SAFETY: our caller promises the same.
        if let Err(error) = unsafe { table.register(place, &buffer) } {
            self.free.push(place);
            return Err(error);
        }
        let index = self.pieces.partition_point(|piece| piece.start <= start);
        let piece = RegisteredPiece {
            start,
            len,
            place,
            users: 1,
        };
        self.pieces.insert(index, piece);
        self.hint = index;
        Ok(())
    }

    /// Removes a user of a range. A piece without users is unregistered if it `is_idle`, which means that no request in it is
    /// in flight. False: a piece was not idle, and stays registered for good; do not call again, as users of other pieces were
    /// removed.
    pub fn unshare_or_unregister_if_idle(
        &mut self,
        start: usize,
        len: usize,
        table: &mut impl BufferTable,
        is_idle: impl Fn(u16) -> bool,
    ) -> bool {
        let mut all_removed = true;
        for (start, len) in split_into_pieces(start, len) {
            let Some(index) = self.find_piece_index(start, len) else {
                continue;
            };
            let piece = &mut self.pieces[index];
            if piece.users > 1 {
                piece.users -= 1;
            } else if is_idle(piece.place) {
                table.unregister(piece.place);
                self.free.push(piece.place);
                self.pieces.remove(index);
                self.hint = 0;
            } else {
                all_removed = false;
            }
        }
        all_removed
    }

    /// The index of the piece with exactly this address and length.
    fn find_piece_index(&self, start: usize, len: usize) -> Option<usize> {
        self.pieces
            .iter()
            .position(|piece| (piece.start, piece.len) == (start, len))
    }
}

/// Cuts a range into pieces that fit a place: addresses and lengths.
fn split_into_pieces(start: usize, len: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..len)
        .step_by(PIECE_BYTES)
        .map(move |offset| (start + offset, PIECE_BYTES.min(len - offset)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: usize = PIECE_BYTES;

    fn iov(start: usize, len: usize) -> iovec {
        iovec {
            iov_base: std::ptr::without_provenance_mut(start),
            iov_len: len,
        }
    }

    /// A table that counts what is registered, and refuses more than `most`.
    struct Counted {
        known: usize,
        most: usize,
    }

    impl BufferTable for Counted {
        unsafe fn register(&mut self, _: u16, _: &iovec) -> Result<(), BufferError> {
            if self.known == self.most {
                return Err(BufferError::Backing);
            }
            self.known += 1;
            Ok(())
        }

        fn unregister(&mut self, _: u16) {
            self.known -= 1;
        }
    }

    /// The list and its table.
    struct Both(RegisteredBuffers, Counted);

    impl Both {
        fn new(places: u16) -> Self {
            let most = usize::MAX;
            Both(RegisteredBuffers::new(places), Counted { known: 0, most })
        }

        fn add(&mut self, start: usize, len: usize) -> Result<(), BufferError> {
            // SAFETY: the memory is not accessed.
            unsafe { self.0.register_or_share_range(start, len, &mut self.1) }
        }

        fn remove(&mut self, start: usize, len: usize) -> bool {
            self.0
                .unshare_or_unregister_if_idle(start, len, &mut self.1, |_| true)
        }

        fn find_place(&mut self, buffers: &[iovec]) -> Option<u16> {
            self.0.find_place(buffers)
        }
    }

    #[test]
    fn a_place_is_found_for_buffers_inside_of_its_piece() {
        let mut both = Both::new(8);
        assert_eq!(both.find_place(&[iov(0x1000, 1)]), None);
        for start in [0x9000, 0x2000, 0x3000] {
            both.add(start, 0x1000).unwrap();
        }
        for (start, len, place) in [
            (0x1fff, 1, None),
            (0x1fff, 2, None),
            (0x2000, 0, None),
            (0x2000, 1, Some(1)),
            (0x2000, 0x1000, Some(1)),
            (0x2000, 0x1001, None),
            (0x2fff, 2, None),
            (0x3fff, 1, Some(2)),
            (0x4000, 1, None),
            (0x9fff, 1, Some(0)),
            (0x9800, usize::MAX, None),
            (usize::MAX, 1, None),
        ] {
            // The result does not depend on what was found before.
            for before in [0x2000, 0x3000, 0x9000] {
                both.find_place(&[iov(before, 1)]);
                let found = both.find_place(&[iov(start, len)]);
                assert_eq!(
                    found, place,
                    "{start:#x}, {len:#x} bytes, after {before:#x}"
                );
            }
        }
        assert_eq!(both.find_place(&[iov(0x2000, 8), iov(0x2800, 8)]), Some(1));
        assert_eq!(both.find_place(&[iov(0x2000, 8), iov(0x3000, 8)]), None);
        assert_eq!(both.find_place(&[]), None);
    }

    #[test]
    fn long_ranges_take_several_places() {
        let mut both = Both::new(4);
        both.add(0x1000, 2 * GIB + 0x1000).unwrap();
        assert_eq!(both.1.known, 3);
        for (start, place) in [(0x1000, 0), (0x1000 + GIB, 1), (0x1000 + 2 * GIB, 2)] {
            assert_eq!(both.find_place(&[iov(start, 0x1000)]), Some(place));
        }
        assert_eq!(
            both.find_place(&[iov(GIB, 0x2000)]),
            None,
            "across the border"
        );
        assert!(both.remove(0x1000, 2 * GIB + 0x1000));
        assert_eq!(both.1.known, 0);
        assert_eq!(both.find_place(&[iov(0x1000, 1)]), None);
    }

    #[test]
    fn the_last_user_frees_the_place() {
        let mut both = Both::new(1);
        both.add(0x1000, 0x1000).unwrap();
        both.add(0x1000, 0x1000).unwrap();
        assert_eq!(both.1.known, 1);
        assert!(both.remove(0x1000, 0x1000));
        assert_eq!(both.find_place(&[iov(0x1000, 1)]), Some(0));
        assert!(both.remove(0x1000, 0x1000));
        assert_eq!(both.1.known, 0);
        assert_eq!(both.find_place(&[iov(0x1000, 1)]), None);
        both.add(0x5000, 0x1000).unwrap();
        assert_eq!(both.find_place(&[iov(0x5000, 1)]), Some(0));
    }

    #[test]
    fn a_range_that_does_not_fit_leaves_nothing_registered() {
        let mut both = Both::new(2);
        let full = Err(BufferError::Full { places: 2 });
        assert_eq!(both.add(0, 3 * GIB), full);
        assert_eq!(both.1.known, 0);
        assert_eq!(both.find_place(&[iov(0x1000, 1)]), None);
        both.1.most = 1;
        assert_eq!(both.add(0, 2 * GIB), Err(BufferError::Backing));
        assert_eq!(both.1.known, 0);
        both.1.most = 2;
        assert_eq!(both.add(0, 2 * GIB), Ok(()));
    }
}

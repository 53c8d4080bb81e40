//! Kernels for tests: they do what the test says, when the test says it.

mod aio;
mod uring;

pub(crate) use aio::FakeKernel;
pub(crate) use uring::FakeRing;

use rustix::io::Errno;

/// How a request ends.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// As far as the disk goes.
    Whole,
    /// After at most so many bytes.
    Short(usize),
    /// With this error, nothing transferred.
    Error(Errno),
}

/// Moves at most `max` bytes between the buffers (address, bytes) and the disk from `offset` on, as
/// far as that goes; how many. Byte by byte: slow, and nothing to get wrong.
fn transfer(
    disk: &mut [u8],
    write: bool,
    offset: u64,
    buffers: &[(usize, usize)],
    max: usize,
) -> usize {
    let start = usize::try_from(offset).unwrap();
    let bytes = buffers.iter().flat_map(|&(base, len)| base..base + len);
    let mut done = 0;
    for (address, position) in bytes.zip(start..disk.len()).take(max) {
        let byte = std::ptr::with_exposed_provenance_mut::<u8>(address);
        // SAFETY: the tests keep their buffers until completion, as `push` demands.
        unsafe {
            if write {
                disk[position] = byte.read();
            } else {
                byte.write(disk[position]);
            }
        }
        done += 1;
    }
    done
}

//! Fake kernels for unit tests of the Linux AIO and io_uring engines, on a disk in memory.

mod aio;
mod uring;

pub(crate) use aio::FakeKernel;
pub(crate) use uring::FakeRing;

use rustix::io::Errno;

/// The outcome of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Outcome {
    /// It is transferred up to the end of the disk.
    Whole,
    /// It is cut after at most so many bytes.
    Short(usize),
    /// It fails with this error, and nothing is transferred.
    Error(Errno),
}

/// Transfers at most `max` bytes between the buffers (address, bytes) and the disk from `offset` on, up to the end of the disk,
/// and returns how many. It goes byte by byte, which is slow and simple.
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
        // SAFETY: the tests keep their buffers until completion, as `start_or_queue` demands.
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

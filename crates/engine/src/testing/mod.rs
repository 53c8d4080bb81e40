//! Fake kernels for unit tests of the Linux AIO and io_uring engines, on a disk in memory, and buffers of requests.

mod aio;
mod uring;

pub(crate) use aio::FakeKernel;
pub(crate) use uring::FakeRing;

use rustix::io::Errno;

use crate::{Op, Request};

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

/// Buffers of one request, with their array.
pub(crate) struct Buffers {
    pub(crate) memory: Vec<Vec<u8>>,
    pub(crate) iov: Vec<libc::iovec>,
}

impl Buffers {
    /// Buffers with this content.
    pub(crate) fn new(memory: Vec<Vec<u8>>) -> Self {
        let mut memory = memory;
        let iov = memory
            .iter_mut()
            .map(|b| libc::iovec {
                iov_base: b.as_mut_ptr().cast(),
                iov_len: b.len(),
            })
            .collect();
        Self { memory, iov }
    }

    pub(crate) fn sized(sizes: &[usize], fill: u8) -> Self {
        Self::new(sizes.iter().map(|&len| vec![fill; len]).collect())
    }

    /// A request for all buffers at `offset`.
    pub(crate) fn io(&mut self, op: Op, offset: u64, token: u64) -> Request {
        Request {
            op,
            fua: false,
            offset,
            iov: self.iov.as_mut_ptr(),
            iov_count: u32::try_from(self.iov.len()).unwrap(),
            len: self.memory.iter().map(|b| b.len() as u64).sum(),
            token,
        }
    }

    /// A write that is stable when it completes.
    pub(crate) fn durable(&mut self, offset: u64, token: u64) -> Request {
        let fua = true;
        Request {
            fua,
            ..self.io(Op::Write, offset, token)
        }
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.memory.concat()
    }
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

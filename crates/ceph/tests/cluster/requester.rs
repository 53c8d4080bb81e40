//! Requests of a test to an image, with buffers that stay valid.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use ceph::{Image, ImageQueue};
use engine::{Completion, Errno, Op, Request};
use libc::iovec;
use test_support::deadline::STUCK_AFTER;

/// A queue, and the requests in it.
pub struct Requester {
    queue: ImageQueue,
    woken: Receiver<()>,
    requests: Vec<Buffers>,
    completions: Vec<Completion>,
}

/// Buffers of a request, and the list of them. Neither moves.
struct Buffers {
    segments: Vec<Box<[u8]>>,
    list: Vec<iovec>,
}

impl Requester {
    pub fn new(image: &Arc<Image>) -> Self {
        let (sender, woken) = channel();
        let wake = Arc::new(move || _ = sender.send(()));
        Requester {
            queue: ImageQueue::new(Arc::clone(image), wake),
            woken,
            requests: Vec::new(),
            completions: Vec::new(),
        }
    }

    pub fn queue(&self) -> &ImageQueue {
        &self.queue
    }

    /// Starts a request, whose token is its number.
    pub fn start(
        &mut self,
        op: Op,
        fua: bool,
        offset: u64,
        len: u64,
        mut segments: Vec<Box<[u8]>>,
    ) {
        let list = segments.iter_mut().map(|segment| iovec {
            iov_base: segment.as_mut_ptr().cast(),
            iov_len: segment.len(),
        });
        let list = list.collect();
        self.requests.push(Buffers { segments, list });
        let token = self.requests.len() - 1;
        let list = &mut self.requests[token].list;
        let request = Request {
            op,
            fua,
            offset,
            len,
            iov: list.as_mut_ptr(),
            iov_count: u32::try_from(list.len()).unwrap(),
            token: token as u64,
        };
        // SAFETY: the buffers stay in `requests` until the queue is empty.
        unsafe { self.queue.start(&request) }.unwrap();
    }

    /// Waits for wake-ups until all requests are complete.
    pub fn finish(&mut self) -> &[Completion] {
        while self.queue.in_flight() > 0 {
            let woken = self.woken.recv_timeout(STUCK_AFTER);
            woken.expect("a wake-up");
            self.queue.reap(&mut self.completions);
        }
        &self.completions
    }

    /// Makes one request, alone.
    pub fn run(
        &mut self,
        op: Op,
        fua: bool,
        offset: u64,
        len: u64,
        segments: Vec<Box<[u8]>>,
    ) -> Result<(), Errno> {
        self.start(op, fua, offset, len, segments);
        let token = self.requests.len() as u64 - 1;
        let last = *self.finish().last().unwrap();
        assert_eq!(last.token, token);
        last.result
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let len = data.len() as u64;
        self.run(Op::Write, false, offset, len, vec![data.into()])
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        // Not zero: what is not read shows.
        let buffer = vec![0xee; len].into_boxed_slice();
        self.run(Op::Read, false, offset, len as u64, vec![buffer])?;
        Ok(self.segments_of_last().concat())
    }

    /// The buffers of the last request.
    pub fn segments_of_last(&self) -> &[Box<[u8]>] {
        &self.requests.last().unwrap().segments
    }

    pub fn without_data(&mut self, op: Op, offset: u64, len: u64) -> Result<(), Errno> {
        self.run(op, false, offset, len, Vec::new())
    }
}

impl Drop for Requester {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.finish();
        }
        if self.queue.in_flight() > 0 {
            // librbd may still write to them.
            std::mem::forget(std::mem::take(&mut self.requests));
        }
    }
}

/// Bytes that differ between places and between seeds.
pub fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n / 512 * 7 + n % 251).to_le_bytes()[0] ^ seed)
        .collect()
}

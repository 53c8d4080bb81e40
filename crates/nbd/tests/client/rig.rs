//! A queue on an event loop like that of an iothread: edges of the sockets' descriptor, and wake-ups.

use std::collections::HashMap;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use engine::{Completion, Errno, Full, Op, Request};
use libc::iovec;
use nbd::client::{ClientOptions, ClientQueue, Disk, RequestGroup, SocketSet};
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};

/// Canary bytes in front of and behind each segment.
const GUARD: usize = 64;
const CANARY: u8 = 0xc5;

/// Memory of a request: segments with canaries between them.
pub struct Buffer {
    memory: Vec<u8>,
    segments: Vec<Range<usize>>,
    pub iov: Vec<iovec>,
}

impl Buffer {
    pub fn new(lengths: &[usize]) -> Self {
        let mut end = GUARD;
        let segments = lengths.iter().map(|len| {
            let begin = end;
            end += len + GUARD;
            begin..begin + len
        });
        let segments: Vec<Range<usize>> = segments.collect();
        let mut memory = vec![CANARY; end];
        let base = memory.as_mut_ptr();
        let iov = segments.iter().map(|segment| iovec {
            iov_base: base.wrapping_add(segment.start).cast(),
            iov_len: segment.len(),
        });
        let iov = iov.collect();
        Buffer {
            memory,
            segments,
            iov,
        }
    }

    pub fn with_data(lengths: &[usize], mut data: &[u8]) -> Self {
        let mut buffer = Self::new(lengths);
        for segment in &buffer.segments {
            let (of_segment, rest) = data.split_at(segment.len());
            buffer.memory[segment.clone()].copy_from_slice(of_segment);
            data = rest;
        }
        assert!(data.is_empty());
        buffer
    }

    fn fill(&mut self, byte: u8) {
        for segment in &self.segments {
            self.memory[segment.clone()].fill(byte);
        }
    }

    /// The data, after a check of the canaries.
    pub fn data(&self) -> Vec<u8> {
        let (mut data, mut at) = (Vec::new(), 0);
        let end = self.memory.len()..self.memory.len();
        for segment in self.segments.iter().chain([&end]) {
            let guard = &self.memory[at..segment.start];
            let is_intact = guard.iter().all(|byte| *byte == CANARY);
            assert!(is_intact, "nothing is written outside of the segments");
            data.extend_from_slice(&self.memory[segment.clone()]);
            at = segment.end;
        }
        data
    }
}

/// A queue, its event loop, and the memory of its requests.
pub struct Rig {
    pub queue: ClientQueue,
    epoll: OwnedFd,
    buffers: HashMap<u64, Buffer>,
    completed: Vec<Completion>,
    next_token: u64,
    /// Requests are of the source with this index.
    pub source_index: u32,
    /// Requests are of a job with this group, or of none.
    pub group: Option<Arc<RequestGroup>>,
}

impl Rig {
    pub fn open(options: &ClientOptions) -> Self {
        Self::of_disk(Disk::open(options).unwrap())
    }

    pub fn of_disk(disk: Arc<Disk>) -> Self {
        let epoll = epoll::create(CreateFlags::CLOEXEC).unwrap();
        let sockets = Rc::new(SocketSet::new().unwrap());
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, sockets.as_fd(), EventData::new_u64(1), edge).unwrap();
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
        epoll::add(&epoll, &*wake, EventData::new_u64(2), edge).unwrap();
        let wake = move || {
            let _ = rustix::io::write(&*wake, &1_u64.to_ne_bytes());
        };
        Rig {
            queue: ClientQueue::new(disk, Some(sockets), Arc::new(wake)),
            epoll,
            buffers: HashMap::new(),
            completed: Vec::new(),
            next_token: 1,
            source_index: 0,
            group: None,
        }
    }

    pub fn start(&mut self, op: Op, fua: bool, offset: u64, len: u64, buffer: Buffer) -> u64 {
        let started = self.try_start(op, fua, offset, len, buffer);
        started.unwrap()
    }

    pub fn try_start(
        &mut self,
        op: Op,
        fua: bool,
        offset: u64,
        len: u64,
        buffer: Buffer,
    ) -> Result<u64, Full> {
        let token = self.next_token;
        self.next_token += 1;
        let buffer = self.buffers.entry(token).or_insert(buffer);
        let request = Request {
            op,
            fua,
            offset,
            len,
            iov: buffer.iov.as_mut_ptr(),
            iov_count: u32::try_from(buffer.iov.len()).unwrap(),
            token,
        };
        // SAFETY: the buffer is kept until its completion was reaped.
        let started = unsafe {
            self.queue
                .start(&request, self.source_index, self.group.as_ref())
        };
        started.map(|()| token)
    }

    /// Uses the memory of a completed request for something else.
    pub fn reuse_memory(&mut self, token: u64, byte: u8) {
        self.buffers.get_mut(&token).unwrap().fill(byte);
    }

    pub fn start_read(&mut self, offset: u64, lengths: &[usize]) -> u64 {
        let len = lengths.iter().sum::<usize>() as u64;
        self.start(Op::Read, false, offset, len, Buffer::new(lengths))
    }

    pub fn start_write(&mut self, offset: u64, data: &[u8]) -> u64 {
        let buffer = Buffer::with_data(&[data.len()], data);
        self.start(Op::Write, false, offset, data.len() as u64, buffer)
    }

    pub fn start_without_data(&mut self, op: Op, fua: bool, offset: u64, len: u64) -> u64 {
        self.start(op, fua, offset, len, Buffer::new(&[]))
    }

    /// One iteration of the loop, which waits for up to `timeout`. False: nothing happened in this time.
    pub fn iterate(&mut self, timeout: Duration) -> bool {
        self.queue.reap(&mut self.completed);
        self.queue.submit();
        if self.queue.has_completions() || self.queue.must_run_before_blocking() {
            return true;
        }
        let timeout = Timespec::try_from(timeout).unwrap();
        let mut events: Vec<Event> = Vec::with_capacity(4);
        let into = rustix::buffer::spare_capacity(&mut events);
        epoll::wait(&self.epoll, into, Some(&timeout)).unwrap();
        if events.iter().any(|event| event.data.u64() == 1) {
            self.queue.note_event();
        }
        !events.is_empty()
    }

    /// Runs the loop until a request has completed, without a timer that would make up for an event that is missing.
    pub fn wait_by_events_alone(&mut self, token: u64) {
        while !self.completed.iter().any(|done| done.token == token) {
            let has_event = self.iterate(Duration::from_secs(20));
            assert!(has_event, "no event says that the loop could go on");
        }
        self.completed.retain(|done| done.token != token);
    }

    /// Runs the loop until a request has completed.
    pub fn wait(&mut self, token: u64) -> Result<(), Errno> {
        let give_up = Instant::now() + Duration::from_secs(60);
        loop {
            let found = self.completed.iter().position(|done| done.token == token);
            if let Some(index) = found {
                return self.completed.swap_remove(index).result;
            }
            let is_late = Instant::now() >= give_up;
            assert!(!is_late, "request {token} does not complete");
            // The loop's timer, if there is one, is not later.
            self.iterate(Duration::from_millis(100));
        }
    }

    /// Whether a request has completed, after two iterations that wait for nothing: what has happened takes effect in them.
    pub fn has_completed(&mut self, token: u64) -> bool {
        for _ in 0..2 {
            self.iterate(Duration::ZERO);
        }
        self.completed.iter().any(|done| done.token == token)
    }

    /// The data of a completed read.
    pub fn data(&self, token: u64) -> Vec<u8> {
        self.buffers[&token].data()
    }

    /// A request without data, or with this data, from its start to its completion.
    pub fn carry_out(&mut self, op: Op, fua: bool, offset: u64, len: u64, data: &[u8]) {
        let lengths = [data.len()];
        let buffer = Buffer::with_data(&lengths[data.is_empty().into()..], data);
        let token = self.start(op, fua, offset, len, buffer);
        assert_eq!(self.wait(token), Ok(()), "{op:?}");
    }

    /// Waits until the disk has made a new connection.
    pub fn wait_for_reconnection(&mut self) {
        while self.queue.disk().reconnections() == 0 {
            self.iterate(Duration::from_millis(10));
        }
    }

    pub fn read(&mut self, offset: u64, len: usize) -> Result<Vec<u8>, Errno> {
        let token = self.start_read(offset, &[len]);
        self.wait(token)?;
        Ok(self.data(token))
    }

    pub fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), Errno> {
        let token = self.start_write(offset, data);
        self.wait(token)
    }
}

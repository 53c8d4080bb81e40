//! Load of a guest that verifies what it reads: requests of all kinds in all of its queues.

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use super::blocks::BLOCK;
use super::device::{Device, Op};
use super::guest::VerifyingGuest;
use super::random::Random;
use crate::deadline::{Deadline, STUCK_AFTER};
use crate::process::Process;
use crate::vhost_user::wire::Wire;

/// How long a fault may last: longer than any other wait.
const PATIENCE: u32 = 3;

impl VerifyingGuest {
    /// Makes requests until so many more are answered. Others are in flight then.
    #[track_caller]
    pub fn run_load(&mut self, wire: &Wire, random: &mut Random, answers: u64) {
        let goal = self.answers + answers;
        let deadline = Deadline::after(PATIENCE * STUCK_AFTER);
        loop {
            self.ask_some(random);
            if self.answers >= goal {
                return;
            }
            deadline.check(format_args!("{} of {goal} answers", self.answers));
            if !self.poll_used() {
                assert_eq!(self.sleep(wire), Ok(()));
            }
        }
    }

    /// Waits until all requests are answered, and reads every block once more.
    #[track_caller]
    pub fn read_all(&mut self, wire: &Wire) {
        self.drains_to(0, wire);
        let queue = self.request_queues().start;
        for block in 0..self.blocks.count() {
            self.ask(queue, Op::Read, block);
            self.drains_to(0, wire);
        }
    }

    /// Compares the content of the image, read by other means while no request is in flight, with what a read may find.
    #[track_caller]
    pub fn assert_image(&mut self, image: &[u8]) {
        assert_eq!(image.len(), self.blocks.count() * BLOCK);
        for (block, found) in image.chunks(BLOCK).enumerate() {
            let asked = self.blocks.read_asked(block);
            self.blocks.read_answered(block, asked, found);
        }
    }
}

/// A [`VerifyingGuest`] and its server, with load on the calling thread.
#[derive(Debug)]
pub struct VerifyingLoad {
    guest: VerifyingGuest,
    wire: Wire,
    random: Random,
}

impl VerifyingLoad {
    /// A front-end with so many queues, on a disk of so many bytes, which are zero.
    pub fn connect(program: &mut Process, socket: &Path, queues: usize, bytes: u64) -> Self {
        Self::over(program.connection(socket), queues, bytes)
    }

    /// The same over a connection that exists.
    pub fn over(stream: UnixStream, queues: usize, bytes: u64) -> Self {
        let guest = VerifyingGuest::new(Device::Blk, false, queues, bytes / BLOCK as u64);
        Self::with_guest(Wire::new(stream), guest)
    }

    /// The same with a guest that no server knows.
    pub fn with_guest(wire: Wire, mut guest: VerifyingGuest) -> Self {
        assert_eq!(guest.connect_and_start(&wire, || ()), Ok(()));
        VerifyingLoad {
            guest,
            wire,
            random: Random(0x5eed),
        }
    }

    /// The same front-end at another server. Until then it stays connected to this one, which was killed or whose queues have stopped.
    #[must_use]
    pub fn move_to(self, program: &mut Process, socket: &Path) -> Self {
        let VerifyingLoad { guest, wire, .. } = self;
        let load = Self::with_guest(Wire::new(program.connection(socket)), guest);
        drop(wire);
        load
    }

    /// Makes requests until so many more are answered.
    #[track_caller]
    pub fn run(&mut self, answers: u64) {
        self.guest.run_load(&self.wire, &mut self.random, answers);
    }

    /// Makes requests until a condition holds; returns the longest time without a write that was answered.
    #[track_caller]
    pub fn run_until(&mut self, is_over: impl Fn() -> bool) -> Duration {
        let (mut longest, mut last) = (Duration::ZERO, Instant::now());
        while !is_over() {
            let before = self.guest.writes;
            self.run(1);
            if self.guest.writes > before {
                longest = longest.max(last.elapsed());
                last = Instant::now();
            }
        }
        longest
    }

    /// Makes requests while something is changed on another thread; returns the longest time without a write that was answered.
    #[track_caller]
    pub fn run_while(&mut self, change: impl FnOnce() + Send) -> Duration {
        thread::scope(|scope| {
            let change = scope.spawn(change);
            self.run_until(|| change.is_finished())
        })
    }

    /// Makes as many requests as there is room for, and waits for none. Answers that have come are taken before.
    pub fn fill(&mut self) {
        self.guest.poll_used();
        self.guest.ask_some(&mut self.random);
    }

    /// Waits until all requests are answered.
    #[track_caller]
    pub fn drain(&mut self) {
        self.guest.drains_to(0, &self.wire);
    }

    /// Stops the queues. All that they have taken is answered then.
    #[track_caller]
    pub fn stop_queues(&mut self) {
        for index in self.guest.request_queues() {
            assert_eq!(self.guest.stop(&self.wire, index), Ok(()));
        }
        self.guest.poll_used();
    }

    /// Waits until all requests are answered, and reads every block once more.
    #[track_caller]
    pub fn read_all(&mut self) {
        self.guest.read_all(&self.wire);
    }

    /// Compares the content of the image, read by other means, with what it may be.
    #[track_caller]
    pub fn assert_content(mut self, content: &[u8]) {
        self.drain();
        self.guest.assert_image(content);
    }

    /// Requests that were answered so far.
    #[must_use]
    pub fn answers(&self) -> u64 {
        self.guest.answers
    }
}

//! A guest that writes without a pause, and knows which writes a copy of its disk may have.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::blocks::{BLOCK, Blocks, Moment, Write, bytes};
use super::device::{Device, Op};
use super::guest::VerifyingGuest;
use super::random::Random;
use crate::deadline::{Deadline, eventually, eventually_ok};
use crate::process::Folder;
use crate::sockets::try_connect;
use crate::vhost_user::wire::{Disconnected, Wire};

/// Its queues.
pub const QUEUES: usize = 4;

/// Options of an export of the node `disk` to such a guest, on two iothreads.
pub const BUSY_EXPORT: &str = "--object iothread,id=io0 --object iothread,id=io1 --export vhost-user-blk,id=e,node-name=disk,\
writable=on,num-queues=4,iothread.0=io0,iothread.1=io1,addr.type=unix,addr.path=e.sock";

/// A guest on a thread that writes, and records its writes.
#[derive(Debug)]
pub struct RecordingWriter {
    now: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
    thread: JoinHandle<Blocks>,
}

impl RecordingWriter {
    /// Writes to a disk of so many bytes behind the socket `e.sock`, in an order in which no block is written twice at once.
    pub fn start(folder: &Folder, device: Device, bytes: u64) -> Self {
        Self::start_with(folder, device, bytes, false)
    }

    /// The same; `reconnects`: the front-end connects again when its server was killed.
    pub fn start_with(folder: &Folder, device: Device, bytes: u64, reconnects: bool) -> Self {
        let (socket, blocks) = (folder.join("e.sock"), bytes / BLOCK as u64);
        let now = Arc::new(AtomicU64::new(0));
        let end = Arc::new(AtomicBool::new(false));
        let (shown, ends) = (now.clone(), end.clone());
        let thread = std::thread::spawn(move || {
            let mut random = Random(11);
            let mut wire = Wire::connect(&socket);
            let mut guest = VerifyingGuest::new(device, false, QUEUES, blocks);
            guest.blocks.history = Some(Vec::new());
            guest.connect_and_start(&wire, || ()).unwrap();
            let queues = guest.request_queues();
            for turn in 0u64.. {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                // 4099 and the number of blocks have no common factor.
                let block = usize::try_from(turn.wrapping_mul(4099) % blocks).unwrap();
                let queue = usize::try_from(turn).unwrap() % QUEUES + queues.start;
                guest.ask(queue, Op::Write, block);
                let left = random.below(12);
                while guest.in_flight() > left {
                    if !guest.poll_used() && guest.sleep(&wire).is_err() {
                        assert!(reconnects, "the server has hung up");
                        wire = reconnect(&mut guest, &socket);
                    }
                }
                shown.store(guest.blocks.now(), Ordering::SeqCst);
            }
            guest.drains_to(0, &wire);
            guest.blocks
        });
        RecordingWriter { now, end, thread }
    }

    /// The moment up to which everything has happened.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.now.load(Ordering::SeqCst)
    }

    /// Waits until so many things have happened in addition.
    pub fn wait_for_progress(&self, count: u64) {
        let until = self.now() + count;
        eventually("the guest writes", || {
            assert!(!self.thread.is_finished(), "the guest has failed");
            self.now() >= until
        });
    }

    /// Ends it, and returns all writes.
    pub fn stop(self) -> Vec<Write> {
        self.end.store(true, Ordering::SeqCst);
        self.thread.join().unwrap().history.unwrap()
    }
}

/// Connects as soon as there is a server again, and goes on with what was in flight. The old one may still take connections when it ends.
fn reconnect(guest: &mut VerifyingGuest, socket: &Path) -> Wire {
    let deadline = Deadline::default();
    loop {
        let stream = eventually_ok("there is a server again", || try_connect(socket));
        let wire = Wire::new(stream);
        match guest.connect_and_start(&wire, || ()) {
            Ok(()) => return wire,
            Err(Disconnected) => deadline.pause("the server stays"),
        }
    }
}

/// The content is that of the disk at one moment between these: no write is missing that was answered before one was asked for that
/// is there, each block is whole, and so is the order of the writes.
#[track_caller]
pub fn assert_is_of_one_moment(content: &[u8], writes: &[Write], after: Moment, before: Moment) {
    let blocks = content.len() / BLOCK;
    let mut values = vec![0; blocks];
    for (block, value) in values.iter_mut().enumerate() {
        let found = &content[block * BLOCK..(block + 1) * BLOCK];
        *value = u64::from_le_bytes(found[..8].try_into().unwrap());
        assert!(found == bytes(block, *value), "block {block} is torn");
    }
    for (block, value) in values.iter().enumerate().filter(|(_, value)| **value > 0) {
        let write = &writes[usize::try_from(value - 1).unwrap()];
        assert_eq!(write.block, block, "it is of another block");
    }
    let is_contained = |write: &&Write| values[write.block] >= write.value;
    let last_asked = writes.iter().filter(is_contained).map(|write| write.asked);
    let last_asked = last_asked.max().unwrap_or(0);
    let missing = writes.iter().filter(|write| !is_contained(write));
    let first_answered = missing.filter_map(|write| write.answered).min();
    let first_answered = first_answered.unwrap_or(Moment::MAX);
    let found = format!(
        "a write is missing that was answered at {first_answered}, and one is there that was asked for at {last_asked}"
    );
    assert!(last_asked < first_answered, "{found}");
    assert!(after < first_answered, "{found}; began after {after}");
    assert!(last_asked <= before + 1, "{found}; began by {before}");
}

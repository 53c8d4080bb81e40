//! The vhost-user socket: any messages, any bytes, any descriptors, and queues that are started wherever the front-end says.
//!
//! What comes back are replies to what was sent. When a connection has ended no queue runs and no guest memory is mapped,
//! and the next front-end is served.

use std::io::Read;
use std::net::Shutdown;
use std::os::fd::{BorrowedFd, IntoRawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, OnceLock, Weak};

use rustix::net::SendFlags;
use test_support::fds::send_with_fds;
use unix_socket::listener::Listener;
use vhost_user::{ControlThreads, Server, StartedQueue, VirtioDevice};
use virtqueue::queue_setup::{QueueCommand, QueueSetup, StartError};
use virtqueue::{Chain, GuestMemory, Queue};

use crate::descriptors::{self, BYTES};
use crate::input::Input;

const EVENTS: usize = 60;

/// What the device offers: flush, configurable write cache, discard, and others.
const FEATURES: u64 = 0x6a_76;

/// Queues that run, and memory that was seen.
static RUNNING: AtomicUsize = AtomicUsize::new(0);
static SEEN: Mutex<Vec<Weak<GuestMemory>>> = Mutex::new(Vec::new());

fn see(memory: &Arc<GuestMemory>) {
    SEEN.lock().expect("no panic").push(Arc::downgrade(memory));
}

/// A device without a disk: its queues take what they find.
struct Device;

struct Started(Mutex<(Queue, Arc<GuestMemory>)>);

impl Started {
    fn look(&self) {
        let (queue, memory) = &mut *self.0.lock().expect("no panic");
        let mut chain = Chain::new();
        for _ in 0..8 {
            let popped = queue.pop(memory, &mut chain);
            let Ok(Some(id)) = popped else {
                break;
            };
            queue.push(id, 0);
            queue.publish();
        }
    }
}

impl VirtioDevice for Device {
    fn name(&self) -> &str {
        "fuzz"
    }

    fn on_connection_change(&self, _: bool) {}

    fn features(&self) -> u64 {
        FEATURES
    }

    fn set_features(&self, _: u64, settle: &dyn Fn()) {
        settle();
    }

    fn num_queues(&self) -> u16 {
        4
    }

    fn max_queue_size(&self) -> u16 {
        256
    }

    fn offers_packed_queues(&self) -> bool {
        true
    }

    fn config_space(&self) -> Vec<u8> {
        vec![7; 60]
    }

    fn write_config_space(&self, offset: usize, bytes: &[u8], settle: &dyn Fn()) -> bool {
        settle();
        offset == 32 && bytes.len() == 1
    }

    fn reset(&self) {}

    fn start_queue(&self, _: u16, setup: QueueSetup) -> Result<Box<dyn StartedQueue>, StartError> {
        see(&setup.memory);
        let QueueSetup {
            memory,
            layout,
            features,
            base,
            ..
        } = setup;
        let queue = match setup.inflight {
            Some(region) => Queue::with_recorder(&memory, layout, features, base, region)?,
            None => Queue::new(&memory, layout, features, base)?,
        };
        RUNNING.fetch_add(1, Ordering::SeqCst);
        let started = Started(Mutex::new((queue, memory)));
        started.look();
        Ok(Box::new(started))
    }
}

impl StartedQueue for Started {
    fn send_command(&self, command: QueueCommand) {
        match command {
            QueueCommand::Enable(_) => self.look(),
            QueueCommand::SetMemory(memory, _) => {
                see(&memory);
                let (queue, map) = &mut *self.0.lock().expect("no panic");
                // Rings that are gone stay where they were.
                let _ = queue.remap(&memory);
                *map = memory;
            }
            QueueCommand::SetLog(log, _) => {
                let (queue, map) = &mut *self.0.lock().expect("no panic");
                queue.set_dirty_log(log, map);
            }
            QueueCommand::SetKick(_, reply) => {
                let _ = reply.send(Ok(()));
            }
            _ => {}
        }
    }

    fn switch_node(&self) -> Receiver<()> {
        unreachable!("nothing is exchanged")
    }

    fn begin_stop(self: Box<Self>) -> Receiver<u32> {
        let (reply, answer) = channel();
        let _ = reply.send(self.0.lock().expect("no panic").0.base());
        answer
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        RUNNING.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A server for all inputs, one after the other.
fn address() -> &'static SocketAddr {
    static SERVER: OnceLock<(SocketAddr, Server)> = OnceLock::new();
    let (address, _) = SERVER.get_or_init(|| {
        let name = format!("blockplane-fuzz-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("a name");
        let socket = UnixListener::bind_addr(&address).expect("a socket");
        // SAFETY: it has no other owner.
        let listener = unsafe { Listener::inherit(socket.into_raw_fd()) };
        let threads = Arc::new(ControlThreads::start().expect("a thread"));
        let server = Server::start(&threads, listener.expect("it listens"), Arc::new(Device));
        (address, server.expect("a watched socket"))
    });
    address
}

/// See the module.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    descriptors::clear();
    let socket = UnixStream::connect_addr(address()).expect("the next front-end is served");
    let mut sent = Vec::new();
    input.events(EVENTS, |input| event(&socket, input, &mut sent));
    let _ = socket.shutdown(Shutdown::Write);
    let mut replies = Vec::new();
    // A connection that ends with messages unread is reset.
    let _ = (&socket).read_to_end(&mut replies);
    check(&replies, &sent);
    assert_eq!(
        RUNNING.load(Ordering::SeqCst),
        0,
        "queues stop with their front-end"
    );
    let mut seen = SEEN.lock().expect("no panic");
    assert!(
        seen.iter().all(|memory| memory.strong_count() == 0),
        "memory goes with its front-end"
    );
    seen.clear();
}

/// Replies are whole messages, to what was sent. (`None`: bytes were sent that may have been anything.)
fn check(mut replies: &[u8], sent: &[Option<u32>]) {
    while !replies.is_empty() {
        let (header, rest) = replies.split_at_checked(12).expect("a whole header");
        let word = |at: usize| u32::from_le_bytes(header[at..at + 4].try_into().expect("four"));
        let (request, flags, size) = (word(0), word(4), word(8));
        assert_eq!(flags & 0x7, 5, "a reply, version 1");
        let is_reply = |sent: &Option<u32>| sent.is_none_or(|sent| sent == request);
        assert!(sent.iter().any(is_reply), "a reply to {request}");
        replies = rest.get(size as usize..).expect("a whole reply");
    }
}

fn send(socket: &UnixStream, bytes: &[u8], fds: &[BorrowedFd]) {
    // It fails when the server has hung up.
    let _ = send_with_fds(socket, bytes, fds, SendFlags::NOSIGNAL);
}

fn event(socket: &UnixStream, input: &mut Input, sent: &mut Vec<Option<u32>>) {
    let words = |words: &[u64]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let queue = |input: &mut Input| u64::from(input.byte() % 5);
    // Guest addresses and those of the front-end are the same here.
    let region = |input: &mut Input| {
        let page = u64::from(input.byte() & 0x1f) << 12;
        let size = match input.below(4) {
            0 => input.u64(),
            1 => BYTES,
            _ => u64::from(input.byte() & 0x1f) << 12,
        };
        let offset = match input.below(4) {
            0 => u64::from(input.u16()),
            _ => 0,
        };
        [page, size, page, offset]
    };
    let place = |input: &mut Input| match input.below(8) {
        0 => input.u64(),
        _ => u64::from(input.u16()) & !0xf,
    };
    let mut fds = Vec::new();
    let (request, payload) = match input.byte() % 21 {
        0 => {
            let transport = 1 << 30 | 1 << 32 | u64::from(input.byte()) << 28;
            (2, words(&[transport | FEATURES & input.u64()]))
        }
        1 => (16, words(&[input.u64() & 0x1_ffff])),
        2 | 3 => {
            let count = 1 + input.below(9);
            let mut all = vec![count as u64];
            for _ in 0..count {
                all.extend(region(input));
                fds.push(descriptors::memory());
            }
            (5, words(&all))
        }
        4 => (8, words(&[queue(input) | u64::from(input.byte()) << 32])),
        5 | 6 => {
            let (desc, used, avail) = (place(input), place(input), place(input));
            (9, words(&[queue(input), desc, used, avail, 0]))
        }
        7 => (10, words(&[queue(input) | u64::from(input.u16()) << 32])),
        8 => (11, words(&[queue(input)])),
        9..=11 => {
            fds.push(descriptors::event());
            ([12, 13, 14][input.below(3)], words(&[queue(input)]))
        }
        12 => {
            let enable = queue(input) | u64::from(input.byte() % 3) << 32;
            (18, words(&[enable]))
        }
        13 => {
            let (offset, size) = (u32::from(input.byte() % 64), u32::from(input.byte() % 64));
            let mut payload = [offset, size, u32::from(input.byte() & 1)]
                .map(u32::to_le_bytes)
                .concat();
            payload.resize(12 + size as usize, 1);
            (24 + u32::from(input.byte() & 1), payload)
        }
        14 => {
            fds.push(descriptors::memory());
            let [a, b, c, d] = region(input);
            (37 + u32::from(input.byte() & 1), words(&[0, a, b, c, d]))
        }
        15 => ([1, 3, 4, 15, 17, 34, 36][input.below(7)], Vec::new()),
        17 => {
            // What was in flight.
            let (size, offset) = (BYTES >> (input.byte() & 3), u64::from(input.byte()) << 4);
            let mut payload = words(&[size, offset]);
            payload.extend([1 + input.byte() % 5, 0, 8, 0]);
            fds.push(descriptors::memory());
            (31 + u32::from(input.byte() & 1), payload)
        }
        18 => {
            let at = input.u16();
            return descriptors::write(at.into(), input.bytes(32));
        }
        16 => {
            // Bytes that are no message, most likely.
            fds = descriptors::some(input);
            let len = input.byte().into();
            sent.push(None);
            return send(socket, input.bytes(len), &fds);
        }
        _ => {
            let (len, request) = (input.byte() & 0x3f, input.byte() % 48);
            (request.into(), input.bytes(len.into()).to_vec())
        }
    };
    if input.below(8) == 7 {
        fds = descriptors::some(input);
    }
    // Version 1, perhaps with a wish for a reply.
    let flags = match input.byte() & 0xf {
        0xf => input.u32(),
        _ => 1 | u32::from(input.byte() & 1) << 3,
    };
    let size = u32::try_from(payload.len()).expect("short");
    let mut bytes = [request, flags, size].map(u32::to_le_bytes).concat();
    bytes.extend(payload);
    sent.push(Some(request));
    send(socket, &bytes, &fds);
}

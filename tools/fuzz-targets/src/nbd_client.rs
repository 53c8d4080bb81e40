//! Replies of an NBD server to a client with reads and writes in flight: any bytes, and replies that are nearly right.
//!
//! Whatever the server sends, nothing outside of the segments of unanswered requests changes, and each request completes at
//! most once. Some of the requests are cancelled meanwhile.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use engine::{Completion, Op, Request};
use nbd::client::{
    BlockSizes, Cancellation, ClientOptions, ClientQueue, Disk, Negotiated, ReplyStyle,
    RequestGroup, ServerAddress,
};
use nbd::wire::{
    EXTENDED_REPLY_MAGIC, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, transmission_flag,
};

use crate::input::Input;

/// Requests in flight.
const REQUESTS: u32 = 4;

/// Bytes of each, in two segments.
const LEN: usize = 4096;

/// Bytes between segments, which nothing may change.
const GUARD: usize = 64;
const CANARY: u8 = 0xc5;

/// Inputs that were run.
static RUNS: AtomicU64 = AtomicU64::new(0);

/// Memory of a request.
struct Memory {
    bytes: Vec<u8>,
    iov: [libc::iovec; 2],
}

impl Memory {
    fn new() -> Self {
        let mut bytes = vec![CANARY; 3 * GUARD + LEN];
        let base = bytes.as_mut_ptr();
        let segment = |at: usize, iov_len| libc::iovec {
            iov_base: base.wrapping_add(at).cast(),
            iov_len,
        };
        let iov = [segment(GUARD, 1000), segment(2 * GUARD + 1000, LEN - 1000)];
        Memory { bytes, iov }
    }

    /// Checks what lies around the segments.
    fn check(&self) {
        for at in [0, GUARD + 1000, 2 * GUARD + LEN] {
            let guard = &self.bytes[at..][..GUARD];
            assert!(guard.iter().all(|byte| *byte == CANARY));
        }
    }
}

fn negotiated(replies: ReplyStyle) -> Negotiated {
    Negotiated {
        size: 1 << 20,
        flags: transmission_flag::HAS_FLAGS | transmission_flag::SEND_FLUSH,
        blocks: BlockSizes::default(),
        replies,
    }
}

/// A reply whose cookie is that of a request, if the input does not say otherwise.
fn reply(input: &mut Input<'_>, style: ReplyStyle) -> Vec<u8> {
    let slot = u64::from(input.byte() % 8);
    let cookie = u64::from(input.byte() % 4 == 3) << 33 | 1 << 32 | slot;
    let kinds = [0, 1, 2, 5, 6, 0x8001, 0x8002, 0x8077];
    let kind: u16 = kinds[usize::from(input.byte() % 8)];
    let flags = u16::from(input.byte() % 2);
    let payload = usize::from(input.byte()) * 17;
    let offset = slot * 65_536 + u64::from(input.byte()) * 16;
    let mut body = match kind {
        1 | 2 => offset.to_be_bytes().to_vec(),
        _ => Vec::new(),
    };
    body.extend(std::iter::repeat_with(|| input.byte()).take(payload));
    let length = match input.byte() {
        0 => u32::MAX,
        1 => 0,
        _ => u32::try_from(body.len()).unwrap(),
    };
    let chunk = [flags, kind].map(u16::to_be_bytes).concat();
    let cookie = cookie.to_be_bytes();
    let word = |word: u32| word.to_be_bytes();
    let mut bytes = match style {
        ReplyStyle::Simple => {
            let error = u32::from(flags) * 5;
            [&word(SIMPLE_REPLY_MAGIC)[..], &word(error), &cookie].concat()
        }
        ReplyStyle::Structured => {
            let length = length.to_be_bytes();
            [&word(STRUCTURED_REPLY_MAGIC)[..], &chunk, &cookie, &length].concat()
        }
        ReplyStyle::Extended => {
            let range = [offset, length.into()].map(u64::to_be_bytes).concat();
            [&word(EXTENDED_REPLY_MAGIC)[..], &chunk, &cookie, &range].concat()
        }
    };
    bytes.extend(body);
    bytes
}

/// Runs one input.
pub fn run(bytes: &[u8]) {
    let mut input = Input::new(bytes);
    let style = match input.byte() % 3 {
        0 => ReplyStyle::Simple,
        1 => ReplyStyle::Structured,
        _ => ReplyStyle::Extended,
    };
    let (client, mut server) = UnixStream::pair().unwrap();
    client.set_nonblocking(true).unwrap();
    server.set_nonblocking(true).unwrap();
    let options = ClientOptions {
        tls: None,
        server: ServerAddress::Unix {
            path: PathBuf::from("/nonexistent"),
        },
        // New connections to an export wait for the end of others.
        export: RUNS.fetch_add(1, Ordering::Relaxed).to_string(),
        reconnect_delay: Duration::ZERO,
        open_timeout: Duration::ZERO,
        attempt_timeout: Duration::from_secs(10),
        stop_timeout: Duration::ZERO,
    };
    let disk = Disk::of_socket(options, client.into(), negotiated(style)).expect("a launcher");
    let group = RequestGroup::new(&disk);
    let mut cancellation = None;
    let mut queue = ClientQueue::new(disk, None, Arc::new(|| ()));
    let mut memory: Vec<Memory> = (0..REQUESTS).map(|_| Memory::new()).collect();
    for (number, memory) in (0..REQUESTS).zip(&mut memory) {
        let request = Request {
            op: if number == 3 { Op::Write } else { Op::Read },
            fua: false,
            offset: u64::from(number) * 65_536,
            len: LEN as u64,
            iov: memory.iov.as_mut_ptr(),
            iov_count: 2,
            token: number.into(),
        };
        // SAFETY: list and memory are kept until the queue is dropped.
        unsafe { queue.start(&request, 0, (number % 2 == 1).then_some(&group)) }.unwrap();
    }
    queue.submit();
    let mut completed: Vec<Completion> = Vec::new();
    while !input.is_empty() {
        let bytes = match input.byte() {
            255 => {
                cancellation = Cancellation::begin(&group);
                Vec::new()
            }
            byte if byte % 4 == 0 => (0..input.byte()).map(|_| input.byte()).collect(),
            _ => reply(&mut input, style),
        };
        let _ = server.write_all(&bytes);
        let before = completed.len();
        queue.reap(&mut completed);
        for done in &completed[before..] {
            let number = usize::try_from(done.token).unwrap();
            memory[number].check();
            // From now on nothing of it may change.
            memory[number].bytes.fill(CANARY);
        }
        queue.submit();
    }
    queue.reap(&mut completed);
    let mut tokens: Vec<u64> = completed.iter().map(|done| done.token).collect();
    tokens.sort_unstable();
    tokens.dedup();
    assert_eq!(tokens.len(), completed.len(), "a request completes once");
    drop((queue, cancellation));
    for (number, memory) in memory.iter().enumerate() {
        memory.check();
        if completed.iter().any(|done| done.token == number as u64) {
            assert!(
                memory.bytes.iter().all(|byte| *byte == CANARY),
                "memory changes after its completion"
            );
        }
    }
}

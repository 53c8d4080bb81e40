//! Tests of Linux AIO on the real kernel, with files.

use std::fs::File;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::FileExt;

use engine::{AioSettings, Completion, Errno, IoBackend, LinuxAio, Op, Request};
use rustix::event::{PollFd, PollFlags, poll};

use crate::kernel::MaybeRing;
use crate::support::{BLOCK, Buffers, TempFile, fill_of, ok};

type Engine = LinuxAio<MaybeRing>;

/// An engine with or without the completion ring.
fn engine(ring: bool) -> Engine {
    let settings = AioSettings {
        max_events: 512,
        ..AioSettings::default()
    };
    let aio = LinuxAio::with_kernel(MaybeRing { ring }, settings).unwrap();
    assert_eq!(aio.uses_completion_ring(), ring);
    aio
}

fn push(aio: &mut Engine, (fd, request): (RawFd, Request)) {
    // SAFETY: every test keeps its buffers until all completions were reaped, or the engine
    // dropped.
    unsafe { aio.start_or_queue(fd, &request) }.unwrap();
}

/// Submits and waits like an event loop that does not poll, until nothing is in flight.
fn run(aio: &mut Engine) -> Vec<Completion> {
    let mut out = Vec::new();
    loop {
        aio.reap(&mut out);
        aio.submit();
        if aio.in_flight_count() + aio.pending_count() == 0 && !aio.has_completions() {
            out.sort_by_key(|completion| completion.token);
            return out;
        }
        assert!(
            !aio.is_blocked() || aio.in_flight_count() > 0,
            "nothing would wake us"
        );
        let fd = aio.eventfd();
        poll(&mut [PollFd::new(&fd, PollFlags::IN)], None).unwrap();
        // The poll here is level-triggered, so the eventfd is read before the next reap.
        let _ = rustix::io::read(fd, &mut [0; 8]);
    }
}

#[test]
fn hundreds_in_flight_write_and_read_back() {
    const REQUESTS: u64 = 500;
    const BYTES: u64 = 2 * BLOCK as u64;
    for ring in [true, false] {
        let temp = TempFile::new(REQUESTS * BYTES);
        let mut aio = engine(ring);
        // One to five buffers each, so all four commands are used.
        let parts = |token: u64| 1 + usize::try_from(token % 5).unwrap();
        // A full permutation of the offsets: 7 and 500 have no common factor.
        let offset = |token: u64| token * 7 % REQUESTS * BYTES;

        let mut written: Vec<_> = (0..REQUESTS)
            .map(|token| Buffers::new(2, parts(token), fill_of(token)))
            .collect();
        for (token, buffers) in (0..).zip(&mut written) {
            let (file, mut write) = buffers.io(Op::Write, temp.fd(), offset(token), token);
            write.fua = token % 50 == 0;
            push(&mut aio, (file, write));
        }
        assert_eq!(run(&mut aio), ok(0..REQUESTS));

        let mut read: Vec<_> = (0..REQUESTS)
            .map(|token| Buffers::new(2, parts(token + 1), 0))
            .collect();
        for (token, buffers) in (0..).zip(&mut read) {
            push(
                &mut aio,
                buffers.io(Op::Read, temp.fd(), offset(token), token),
            );
        }
        assert_eq!(run(&mut aio), ok(0..REQUESTS));
        for (token, buffers) in (0..).zip(&read) {
            assert!(
                buffers.bytes().all(|byte| byte == fill_of(token)),
                "request {token}"
            );
        }

        let stats = aio.stats();
        assert_eq!(
            (stats.submitted, stats.completed),
            (2 * REQUESTS, 2 * REQUESTS)
        );
        assert_eq!(stats.largest_batch, 32);
        assert_eq!(
            stats.getevents_calls == 0,
            ring,
            "the ring needs no system call"
        );
    }
}

#[test]
fn polling_sees_completions_without_a_system_call() {
    let temp = TempFile::new(BLOCK as u64);
    let mut aio = engine(true);
    let mut buffers = Buffers::new(1, 1, 9);
    let mut out = Vec::new();
    // More rounds than the ring has places.
    for token in 0..3000 {
        push(&mut aio, buffers.io(Op::Read, temp.fd(), 0, token));
        aio.submit();
        while !aio.has_completions() {
            std::hint::spin_loop();
        }
        aio.reap(&mut out);
        assert_eq!(out.len(), 1);
        assert_eq!(
            out.pop(),
            Some(Completion {
                token,
                result: Ok(())
            })
        );
    }
    assert!(buffers.bytes().all(|byte| byte == 0));
}

#[test]
fn flush_and_dsync_work() {
    let temp = TempFile::new(BLOCK as u64);
    let mut aio = engine(true);
    assert!(aio.supports_fdsync(), "every kernel since 4.18 has it");
    let mut buffers = Buffers::new(1, 2, 3);
    push(&mut aio, buffers.durable(temp.fd(), 0));
    push(&mut aio, buffers.io(Op::Flush, temp.fd(), 77, 1));
    assert_eq!(run(&mut aio), ok(0..2));
}

#[test]
fn the_end_of_a_file_inside_a_sector_reads_as_zeros() {
    // Ends 100 bytes into the second block of a request that starts at block 1.
    let temp = TempFile::new(2 * BLOCK as u64 + 100);
    temp.cached()
        .write_all_at(&[5; 2 * BLOCK + 100], 0)
        .unwrap();
    let cached = temp.cached();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let mut aio = engine(true);
        let mut across = Buffers::new(3, 4, 0xee);
        let mut beyond = Buffers::new(1, 1, 0xee);
        push(&mut aio, across.io(Op::Read, fd, BLOCK as u64, 0));
        push(&mut aio, beyond.io(Op::Read, fd, 8 * BLOCK as u64, 1));
        assert_eq!(run(&mut aio), ok(0..2));
        let expected = (0..3 * BLOCK).map(|i| if i < BLOCK + 100 { 5 } else { 0 });
        assert!(across.bytes().eq(expected));
        assert!(beyond.bytes().all(|byte| byte == 0));
        assert_eq!(aio.stats().resumed, 1);
    }
}

#[test]
fn a_bad_request_fails_alone() {
    let temp = TempFile::new(16 * BLOCK as u64);
    let read_only = File::open(temp.name.path()).unwrap();
    let mut aio = engine(true);
    let mut buffers: Vec<_> = (0..6).map(|_| Buffers::new(1, 1, 1)).collect();
    let mut many = Buffers::new(1, 1, 1);
    // One more than UIO_MAXIOV.
    many.iov = vec![
        libc::iovec {
            iov_len: 0,
            ..many.iov[0]
        };
        1025
    ];
    many.iov[0].iov_len = BLOCK;

    push(&mut aio, buffers[0].io(Op::Read, temp.fd(), 0, 0));
    push(&mut aio, buffers[1].io(Op::Read, -1, 0, 1));
    push(&mut aio, buffers[2].io(Op::Read, temp.fd(), 0, 2));
    push(&mut aio, many.io(Op::Read, temp.fd(), 0, 3));
    push(
        &mut aio,
        buffers[3].io(Op::Read, temp.fd(), u64::MAX - 4095, 4),
    );
    push(
        &mut aio,
        buffers[4].io(Op::Write, read_only.as_raw_fd(), 0, 5),
    );
    push(&mut aio, buffers[5].io(Op::Read, temp.fd(), 0, 6));
    let results: Vec<_> = run(&mut aio)
        .iter()
        .map(|completion| completion.result)
        .collect();
    assert_eq!(
        results,
        [
            Ok(()),
            Err(Errno::BADF),
            Ok(()),
            Err(Errno::INVAL),
            Err(Errno::INVAL),
            Err(Errno::BADF),
            Ok(())
        ]
    );
    assert_eq!(aio.room(), 512);
}

#[test]
fn dropping_the_engine_waits_for_requests_in_flight() {
    const REQUESTS: u64 = 256;
    let temp = TempFile::new(REQUESTS * BLOCK as u64);
    let mut aio = engine(true);
    let mut buffers: Vec<_> = (0..REQUESTS)
        .map(|token| Buffers::new(1, 1, fill_of(token)))
        .collect();
    for (token, buffers) in (0..).zip(&mut buffers) {
        let offset = token * BLOCK as u64;
        push(&mut aio, buffers.io(Op::Write, temp.fd(), offset, token));
    }
    aio.submit();
    assert_eq!(aio.in_flight_count(), 256);
    drop(aio);
    // If a write were still in flight, this could reach the disk.
    for buffers in &mut buffers {
        buffers.blocks[0].0.fill(0);
    }
    let mut block = [0; BLOCK];
    for token in 0..REQUESTS {
        temp.cached()
            .read_exact_at(&mut block, token * BLOCK as u64)
            .unwrap();
        assert!(
            block.iter().all(|byte| *byte == fill_of(token)),
            "request {token}"
        );
    }
}

#[test]
fn an_engine_can_move_to_another_thread() {
    let temp = TempFile::new(BLOCK as u64);
    let mut aio = engine(true);
    let mut buffers = Buffers::new(1, 1, 4);
    push(&mut aio, buffers.io(Op::Write, temp.fd(), 0, 0));
    aio.submit();
    let done = std::thread::spawn(move || run(&mut aio)).join().unwrap();
    assert_eq!(done, ok(0..1));
}

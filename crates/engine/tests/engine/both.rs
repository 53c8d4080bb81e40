//! Tests of Linux AIO and io_uring on the real kernel, with files, in both variants of each.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use engine::{Errno, Op, Request};

use crate::support::{BLOCK, Buffers, Engine, TempFile, fill_of, ok};

/// Tests of each engine.
macro_rules! of_each_engine {
    ($($test:ident)*) => {
        mod linux_aio {
            use crate::support::MaybeRing;
            $(#[test] fn $test() { super::$test::<engine::LinuxAio<MaybeRing>>(); })*
        }
        mod io_uring {
            use test_support::report::has_io_uring;
            $(#[test] fn $test() { if has_io_uring() { super::$test::<engine::Uring>(); } })*
        }
    };
}

of_each_engine! {
    hundreds_in_flight_write_and_read_back
    polling_sees_completions_without_a_system_call
    the_end_of_a_file_inside_a_sector_reads_as_zeros
    a_bad_request_fails_alone
    dropping_the_engine_waits_for_requests_in_flight
    dropping_the_engine_discards_requests_that_were_not_submitted
}

const VARIANTS: [bool; 2] = [true, false];

fn hundreds_in_flight_write_and_read_back<E: Engine>() {
    const REQUESTS: u64 = 500;
    const BYTES: u64 = 2 * BLOCK as u64;
    for variant in VARIANTS {
        let temp = TempFile::new(REQUESTS * BYTES);
        let mut engine = E::start(variant);
        let file = engine.file(temp.fd(), variant);
        // One to five buffers each, so all four commands are used.
        let parts = |token: u64| 1 + usize::try_from(token % 5).unwrap();
        // A full permutation of the offsets: 7 and 500 have no common factor.
        let offset = |token: u64| token * 7 % REQUESTS * BYTES;

        let mut written: Vec<_> = (0..REQUESTS)
            .map(|token| Buffers::new(2, parts(token), fill_of(token)))
            .collect();
        for (token, buffers) in (0..).zip(&mut written) {
            let (file, mut write) = buffers.io(Op::Write, file, offset(token), token);
            write.fua = token % 50 == 0;
            engine.push((file, write));
        }
        let flush = Request::without_data(Op::Flush, 77, 0, REQUESTS);
        engine.push((file, flush));
        assert_eq!(engine.run(), ok(0..REQUESTS + 1));

        let mut read: Vec<_> = (0..REQUESTS)
            .map(|token| Buffers::new(2, parts(token + 1), 0))
            .collect();
        for (token, buffers) in (0..).zip(&mut read) {
            engine.push(buffers.io(Op::Read, file, offset(token), token));
        }
        assert_eq!(engine.run(), ok(0..REQUESTS));
        for (token, buffers) in (0..).zip(&read) {
            let fill = fill_of(token);
            assert!(buffers.bytes().all(|byte| byte == fill), "request {token}");
        }
        let counts = engine.counts();
        assert_eq!(counts.completed, 2 * REQUESTS + 1);
        assert_eq!(counts.largest_batch, 32);
        let calls = counts.getevents_calls > 0;
        let as_expected = calls != variant || !E::VARIANTS_REAP_DIFFERENTLY;
        assert!(as_expected, "{counts:?}");
    }
}

fn polling_sees_completions_without_a_system_call<E: Engine>() {
    let temp = TempFile::new(BLOCK as u64);
    let mut engine = E::start(true);
    let file = engine.file(temp.fd(), false);
    let mut buffers = Buffers::new(1, 1, 9);
    let mut out = Vec::new();
    // More rounds than the ring has places.
    for token in 0..3000 {
        engine.push(buffers.io(Op::Read, file, 0, token));
        engine.submit();
        while !engine.has_completions() {
            std::hint::spin_loop();
        }
        while out.is_empty() {
            engine.reap(&mut out);
        }
        assert_eq!(out, ok(token..token + 1));
        out.clear();
    }
    assert!(buffers.bytes().all(|byte| byte == 0));
}

fn the_end_of_a_file_inside_a_sector_reads_as_zeros<E: Engine>() {
    // Ends 100 bytes into the second block of a request that starts at block 1.
    let temp = TempFile::new(2 * BLOCK as u64 + 100);
    let cached = temp.cached();
    cached.write_all_at(&[5; 2 * BLOCK + 100], 0).unwrap();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let mut engine = E::start(true);
        let file = engine.file(fd, false);
        let mut across = Buffers::new(3, 4, 0xee);
        let mut beyond = Buffers::new(1, 1, 0xee);
        engine.push(across.io(Op::Read, file, BLOCK as u64, 0));
        engine.push(beyond.io(Op::Read, file, 8 * BLOCK as u64, 1));
        assert_eq!(engine.run(), ok(0..2));
        let expected = (0..3 * BLOCK).map(|i| if i < BLOCK + 100 { 5 } else { 0 });
        assert!(across.bytes().eq(expected));
        assert!(beyond.bytes().all(|byte| byte == 0));
        assert!(engine.counts().resumed >= 1);
    }
}

fn a_bad_request_fails_alone<E: Engine>() {
    let temp = TempFile::new(16 * BLOCK as u64);
    let read_only = File::open(temp.name.path()).unwrap();
    let mut engine = E::start(true);
    let [good, bad, read_only] =
        [temp.fd(), -1, read_only.as_raw_fd()].map(|fd| engine.file(fd, false));
    let mut buffers: Vec<_> = (0..6).map(|_| Buffers::new(1, 1, 1)).collect();
    let mut many = Buffers::new(1, 1, 1);
    let (first, iov_len) = (many.iov[0], 0);
    // One more than UIO_MAXIOV.
    many.iov = vec![libc::iovec { iov_len, ..first }; 1025];
    many.iov[0].iov_len = BLOCK;

    engine.push(buffers[0].io(Op::Read, good, 0, 0));
    engine.push(buffers[1].io(Op::Read, bad, 0, 1));
    engine.push(buffers[2].io(Op::Read, good, 0, 2));
    engine.push(many.io(Op::Read, good, 0, 3));
    engine.push(buffers[3].io(Op::Read, good, u64::MAX - 4095, 4));
    engine.push(buffers[4].io(Op::Write, read_only, 0, 5));
    engine.push(buffers[5].io(Op::Read, good, 0, 6));
    let results: Vec<_> = engine.run().iter().map(|done| done.result).collect();
    let (badf, inval) = (Err(Errno::BADF), Err(Errno::INVAL));
    assert_eq!(results, [Ok(()), badf, Ok(()), inval, inval, badf, Ok(())]);
    assert_eq!(engine.room(), 512);
}

/// The first byte of each block of the file, all of whose bytes are the same.
fn fills(temp: &TempFile, blocks: u64) -> Vec<u8> {
    let mut block = [0; BLOCK];
    let fill = |index| {
        temp.cached()
            .read_exact_at(&mut block, index * BLOCK as u64)
            .unwrap();
        assert!(block.iter().all(|byte| *byte == block[0]), "block {index}");
        block[0]
    };
    (0..blocks).map(fill).collect()
}

fn dropping_the_engine_waits_for_requests_in_flight<E: Engine>() {
    const REQUESTS: u64 = 256;
    let temp = TempFile::new(REQUESTS * BLOCK as u64);
    let mut engine = E::start(true);
    let file = engine.file(temp.fd(), false);
    let mut buffers: Vec<_> = (0..REQUESTS)
        .map(|token| Buffers::new(1, 1, fill_of(token)))
        .collect();
    for (token, buffers) in (0..).zip(&mut buffers) {
        engine.push(buffers.io(Op::Write, file, token * BLOCK as u64, token));
    }
    engine.submit();
    assert_eq!(engine.unfinished(), (256, 0));
    drop(engine);
    // If a write were still in flight, this could reach the disk.
    for buffers in &mut buffers {
        buffers.blocks[0].0.fill(0);
    }
    assert!(
        fills(&temp, REQUESTS)
            .into_iter()
            .eq((0..REQUESTS).map(fill_of))
    );
}

/// Requests that were pushed and never submitted do not run, since the owner may free their buffers.
fn dropping_the_engine_discards_requests_that_were_not_submitted<E: Engine>() {
    let temp = TempFile::new(BLOCK as u64);
    let mut engine = E::start(true);
    let file = engine.file(temp.fd(), false);
    let mut buffers = Buffers::new(1, 1, 7);
    engine.push(buffers.io(Op::Write, file, 0, 0));
    assert_eq!(engine.unfinished(), (0, 1));
    drop(engine);
    assert_eq!(fills(&temp, 1), [0]);
}

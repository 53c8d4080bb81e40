//! Tests of io_uring on the real kernel, with files.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use engine::uring::{BufferError, File};
use engine::{Completion, Errno, IoBackend, Op, Request, Uring, UringError, UringSettings};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use test_support::report::has_io_uring;

use crate::support::{BLOCK, Block, Buffers, TempFile, fill_of, ok};

const SETTINGS: UringSettings = UringSettings {
    max_events: 512,
    max_batch: 0,
    max_workers: 4,
};

fn engine() -> Uring {
    Uring::new(SETTINGS).unwrap()
}

fn push(ring: &mut Uring, (file, request): (File, Request)) {
    // SAFETY: every test keeps its buffers until all completions were reaped, or the engine
    // dropped.
    unsafe { ring.start_or_queue(file, &request) }.unwrap();
}

/// An event loop that does not poll: it blocks whenever it may.
struct Loop {
    epoll: std::os::fd::OwnedFd,
    waits: usize,
}

impl Loop {
    fn new(ring: &Uring) -> Self {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let flags = epoll::EventFlags::IN | epoll::EventFlags::ET;
        epoll::add(&epoll, ring.eventfd(), epoll::EventData::new_u64(0), flags).unwrap();
        Self { epoll, waits: 0 }
    }

    /// Runs until nothing is in flight.
    fn run(&mut self, ring: &mut Uring) -> Vec<Completion> {
        let mut out = Vec::new();
        let mut events = Vec::with_capacity(4);
        loop {
            ring.reap(&mut out);
            ring.submit();
            if ring.in_flight_count() + ring.pending_count() == 0 && !ring.has_completions() {
                out.sort_by_key(|completion| completion.token);
                return out;
            }
            if !ring.prepare_to_block_and_recheck() {
                self.waits += 1;
                let minute = Timespec {
                    tv_sec: 60,
                    tv_nsec: 0,
                };
                events.clear();
                match epoll::wait(&self.epoll, spare_capacity(&mut events), Some(&minute)) {
                    // The kernel wants the thread for a moment, to start a worker.
                    Err(Errno::INTR) => {}
                    polled => assert_eq!(polled, Ok(1), "a completion was not signalled"),
                }
            }
        }
    }
}

fn run(ring: &mut Uring) -> Vec<Completion> {
    Loop::new(ring).run(ring)
}

#[test]
fn hundreds_in_flight_write_and_read_back() {
    if !has_io_uring() {
        return;
    }
    const REQUESTS: u64 = 500;
    const BYTES: u64 = 2 * BLOCK as u64;
    for registered in [true, false] {
        let temp = TempFile::new(REQUESTS * BYTES);
        let mut ring = engine();
        let file = if registered {
            assert!(ring.try_register_file(3, temp.fd()));
            File::Registered(3)
        } else {
            File::Descriptor(temp.fd())
        };
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
            push(&mut ring, (file, write));
        }
        assert_eq!(run(&mut ring), ok(0..REQUESTS));

        let mut read: Vec<_> = (0..REQUESTS)
            .map(|token| Buffers::new(2, parts(token + 1), 0))
            .collect();
        for (token, buffers) in (0..).zip(&mut read) {
            push(&mut ring, buffers.io(Op::Read, file, offset(token), token));
        }
        assert_eq!(run(&mut ring), ok(0..REQUESTS));
        for (token, buffers) in (0..).zip(&read) {
            assert!(
                buffers.bytes().all(|byte| byte == fill_of(token)),
                "request {token}"
            );
        }
        let stats = ring.stats();
        assert_eq!(stats.completed, 2 * REQUESTS);
        assert_eq!(stats.largest_batch, 32);
    }
}

/// Thousands of times: a request, a wait, nothing else. One missed wake-up hangs.
#[test]
fn no_wake_up_is_lost() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(64 * BLOCK as u64);
    let mut ring = engine();
    let mut waiter = Loop::new(&ring);
    let mut buffers: Vec<_> = (0..8).map(|_| Buffers::new(1, 1, 9)).collect();
    for round in 0..4000_u64 {
        let depth = 1 + round % 8;
        for (token, buffers) in (0..depth).zip(&mut buffers) {
            let offset = (round + 7 * token) % 64 * BLOCK as u64;
            // A flush completes in a worker of the kernel's, a read in an interrupt or at once.
            let op = if token == 5 { Op::Flush } else { Op::Read };
            let file = File::Descriptor(temp.fd());
            push(&mut ring, buffers.io(op, file, offset, token));
        }
        assert_eq!(waiter.run(&mut ring), ok(0..depth));
    }
    assert!(waiter.waits > 100, "it hardly ever blocked");
}

#[test]
fn polling_sees_completions_without_a_system_call() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(BLOCK as u64);
    let mut ring = engine();
    let mut buffers = Buffers::new(1, 1, 9);
    let mut out = Vec::new();
    // More rounds than the ring has places.
    for token in 0..3000 {
        let file = File::Descriptor(temp.fd());
        push(&mut ring, buffers.io(Op::Read, file, 0, token));
        ring.submit();
        while !ring.has_completions() {
            std::hint::spin_loop();
        }
        while out.is_empty() {
            ring.reap(&mut out);
        }
        assert_eq!(out, ok(token..token + 1));
        out.clear();
    }
    assert!(buffers.bytes().all(|byte| byte == 0));
}

#[test]
fn flush_and_dsync_work() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(BLOCK as u64);
    let mut ring = engine();
    let file = File::Descriptor(temp.fd());
    let mut buffers = Buffers::new(1, 2, 3);
    push(&mut ring, buffers.durable(file, 0));
    push(&mut ring, buffers.io(Op::Flush, file, 77, 1));
    assert_eq!(run(&mut ring), ok(0..2));
}

#[test]
fn the_end_of_a_file_inside_a_sector_reads_as_zeros() {
    if !has_io_uring() {
        return;
    }
    // Ends 100 bytes into the second block of a request that starts at block 1.
    let temp = TempFile::new(2 * BLOCK as u64 + 100);
    temp.cached()
        .write_all_at(&[5; 2 * BLOCK + 100], 0)
        .unwrap();
    let cached = temp.cached();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let file = File::Descriptor(fd);
        let mut ring = engine();
        let mut across = Buffers::new(3, 4, 0xee);
        let mut beyond = Buffers::new(1, 1, 0xee);
        push(&mut ring, across.io(Op::Read, file, BLOCK as u64, 0));
        push(&mut ring, beyond.io(Op::Read, file, 8 * BLOCK as u64, 1));
        assert_eq!(run(&mut ring), ok(0..2));
        let expected = (0..3 * BLOCK).map(|i| if i < BLOCK + 100 { 5 } else { 0 });
        assert!(across.bytes().eq(expected));
        assert!(beyond.bytes().all(|byte| byte == 0));
    }
}

#[test]
fn a_bad_request_fails_alone() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(16 * BLOCK as u64);
    let read_only = fs::File::open(temp.name.path()).unwrap();
    let mut ring = engine();
    let file = File::Descriptor(temp.fd());
    let mut buffers: Vec<_> = (0..8).map(|_| Buffers::new(1, 1, 1)).collect();
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
    let write = Op::Write;
    let read_only = File::Descriptor(read_only.as_raw_fd());
    push(&mut ring, buffers[0].io(Op::Read, file, 0, 0));
    push(
        &mut ring,
        buffers[1].io(Op::Read, File::Descriptor(-1), 0, 1),
    );
    push(&mut ring, buffers[2].io(Op::Read, file, 0, 2));
    push(&mut ring, many.io(Op::Read, file, 0, 3));
    push(&mut ring, buffers[3].io(Op::Read, file, u64::MAX, 4));
    push(&mut ring, buffers[4].io(write, read_only, 0, 5));
    push(
        &mut ring,
        buffers[5].io(Op::Read, File::Registered(7), 0, 6),
    );
    push(
        &mut ring,
        buffers[6].io(Op::Read, File::Registered(1 << 20), 0, 7),
    );
    push(&mut ring, buffers[7].io(Op::Read, file, 0, 8));
    let results: Vec<_> = run(&mut ring)
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
            Err(Errno::BADF),
            Err(Errno::BADF),
            Ok(())
        ]
    );
    assert_eq!(ring.room(), 512);
}

#[test]
fn holes_are_punched_or_the_file_reports_that_it_cannot() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(0);
    temp.cached().write_all_at(&[1; 16 * BLOCK], 0).unwrap();
    temp.cached().sync_all().unwrap();
    let before = temp.name.as_file().metadata().unwrap().blocks();
    let mut ring = engine();
    let range = |op, token| Request::without_data(op, 4 * BLOCK as u64, 8 * BLOCK as u64, token);
    let punch = Op::WriteZeroes { unmap: true };
    let null = fs::OpenOptions::new()
        .write(true)
        .open("/dev/null")
        .unwrap();
    for (token, fd, op) in [
        (0, temp.fd(), punch),
        (1, temp.fd(), Op::Flush),
        (2, temp.fd(), Op::Discard),
        (3, null.as_raw_fd(), punch),
    ] {
        push(&mut ring, (File::Descriptor(fd), range(op, token)));
    }
    let done = run(&mut ring);
    let mut done: Vec<_> = done.iter().map(|c| (c.token, c.result)).collect();
    done.sort_by_key(|(token, _)| *token);
    assert_eq!(done[..2], [(0, Ok(())), (1, Ok(()))]);
    assert_eq!(done[2], (2, Err(Errno::OPNOTSUPP)));
    assert!(done[3].1.is_err());
    assert_eq!(
        temp.name.as_file().metadata().unwrap().blocks(),
        before - 64
    );
    let mut block = [1; BLOCK];
    temp.cached()
        .read_exact_at(&mut block, 5 * BLOCK as u64)
        .unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
}

#[test]
fn dropping_the_engine_waits_for_requests_in_flight() {
    if !has_io_uring() {
        return;
    }
    const REQUESTS: u64 = 256;
    let temp = TempFile::new(REQUESTS * BLOCK as u64);
    let mut ring = engine();
    let file = File::Descriptor(temp.fd());
    let mut buffers: Vec<_> = (0..REQUESTS)
        .map(|token| Buffers::new(1, 1, fill_of(token)))
        .collect();
    for (token, buffers) in (0..).zip(&mut buffers) {
        let offset = token * BLOCK as u64;
        let write = Op::Write;
        push(&mut ring, buffers.io(write, file, offset, token));
    }
    ring.submit();
    assert_eq!(ring.in_flight_count(), 256);
    drop(ring);
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

/// Requests that were pushed and never submitted do not run, since the owner may free their buffers.
#[test]
fn dropping_the_engine_discards_requests_that_were_not_submitted() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(BLOCK as u64);
    let mut ring = engine();
    let mut buffers = Buffers::new(1, 1, 7);
    let write = Op::Write;
    push(
        &mut ring,
        buffers.io(write, File::Descriptor(temp.fd()), 0, 0),
    );
    assert_eq!((ring.pending_count(), ring.in_flight_count()), (1, 0));
    drop(ring);
    let mut block = [9; BLOCK];
    temp.cached().read_exact_at(&mut block, 0).unwrap();
    assert!(block.iter().all(|byte| *byte == 0));
}

#[test]
fn the_table_of_files_is_bounded_and_releases_files() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(BLOCK as u64);
    let mut ring = engine();
    assert!(!ring.try_register_file(1 << 20, temp.fd()), "no such place");
    assert!(!ring.try_register_file(0, 1 << 20), "no such file");
    let (reader, writer) = rustix::pipe::pipe().unwrap();
    assert!(ring.try_register_file(1, writer.as_raw_fd()));
    drop(writer);
    let flags = rustix::fs::OFlags::NONBLOCK;
    rustix::fs::fcntl_setfl(&reader, flags).unwrap();
    let read = || rustix::io::read(&reader, &mut [0; 1]);
    assert_eq!(read(), Err(Errno::AGAIN), "the table holds it open");
    ring.unregister_file(1);
    assert_eq!(read(), Ok(0), "it is closed");
    assert!(ring.try_register_file(1, reader.as_raw_fd()));
    drop(ring);
}

/// Forbids a system call to the calling thread.
fn forbid(call: i64) {
    let statement = |code: u32, jump_if_not: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).unwrap(),
        jt: 0,
        jf: jump_if_not,
        k,
    };
    let refusal = libc::SECCOMP_RET_ERRNO | u32::try_from(libc::EPERM).unwrap();
    let call = u32::try_from(call).unwrap();
    let mut filter = [
        // The number of the system call is the first field.
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0),
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call),
        statement(libc::BPF_RET | libc::BPF_K, 0, refusal),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap(),
        filter: filter.as_mut_ptr(),
    };
    // SAFETY: plain numbers.
    let restricted = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(restricted, 0);
    let mode = libc::c_ulong::from(libc::SECCOMP_MODE_FILTER);
    // SAFETY: the program and its instructions live until the call is over.
    let set = unsafe { libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program) };
    assert_eq!(set, 0);
}

#[test]
fn a_seccomp_filter_is_reported_differently_from_a_kernel_without_io_uring() {
    if !has_io_uring() {
        return;
    }
    for call in [
        libc::SYS_io_uring_setup,
        libc::SYS_io_uring_register,
        libc::SYS_io_uring_enter,
    ] {
        let refused = std::thread::spawn(move || {
            forbid(call);
            Uring::new(SETTINGS).err()
        });
        assert_eq!(
            refused.join().unwrap(),
            Some(UringError::Forbidden),
            "{call}"
        );
    }
}

#[test]
fn a_ring_without_requests_is_refused_and_a_large_one_is_reduced() {
    if !has_io_uring() {
        return;
    }
    for (max_events, max_workers) in [(0, 1), (1, 0)] {
        let settings = UringSettings {
            max_events,
            max_workers,
            ..SETTINGS
        };
        assert_eq!(Uring::new(settings).err(), Some(UringError::Nothing));
    }
    let settings = UringSettings {
        max_events: 65_536,
        ..SETTINGS
    };
    assert_eq!(Uring::new(settings).unwrap().room(), 32_768);
    let settings = UringSettings {
        max_events: 100,
        ..SETTINGS
    };
    assert_eq!(Uring::new(settings).unwrap().room(), 100);
}

/// Registers blocks with the ring.
fn register(ring: &mut Uring, blocks: &[Block]) -> Result<(), BufferError> {
    // SAFETY: every test keeps its blocks until the engine is dropped, or unregisters them before.
    unsafe { ring.register_memory(blocks.as_ptr() as usize, size_of_val(blocks)) }
}

fn unregister(ring: &mut Uring, blocks: &[Block]) -> bool {
    ring.unregister_memory_if_idle(blocks.as_ptr() as usize, size_of_val(blocks))
}

#[test]
fn registered_memory_is_written_and_read_in_place() {
    if !has_io_uring() {
        return;
    }
    const REQUESTS: u64 = 100;
    const BLOCKS: usize = 4;
    let temp = TempFile::new(REQUESTS * (BLOCKS * BLOCK) as u64);
    let cached = temp.cached();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let mut ring = engine();
        assert!(ring.try_register_file(3, fd));
        let file = File::Registered(3);
        let offset = |token: u64| token * 7 % REQUESTS * (BLOCKS * BLOCK) as u64;
        // One to five buffers; every third request's memory is not registered.
        let mut all: Vec<_> = (0..REQUESTS)
            .map(|token| {
                let parts = 1 + usize::try_from(token % 5).unwrap();
                Buffers::new(BLOCKS, parts, fill_of(token))
            })
            .collect();
        for (token, buffers) in (0..).zip(&all) {
            if token % 3 > 0 {
                register(&mut ring, &buffers.blocks).unwrap();
            }
        }
        for op in [Op::Write, Op::Read] {
            for (token, buffers) in (0..).zip(&mut all) {
                push(&mut ring, buffers.io(op, file, offset(token), token));
            }
            assert_eq!(run(&mut ring), ok(0..REQUESTS));
            for (token, buffers) in (0..).zip(&mut all) {
                let fill = fill_of(token);
                assert!(buffers.bytes().all(|byte| byte == fill), "{op:?} {token}");
                buffers.blocks.fill(Block([0; BLOCK]));
            }
        }
        let known = REQUESTS - REQUESTS.div_ceil(3);
        assert_eq!(ring.stats().fixed, 2 * known);
        for (token, buffers) in (0..).zip(&all) {
            assert!(token % 3 == 0 || unregister(&mut ring, &buffers.blocks));
        }
        // Again by address.
        push(&mut ring, all[1].io(Op::Read, file, offset(1), 0));
        assert_eq!(run(&mut ring), ok(0..1));
        assert!(all[1].bytes().all(|byte| byte == fill_of(1)));
        assert_eq!(ring.stats().fixed, 2 * known);
    }
}

#[test]
fn memory_with_requests_in_flight_is_not_unregistered() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(BLOCK as u64);
    let mut ring = engine();
    let mut buffers = Buffers::new(1, 1, 9);
    register(&mut ring, &buffers.blocks).unwrap();
    let file = File::Descriptor(temp.fd());
    push(&mut ring, buffers.io(Op::Read, file, 0, 0));
    assert!(!unregister(&mut ring, &buffers.blocks), "not submitted yet");
    ring.submit();
    assert!(!unregister(&mut ring, &buffers.blocks), "not reaped yet");
    assert_eq!(run(&mut ring), ok(0..1));
    assert!(unregister(&mut ring, &buffers.blocks));
    assert_eq!(ring.stats().fixed, 1);
}

#[test]
fn short_reads_into_registered_memory_end_in_zeros() {
    if !has_io_uring() {
        return;
    }
    let temp = TempFile::new(2 * BLOCK as u64 + 100);
    let cached = temp.cached();
    cached.write_all_at(&[5; 2 * BLOCK + 100], 0).unwrap();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let mut ring = engine();
        let mut buffers = Buffers::new(3, 4, 0xee);
        register(&mut ring, &buffers.blocks).unwrap();
        let file = File::Descriptor(fd);
        push(&mut ring, buffers.io(Op::Read, file, BLOCK as u64, 0));
        assert_eq!(run(&mut ring), ok(0..1));
        let expected = (0..3 * BLOCK).map(|i| if i < BLOCK + 100 { 5 } else { 0 });
        assert!(buffers.bytes().eq(expected));
    }
}

#[test]
fn memory_in_a_file_on_a_disk_is_refused_with_the_remedy() {
    if !has_io_uring() {
        return;
    }
    let disk = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    disk.as_file().set_len(BLOCK as u64).unwrap();
    let magic = rustix::fs::fstatfs(disk.as_file()).unwrap().f_type;
    let shared = rustix::mm::MapFlags::SHARED;
    let access = rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE;
    // SAFETY: a new mapping; what is there is only pinned, or not.
    let map = unsafe {
        rustix::mm::mmap(
            std::ptr::null_mut(),
            BLOCK,
            access,
            shared,
            disk.as_file(),
            0,
        )
        .unwrap()
    };
    let mut ring = engine();
    // SAFETY: it stays mapped.
    let refused = unsafe { ring.register_memory(map as usize, BLOCK) };
    // If the build is on tmpfs, its memory can be pinned.
    let tmpfs = magic == 0x0102_1994;
    let expected = if tmpfs {
        Ok(())
    } else {
        Err(BufferError::Backing)
    };
    assert_eq!(refused, expected);
}

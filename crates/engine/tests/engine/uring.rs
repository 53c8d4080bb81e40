//! Tests of what only io_uring has, on the real kernel, with files: see `both.rs` for what Linux AIO has too.

use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};

use engine::uring::{BufferError, File};
use engine::{Errno, IoBackend, Op, Request, Uring, UringError, UringSettings};
use test_support::report::has_io_uring;

use crate::support::{BLOCK, Block, Buffers, Engine, Loop, SETTINGS, TempFile, fill_of, ok};

/// An engine, unless the kernel has none.
fn engine() -> Option<Uring> {
    has_io_uring().then(|| Uring::new(SETTINGS).unwrap())
}

/// Thousands of times: a request, a wait, nothing else. One missed wake-up hangs.
#[test]
fn no_wake_up_is_lost() {
    let Some(mut ring) = engine() else {
        return;
    };
    let temp = TempFile::new(64 * BLOCK as u64);
    let mut waiter = Loop::new(&ring);
    let mut buffers: Vec<_> = (0..8).map(|_| Buffers::new(1, 1, 9)).collect();
    for round in 0..4000_u64 {
        let depth = 1 + round % 8;
        for (token, buffers) in (0..depth).zip(&mut buffers) {
            let offset = (round + 7 * token) % 64 * BLOCK as u64;
            // A flush completes in a worker of the kernel's, a read in an interrupt or at once.
            let op = if token == 5 { Op::Flush } else { Op::Read };
            let file = File::Descriptor(temp.fd());
            ring.push(buffers.io(op, file, offset, token));
        }
        assert_eq!(waiter.run(&mut ring), ok(0..depth));
    }
    assert!(waiter.waits > 100, "it hardly ever blocked");
}

#[test]
fn holes_are_punched_or_the_file_reports_that_it_cannot() {
    let Some(mut ring) = engine() else {
        return;
    };
    let temp = TempFile::new(0);
    temp.cached().write_all_at(&[1; 16 * BLOCK], 0).unwrap();
    temp.cached().sync_all().unwrap();
    let before = temp.name.as_file().metadata().unwrap().blocks();
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
        ring.push((File::Descriptor(fd), range(op, token)));
    }
    let done = ring.run();
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
fn a_place_without_a_file_fails_its_request_alone() {
    let Some(mut ring) = engine() else {
        return;
    };
    let temp = TempFile::new(BLOCK as u64);
    let mut buffers: Vec<_> = (0..3).map(|_| Buffers::new(1, 1, 1)).collect();
    ring.push(buffers[0].io(Op::Read, File::Registered(7), 0, 0));
    ring.push(buffers[1].io(Op::Read, File::Registered(1 << 20), 0, 1));
    ring.push(buffers[2].io(Op::Read, File::Descriptor(temp.fd()), 0, 2));
    let results: Vec<_> = ring.run().iter().map(|done| done.result).collect();
    assert_eq!(results, [Err(Errno::BADF), Err(Errno::BADF), Ok(())]);
}

#[test]
fn the_table_of_files_is_bounded_and_releases_files() {
    let Some(mut ring) = engine() else {
        return;
    };
    let temp = TempFile::new(BLOCK as u64);
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
    for (max_events, max_workers, room) in [
        (0, 1, Err(UringError::Nothing)),
        (1, 0, Err(UringError::Nothing)),
        (65_536, 4, Ok(32_768)),
        (100, 4, Ok(100)),
    ] {
        let settings = UringSettings {
            max_events,
            max_workers,
            ..SETTINGS
        };
        assert_eq!(Uring::new(settings).map(|ring| ring.room()), room);
    }
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
    const REQUESTS: u64 = 100;
    const BLOCKS: usize = 4;
    let temp = TempFile::new(REQUESTS * (BLOCKS * BLOCK) as u64);
    let cached = temp.cached();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let Some(mut ring) = engine() else { return };
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
                ring.push(buffers.io(op, file, offset(token), token));
            }
            assert_eq!(ring.run(), ok(0..REQUESTS));
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
        ring.push(all[1].io(Op::Read, file, offset(1), 0));
        assert_eq!(ring.run(), ok(0..1));
        assert!(all[1].bytes().all(|byte| byte == fill_of(1)));
        assert_eq!(ring.stats().fixed, 2 * known);
    }
}

#[test]
fn memory_with_requests_in_flight_is_not_unregistered() {
    let Some(mut ring) = engine() else {
        return;
    };
    let temp = TempFile::new(BLOCK as u64);
    let mut buffers = Buffers::new(1, 1, 9);
    register(&mut ring, &buffers.blocks).unwrap();
    let file = File::Descriptor(temp.fd());
    ring.push(buffers.io(Op::Read, file, 0, 0));
    assert!(!unregister(&mut ring, &buffers.blocks), "not submitted yet");
    ring.submit();
    assert!(!unregister(&mut ring, &buffers.blocks), "not reaped yet");
    assert_eq!(ring.run(), ok(0..1));
    assert!(unregister(&mut ring, &buffers.blocks));
    assert_eq!(ring.stats().fixed, 1);
}

#[test]
fn short_reads_into_registered_memory_end_in_zeros() {
    let temp = TempFile::new(2 * BLOCK as u64 + 100);
    let cached = temp.cached();
    cached.write_all_at(&[5; 2 * BLOCK + 100], 0).unwrap();
    for fd in [temp.fd(), cached.as_raw_fd()] {
        let Some(mut ring) = engine() else { return };
        let mut buffers = Buffers::new(3, 4, 0xee);
        register(&mut ring, &buffers.blocks).unwrap();
        let file = File::Descriptor(fd);
        ring.push(buffers.io(Op::Read, file, BLOCK as u64, 0));
        assert_eq!(ring.run(), ok(0..1));
        let expected = (0..3 * BLOCK).map(|i| if i < BLOCK + 100 { 5 } else { 0 });
        assert!(buffers.bytes().eq(expected));
    }
}

#[test]
fn memory_in_a_file_on_a_disk_is_refused_with_the_remedy() {
    let Some(mut ring) = engine() else {
        return;
    };
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

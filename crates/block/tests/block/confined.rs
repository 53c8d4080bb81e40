//! Tests of IoContext and nodes in the daemon's sandbox: everything that iothreads, their workers and control threads do with
//! disks, under the seccomp filter of each kind of thread.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use block::{BackendSettings, FileOptions, Node};
use engine::{AioSettings, Errno, PoolSettings};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use sandbox::ThreadKind;
use tempfile::TempDir;
use test_support::limited_host::confined::{
    Operation, all_are_allowed, confine, enter, is_inside, not_missed, on_an_iothread, on_thread,
};
use test_support::limited_host::{Answer, Call as Refused, refuse};

use crate::harness::{Call, Rig, pattern};
use crate::storage::{
    LoopDevice, cached, device, file, folder, image, large_block_folder, new_image, options, ring,
    tmpfs_folder, ways,
};

const LEN: usize = 1 << 20;

const OPERATIONS: &[Operation] = &[
    Operation::new("workers read and write", workers_read_and_write),
    Operation::new(
        "workers write to the end of a file",
        workers_write_to_the_end,
    ),
    Operation::new("workers make holes in files", workers_make_holes),
    Operation::new(
        "workers write zeroes where there are no holes",
        workers_write_zeroes,
    ),
    Operation::new(
        "workers make holes in devices",
        workers_make_holes_in_devices,
    ),
    Operation::new("workers look for holes", workers_look_for_holes),
    Operation::new("workers close disks", workers_close_disks),
    Operation::new("workers come and go", workers_come_and_go),
    Operation::new("workers use memory", workers_use_memory),
    Operation::new("workers fail", workers_fail),
    Operation::new("workers replace files", workers_replace_files),
    Operation::new("iothreads use Linux AIO", iothreads_use_linux_aio),
    Operation::new("iothreads use io_uring", iothreads_use_io_uring),
    Operation::new(
        "iothreads transfer in the call",
        iothreads_transfer_in_the_call,
    ),
    Operation::new(
        "control threads open and resize disks",
        control_threads_open_and_resize,
    ),
    Operation::aborting("workers abort", workers_abort),
    Operation::aborting("iothreads abort", iothreads_abort),
];

#[test]
fn every_operation_is_allowed_in_the_sandbox() {
    if !is_inside(OPERATIONS) {
        all_are_allowed(
            "confined::every_operation_is_allowed_in_the_sandbox",
            OPERATIONS,
        );
    }
}

/// Withholds each call of a list from the table. Processes that are ended by that leave loop devices behind, and folders in /dev/shm.
#[test]
#[ignore = "full run only"]
fn calls_that_no_operation_makes() {
    for thread in [ThreadKind::Worker, ThreadKind::Iothread] {
        let test = "confined::every_operation_is_allowed_in_the_sandbox";
        let left = not_missed(test, OPERATIONS, thread);
        eprintln!("{thread:?}: {left:?}");
    }
}

fn settings() -> BackendSettings {
    BackendSettings {
        aio: AioSettings::default(),
        pool: PoolSettings {
            name: "worker io0".to_owned(),
            begin: || enter(ThreadKind::Worker),
            ..PoolSettings::default()
        },
    }
}

fn rig() -> Rig {
    Rig::with_settings(settings())
}

/// Disks whose requests workers carry out.
fn threads(path: &Path) -> Vec<FileOptions> {
    let threads = [options(path), cached(path)].map(|how| FileOptions {
        aio: block::Aio::Threads,
        ..how
    });
    threads.to_vec()
}

/// Reads, writes and flushes, aligned and not, with FUA and without.
fn transfers(rig: &mut Rig, node: &Arc<Node>) {
    let data = pattern(3, 8192);
    for skew in [0, 3] {
        rig.ok(node, Call::write(4096, &data).skewed(skew));
        rig.ok(node, Call::write(16_384, &data).skewed(skew).fua());
        rig.ok(node, Call::write(32_768, &data).cut(1000).skewed(skew));
        rig.ok(node, Call::write(49_152, &data).cut(4096).skewed(skew));
        rig.ok(node, Call::flush());
        for (at, segment) in [(4096, 8192), (16_384, 1000), (32_768, 8192), (49_152, 4096)] {
            let read = Call::read(at, data.len()).cut(segment).skewed(skew);
            assert!(rig.ok(node, read) == data);
        }
    }
}

/// Disks of [`LEN`] bytes behind these options, one file each.
fn disks(how: impl Fn(&Path) -> Vec<FileOptions>, folder: &TempDir) -> Vec<(PathBuf, Arc<Node>)> {
    let count = how(folder.path()).len();
    let disks = (0..count).map(|at| {
        let path = folder.path().join(format!("disk{at}"));
        fs::write(&path, pattern(1, LEN)).unwrap();
        let node = file(&how(&path)[at]);
        (path, node)
    });
    disks.collect()
}

fn workers_read_and_write() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            disks
                .iter()
                .for_each(|(_, node)| transfers(&mut rig(), node))
        },
    );
}

/// A guest's sectors are smaller than the disk's blocks, and the file ends within one: it must not become longer, and is cut.
fn workers_write_to_the_end() {
    let small = folder();
    on_an_iothread(
        || disks(threads, &small),
        |disks| {
            // Where no disk with such blocks can be had.
            for (_, node) in disks {
                let cut =
                    rig().call(move || node.set_file_or_image_end(5120).map_err(|_| Errno::IO));
                assert_eq!(cut, Ok(()));
            }
        },
    );
    let Some((folder, _mount, _disk)) = large_block_folder() else {
        return;
    };
    let path = image(&folder, "disk", 5120);
    on_an_iothread(
        || file(&options(&path)),
        |node| {
            node.set_guest_block_size(512).unwrap();
            let (mut rig, data) = (rig(), pattern(2, 512));
            rig.ok(&node, Call::write(4608, &data));
            assert!(rig.read(&node, 4608, 512) == data);
        },
    );
    assert_eq!(fs::metadata(&path).unwrap().len(), 5120);
}

fn workers_make_holes() {
    let folder = folder();
    on_an_iothread(
        || disks(|path| ways(path).to_vec(), &folder),
        |disks| {
            for (_, node) in disks {
                zeroes_are_read(&mut rig(), &node);
                rig().ok(&node, Call::discard(0, LEN / 2));
            }
        },
    );
}

fn zeroes_are_read(rig: &mut Rig, node: &Arc<Node>) {
    let mut model = rig.read(node, 0, LEN);
    for (at, unmap, fua) in [(0, false, false), (8192, true, false), (16_384, true, true)] {
        let call = Call::write_zeroes(at as u64, 4608, unmap);
        rig.ok(node, if fua { call.fua() } else { call });
        model[at..at + 4608].fill(0);
    }
    assert!(rig.read(node, 0, LEN) == model);
}

fn workers_write_zeroes() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            // The workers inherit it.
            let calls = [Refused::any(libc::SYS_fallocate)];
            refuse(&calls, Answer::Errno(libc::EOPNOTSUPP)).unwrap();
            for (_, node) in disks {
                let mut rig = rig();
                zeroes_are_read(&mut rig, &node);
                rig.ok(&node, Call::discard(0, LEN));
            }
        },
    );
}

fn workers_make_holes_in_devices() {
    let Some(disk) = LoopDevice::new(LEN as u64, 512) else {
        return;
    };
    for how in threads(&disk.path) {
        on_an_iothread(
            || device(&how),
            |node| {
                let mut rig = rig();
                rig.ok(&node, Call::write(0, &pattern(1, LEN)));
                zeroes_are_read(&mut rig, &node);
                rig.ok(&node, Call::discard(0, LEN));
            },
        );
    }
}

fn workers_look_for_holes() {
    let (_folder, path) = new_image(LEN as u64);
    on_an_iothread(
        || file(&options(&path)),
        |node| {
            let mut rig = rig();
            rig.ok(&node, Call::write(65_536, &pattern(1, 65_536)));
            let looked = rig.call(move || {
                let found = node.allocations(0, LEN as u64, 8)?;
                let found: Vec<bool> = found.iter().map(|piece| piece.allocated).collect();
                assert_eq!(found, [false, true, false]);
                Ok(())
            });
            assert_eq!(looked, Ok(()));
        },
    );
}

/// The last user of a disk may be a request.
fn workers_close_disks() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            for (_, node) in disks {
                let close = move || {
                    drop(node);
                    Ok(())
                };
                assert_eq!(rig().call(close), Ok(()));
            }
        },
    );
}

fn workers_come_and_go() {
    let folder = folder();
    on_an_iothread(
        || disks(threads, &folder),
        |disks| {
            let (node, mut rig) = (&disks[0].1, rig());
            let cpus = rustix::thread::sched_getaffinity(None).unwrap();
            rig.io.set_new_worker_cpus(cpus);
            for (min, max) in [(4, 8), (1, 1), (0, 64)] {
                rig.io.set_worker_limits(min, max).unwrap();
                let calls = (0..128).map(|at| Call::write(at * 4096, &[7; 4096]));
                for outcome in rig.all(node, calls.collect()) {
                    assert_eq!(outcome.result, Ok(()));
                }
            }
        },
    );
}

/// Memory is allocated from the kernel and freed, in small pieces and large ones.
fn workers_use_memory() {
    on_an_iothread(
        || (),
        |()| {
            let result = rig().call(|| {
                for _ in 0..3 {
                    let large = vec![1_u8; 64 << 20];
                    let small: Vec<_> = (1..2000).map(|bytes| vec![1_u8; bytes]).collect();
                    let mut grows = Vec::new();
                    (0..1_000_000_u64).for_each(|number| grows.push(number));
                    assert_eq!(large.len() + small.len() + grows.len(), 68_110_863);
                }
                Ok(())
            });
            assert_eq!(result, Ok(()));
        },
    );
}

/// A panic fails its request, and is reported on standard error, with a backtrace if that is enabled.
fn workers_fail() {
    on_an_iothread(
        || (),
        |()| {
            let mut rig = rig();
            let said = rig.call(|| {
                let backtrace = std::backtrace::Backtrace::force_capture();
                eprintln!("an error: {backtrace}");
                Ok(())
            });
            assert_eq!(said, Ok(()));
            assert_eq!(rig.call(|| panic!("a mistake")), Err(Errno::IO));
            assert_eq!(rig.call(|| Ok(())), Ok(()), "the next is carried out");
        },
    );
}

/// A fatal error ends the process by SIGABRT, which leaves a core dump.
fn workers_abort() {
    on_an_iothread(
        || (),
        |()| assert_eq!(rig().call(|| std::process::abort()), Ok(())),
    );
}

fn iothreads_abort() {
    on_an_iothread(|| (), |()| std::process::abort());
}

/// As reservations are saved: beside, stable, locked, renamed.
fn workers_replace_files() {
    let folder = folder();
    fs::write(folder.path().join("file"), "old").unwrap();
    on_an_iothread(
        || {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(folder.path(), flags, Mode::empty()).unwrap()
        },
        |folder| {
            let replaced = rig().call(move || {
                let missing = rustix::fs::unlinkat(&folder, "new", AtFlags::empty());
                assert_eq!(missing, Err(Errno::NOENT));
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
                let new = rustix::fs::openat(&folder, "new", flags, Mode::RUSR | Mode::WUSR)?;
                rustix::fs::flock(&new, FlockOperation::NonBlockingLockExclusive)?;
                let mut new = fs::File::from(new);
                new.write_all(b"new").unwrap();
                new.sync_all().unwrap();
                rustix::fs::renameat(&folder, "new", &folder, "file")?;
                rustix::fs::fsync(&folder)
            });
            assert_eq!(replaced, Ok(()));
        },
    );
    assert_eq!(fs::read(folder.path().join("file")).unwrap(), b"new");
}

fn iothreads_use_linux_aio() {
    let folder = folder();
    on_an_iothread(
        || disks(|path| vec![options(path)], &folder),
        |disks| {
            let mut rig = rig();
            transfers(&mut rig, &disks[0].1);
            let stats = rig.io.aio_stats().unwrap();
            assert!(stats.submitted > 0);
        },
    );
}

fn iothreads_use_io_uring() {
    let folder = folder();
    let how = |path: &Path| vec![ring(options(path)), ring(cached(path))];
    on_an_iothread(
        || disks(how, &folder),
        |disks| {
            for (_, node) in disks {
                let mut rig = rig();
                transfers(&mut rig, &node);
                zeroes_are_read(&mut rig, &node);
                rig.io.set_worker_limits(0, 8).unwrap();
                if rig.io.ring_stats().is_none() {
                    test_support::report::not_run("no io_uring");
                }
            }
        },
    );
}

fn iothreads_transfer_in_the_call() {
    let Some(folder) = tmpfs_folder() else {
        return;
    };
    on_an_iothread(
        || disks(|path| vec![options(path)], &folder),
        |disks| {
            let (node, mut rig) = (&disks[0].1, rig());
            rig.attach(node);
            // It must have answered at once for a while.
            for _ in 0..2000 {
                transfers(&mut rig, node);
                let stats = rig.io.aio_stats().unwrap();
                if stats.synchronous > 100 {
                    return;
                }
            }
            panic!("a disk in memory answers within the call");
        },
    );
}

fn control_threads_open_and_resize() {
    let folder = folder();
    let path = folder.path().join("made");
    on_thread("control", || {
        confine();
        block::create_sparse_or_check_size(&path, LEN as u64).unwrap();
        for how in ways(&path) {
            let node = file(&how);
            for size in [2 * LEN as u64, LEN as u64] {
                let end = node.check_size_and_compute_disk_end_offset(size).unwrap();
                node.set_file_or_image_end(end).unwrap();
            }
            assert_eq!(fs::metadata(&path).unwrap().len(), LEN as u64);
        }
    });
}

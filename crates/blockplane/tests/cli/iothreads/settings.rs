//! Options of an iothread take effect in the kernel.

use std::fs;
use std::time::Duration;

use test_support::deadline::{Deadline, eventually};
use test_support::threads::threads_named;

use crate::guest::{BLOCK, Guest, IN, SLOTS};
use crate::process::{Folder, Process};

/// One queue of a file on an iothread with these settings. Its log is that of debugging.
fn start(folder: &Folder, iothread: &str, blockdev: &str) -> (Process, Guest) {
    folder.image("disk.img", 64 * BLOCK as u64);
    let line = format!(
        "--object iothread,id=a,{iothread} \
         --blockdev file,node-name=d,filename=disk.img,{blockdev} \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a,request-merging=off"
    );
    let mut command = folder.command(line.split_whitespace());
    command.env("BLOCKPLANE_LOG", "debug");
    let mut server = Process::spawn(command);
    server.wait_until_accepting(&folder.join("s"));
    let guest = Guest::connect(&folder.join("s"), 1);
    (server, guest)
}

/// As many requests as there is room for, shown to the device at once.
fn all_at_once(guest: &mut Guest) {
    for slot in 0..SLOTS {
        guest.add(0, slot, IN, 2 * slot as u64, 0);
    }
    guest.submit(0);
    for slot in 0..SLOTS {
        guest.wait(0, slot);
    }
}

/// The most requests that went to the kernel in one call, when as many as possible were there at once.
fn largest_batch(iothread: &str) -> usize {
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, iothread, "aio=native");
    all_at_once(&mut guest);
    drop(guest);
    let log = server.stop().stderr;
    let (_, after) = log.split_once("largest_batch=").expect(&log);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn aio_max_batch_limits_submissions() {
    // No call is larger than what the disk has to do already: four, and four more.
    assert_eq!(largest_batch("aio-max-batch=0"), SLOTS / 2);
    assert_eq!(largest_batch("aio-max-batch=3"), 3);
}

#[test]
fn aio_max_events_limits_submissions() {
    assert_eq!(largest_batch("aio-max-events=3"), 3);
}

fn tasks(server: &Process, name: &str) -> Vec<std::path::PathBuf> {
    threads_named(server.pid(), name)
}

#[test]
fn thread_pool_limits_set_the_number_of_workers() {
    let folder = Folder::new();
    let (server, mut guest) = start(
        &folder,
        "thread-pool-min=2,thread-pool-max=3",
        "cache.direct=off",
    );
    // Also before there is anything to do.
    // Threads give themselves their names.
    eventually("two workers", || tasks(&server, "worker a").len() == 2);
    for _ in 0..50 {
        all_at_once(&mut guest);
        assert!((2..=3).contains(&tasks(&server, "worker a").len()));
    }
    drop(guest);
    server.stop();
}

/// Whether the iothread runs, or waits for a CPU: it does not sleep.
fn is_awake(server: &Process) -> bool {
    let stat = fs::read_to_string(tasks(server, "IO a")[0].join("stat")).unwrap();
    // The name before it may hold anything.
    let (_, after_name) = stat.rsplit_once(") ").unwrap();
    after_name.starts_with('R')
}

/// Whether the iothread is awake, or asleep, some milliseconds after each of ten requests in a row. (A busy
/// machine may see to it that it is not asleep yet.)
#[track_caller]
fn check(iothread: &str, awake: bool) {
    let folder = Folder::new();
    let (server, mut guest) = start(&folder, iothread, "aio=native");
    let (deadline, mut seen) = (Deadline::default(), 0);
    while seen < 10 {
        deadline.check(format_args!("{iothread}: awake is {awake}"));
        guest.request(0, IN, 0, 0);
        std::thread::sleep(Duration::from_millis(5));
        seen = if is_awake(&server) == awake {
            seen + 1
        } else {
            0
        };
    }
    drop(guest);
    server.stop();
}

#[test]
fn poll_max_ns_turns_polling_on() {
    check("poll-max-ns=30000000000,poll-grow=10000000", true);
    check("poll-max-ns=0", false);
}

#[test]
fn poll_cpu_max_limits_polling() {
    check(
        "poll-max-ns=30000000000,poll-grow=10000000,poll-cpu-max=0",
        false,
    );
}

/// A disk whose guest memory is to be pinned, verified by `blockplane-bench run`; what the server logged. `limits`
/// is a line of shell before it starts.
fn verified_with_fixed_buffers(limits: &str) -> String {
    let folder = Folder::new();
    folder.image("disk.img", 16 << 20);
    let line = "--object iothread,id=a --blockdev file,node-name=d,filename=disk.img,aio=io_uring \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a,\
                writable=on,num-queues=2,fixed-buffers=on";
    let script = format!(r#"{limits} "$0" "$@""#);
    let mut command = folder.command_after(&script, line.split_whitespace());
    command.env("BLOCKPLANE_LOG", "debug");
    let mut server = Process::spawn(command);
    server.wait_until_accepting(&folder.join("s"));
    let ended = folder.measure(
        "run s --pattern randrw --depth 128 --queues 2 --time 300ms --verify --destroy-data",
    );
    assert_eq!(ended.code, Some(0), "{ended:?}");
    server.stop().stderr
}

/// A number of the statistics at the end.
fn counted(log: &str, name: &str) -> u64 {
    let (_, end) = log.rsplit_once("io_uring in all").expect(log);
    let (_, after) = end.split_once(&format!(" {name}=")).expect(log);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn fixed_buffers_carry_the_right_data() {
    if !test_support::report::has_io_uring() {
        return;
    }
    let log = verified_with_fixed_buffers("exec");
    assert!(!log.contains("WARN"), "{log}");
    // All but the flushes.
    let (fixed, completed) = (counted(&log, "fixed"), counted(&log, "completed"));
    assert!(fixed > 0 && fixed * 10 > completed * 9, "{log}");
}

#[test]
fn fixed_buffers_fall_back_without_memlock_permission() {
    if !test_support::report::has_io_uring() {
        return;
    }
    if rustix::process::getuid().is_root() && !test_support::report::installed("setpriv") {
        return;
    }
    let limits = "ulimit -l 512; test $(id -u) -ne 0 || \
                  exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$0\" \"$@\"; exec";
    // The kernel counts the rings of all programs of a user: those of other tests may leave no room for this one's.
    let deadline = Deadline::default();
    let log = loop {
        let log = verified_with_fixed_buffers(limits);
        if !log.contains("no memory for an io_uring") {
            break log;
        }
        deadline.pause("other tests have fewer rings");
    };
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(log.contains("ulimit -l"), "{log}");
    assert_eq!(counted(&log, "fixed"), 0, "{log}");
    assert!(counted(&log, "completed") > 0, "{log}");
}

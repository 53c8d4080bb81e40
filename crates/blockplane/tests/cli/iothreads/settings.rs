//! Options of an iothread take effect in the kernel.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use test_support::deadline::{Deadline, eventually};
use test_support::report::{has_io_uring, installed};
use test_support::threads::threads_named;

use crate::process::{Folder, Process};
use crate::request_driver::{BLOCK, IN, RequestDriver, SLOTS};

/// A file on an iothread with these settings. Its log is that of debugging. `script` is a line of shell before it starts.
fn start(folder: &Folder, script: &str, iothread: &str, blockdev: &str, export: &str) -> Process {
    let line = format!(
        "--object iothread,id=a{iothread} \
         --blockdev file,node-name=d,filename=disk.img,{blockdev} \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a,{export}"
    );
    let mut command = folder.command_after(script, line.split_whitespace());
    command.env("BLOCKPLANE_LOG", "debug");
    let mut server = Process::spawn(command);
    server.wait_until_accepting(&folder.join("s"));
    server
}

const EXEC: &str = r#"exec "$0" "$@""#;

/// One queue of such a file.
fn one_queue(folder: &Folder, iothread: &str, blockdev: &str) -> (Process, RequestDriver) {
    folder.image("disk.img", 64 * BLOCK as u64);
    let iothread = format!(",{iothread}");
    let server = start(folder, EXEC, &iothread, blockdev, "request-merging=off");
    let guest = RequestDriver::connect(&folder.join("s"), 1);
    (server, guest)
}

/// As many requests as there is room for, shown to the device at once.
fn all_at_once(guest: &mut RequestDriver) {
    for slot in 0..SLOTS {
        guest.add(0, slot, IN, 2 * slot as u64, 0);
    }
    guest.submit(0);
    for slot in 0..SLOTS {
        guest.wait(0, slot);
    }
}

/// A number in a log.
#[track_caller]
fn number_after(log: &str, name: &str) -> usize {
    let (_, after) = log.split_once(name).expect(log);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

#[test]
fn aio_max_batch_and_aio_max_events_limit_submissions() {
    for (iothread, largest_batch) in [
        // No call is larger than what the disk has to do already: four, and four more.
        ("aio-max-batch=0", SLOTS / 2),
        ("aio-max-batch=3", 3),
        ("aio-max-events=3", 3),
    ] {
        let folder = Folder::new();
        let (server, mut guest) = one_queue(&folder, iothread, "aio=native");
        all_at_once(&mut guest);
        drop(guest);
        let log = server.stop().stderr;
        let found = number_after(&log, "largest_batch=");
        assert_eq!(found, largest_batch, "{iothread}");
    }
}

fn tasks(server: &Process, name: &str) -> Vec<PathBuf> {
    threads_named(server.pid(), name)
}

#[test]
fn thread_pool_limits_set_the_number_of_workers() {
    let folder = Folder::new();
    let pool = "thread-pool-min=2,thread-pool-max=3";
    let (server, mut guest) = one_queue(&folder, pool, "cache.direct=off");
    // Also before there is anything to do. Threads give themselves their names.
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
#[test]
fn poll_max_ns_turns_polling_on_and_poll_cpu_max_limits_it() {
    let polls = "poll-max-ns=30000000000,poll-grow=10000000";
    for (iothread, awake) in [
        (polls, true),
        ("poll-max-ns=0", false),
        (&*format!("{polls},poll-cpu-max=0"), false),
    ] {
        let folder = Folder::new();
        let (server, mut guest) = one_queue(&folder, iothread, "aio=native");
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
}

/// A disk whose guest memory is to be pinned, verified by `blockplane-bench run`; what the server logged. `script`
/// is a line of shell before it starts.
fn verified_with_fixed_buffers(script: &str, block_bytes: u32) -> String {
    let folder = Folder::new();
    folder.image("disk.img", 64 << 20);
    let export = "writable=on,num-queues=2,fixed-buffers=on";
    let server = start(&folder, script, "", "aio=io_uring", export);
    let ended = folder.measure(&format!(
        "run s --pattern randrw --bs {block_bytes} --depth 128 --queues 2 --time 300ms --verify --destroy-data",
    ));
    assert_eq!(ended.code, Some(0), "{ended:?}");
    server.stop().stderr
}

/// Numbers of the statistics at the end: requests with registered buffers, and all.
fn fixed_and_completed(log: &str) -> [usize; 2] {
    let (_, end) = log.rsplit_once("io_uring in all").expect(log);
    [" fixed=", " completed="].map(|name| number_after(end, name))
}

#[test]
fn fixed_buffers_carry_the_right_data() {
    if !has_io_uring() {
        return;
    }
    let log = verified_with_fixed_buffers(EXEC, 4096);
    assert!(!log.contains("WARN"), "{log}");
    // All but the flushes.
    let [fixed, completed] = fixed_and_completed(&log);
    assert!(fixed > 0 && fixed * 10 > completed * 9, "{log}");
}

#[test]
fn fixed_buffers_fall_back_without_memlock_permission() {
    if !has_io_uring() || rustix::process::getuid().is_root() && !installed("setpriv") {
        return;
    }
    // The guest has 16 MiB. The kernel counts what all programs of a user have locked, their rings too: the limit leaves room for those
    // of other tests.
    let limits = "ulimit -l 8192; test $(id -u) -ne 0 || \
                  exec setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \"$0\" \"$@\"; exec \"$0\" \"$@\"";
    let log = verified_with_fixed_buffers(limits, 64 << 10);
    assert_eq!(log.matches("WARN").count(), 1, "{log}");
    assert!(log.contains("ulimit -l"), "{log}");
    let [fixed, completed] = fixed_and_completed(&log);
    assert_eq!(fixed, 0, "{log}");
    assert!(completed > 0, "{log}");
}

//! The threads that serve the front-ends of all vhost-user exports: their number, and front-ends that keep one busy.

use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, Resource, getrlimit};
use test_support::report::{installed, not_run};
use test_support::threads::read_of_each_thread;
use test_support::vhost_user::wire::{GET_FEATURES, SET_FEATURES, VERSION, Wire, header};

use crate::front_end::{FrontEnd, READ};
use crate::process::{Folder, Process, text};

/// A user whose threads can be limited: root has no such limit.
const UID: u32 = 65534;

/// Starts so many exports, with their sockets `s0`, `s1`, …
fn start_exports(folder: &Folder, exports: u32) -> Process {
    start_exports_as(folder, exports, &[], "warn")
}

/// The same, with more options and another log level.
fn start_exports_as(folder: &Folder, exports: u32, options: &[String], log: &str) -> Process {
    let mut arguments = options.to_vec();
    arguments.extend(["--pidfile".to_owned(), "pid".to_owned()]);
    for i in 0..exports {
        arguments.extend([
            "--blockdev".to_owned(),
            format!("null-co,node-name=d{i},size=1048576"),
            "--export".to_owned(),
            format!(
                "vhost-user-blk,id=e{i},node-name=d{i},addr.type=unix,addr.path=s{i},num-queues=2"
            ),
        ]);
    }
    let mut command = folder.command(arguments);
    command.env("BLOCKPLANE_LOG", log);
    let mut server = Process::spawn(command);
    server.wait_until("all is started", || folder.has("pid"));
    server
}

/// The names of a process's threads, sorted, without those of control threads; and the number of these.
fn threads(process: Pid) -> (Vec<String>, usize) {
    let threads = read_of_each_thread(process, "comm").into_iter();
    let names = threads.map(|thread| thread.text.trim_end().to_owned());
    let (control, mut others): (Vec<_>, Vec<_>) = names.partition(|name| name == "vhost-user");
    others.sort_unstable();
    (others, control.len())
}

#[test]
fn control_threads_are_as_few_with_200_front_ends_as_with_one() {
    const EXPORTS: u32 = 200;
    const SPARE_THREADS: usize = 2;
    let folder = Folder::new();
    let mut server = start_exports(&folder, EXPORTS);
    let pid = server.pid();
    let (others, control) = threads(pid);
    assert_eq!(control, 1, "no front-end has come");
    let front_ends: Vec<FrontEnd> = (0..EXPORTS)
        .map(|i| FrontEnd::connect(&folder.join(&format!("s{i}"))))
        .collect();
    for front_end in &front_ends {
        front_end.start_queues(1);
    }
    server.wait_until("surplus threads have ended", || {
        threads(pid).1 <= SPARE_THREADS
    });
    assert_eq!(threads(pid).0, others);
    // Their queues and sockets are served all the same.
    for front_end in &front_ends {
        front_end.submit(&[READ]);
        front_end.wait_until_completed(1);
        assert_eq!(front_end.num_queues(), 2);
    }
    server.stop().assert_success();
}

/// Sends requests whose answers it does not read, until the export does not take any more of them. (An export that only pauses may be
/// left too early: then less is tested.)
fn flood_with_unread_requests(mut stream: &UnixStream) {
    stream.set_nonblocking(true).unwrap();
    let (message, pause) = (header(GET_FEATURES, VERSION, 0), Duration::from_millis(100));
    loop {
        match stream.write(&message) {
            Ok(sent) => assert_eq!(sent, message.len()),
            Err(error) => {
                assert_eq!(error.kind(), ErrorKind::WouldBlock);
                let fd = stream.as_fd();
                let mut fds = [PollFd::from_borrowed_fd(fd, PollFlags::OUT)];
                let timeout = pause.try_into().unwrap();
                if poll(&mut fds, Some(&timeout)).unwrap() == 0 {
                    return;
                }
            }
        }
    }
}

/// Connects to a socket and sends floods of requests.
fn connect_and_flood(folder: &Folder, socket: &str) -> UnixStream {
    let stream = UnixStream::connect(folder.join(socket)).unwrap();
    flood_with_unread_requests(&stream);
    stream
}

/// Connects to a socket and sends a part of a message.
fn connect_and_send_part(folder: &Folder, socket: &str) -> Wire {
    let wire = Wire::connect(&folder.join(socket));
    wire.bytes(&header(GET_FEATURES, VERSION, 0)[..6], &[]);
    wire
}

/// Each of these front-ends would stop a thread that reads its messages, or writes its answers, for ever.
#[test]
fn front_ends_that_stall_delay_no_other() {
    const OF_EACH_KIND: u32 = 10;
    let folder = Folder::new();
    let server = start_exports(&folder, 1 + 4 * OF_EACH_KIND);
    let (mut wires, mut floods) = (Vec::new(), Vec::new());
    for i in (1..=4 * OF_EACH_KIND).step_by(4) {
        let sockets = (i..).map(|i| format!("s{i}")).take(4);
        let [silent, part, header_only, flood] = sockets.collect::<Vec<_>>().try_into().unwrap();
        wires.push(Wire::connect(&folder.join(&silent)));
        wires.push(connect_and_send_part(&folder, &part));
        let wire = Wire::connect(&folder.join(&header_only));
        wire.bytes(&header(SET_FEATURES, VERSION, 8), &[]);
        wires.push(wire);
        floods.push(connect_and_flood(&folder, &flood));
    }
    for _ in 0..3 {
        let front_end = FrontEnd::connect(&folder.join("s0"));
        front_end.start_queues(2);
        front_end.submit(&[READ]);
        front_end.wait_until_completed(1);
        assert_eq!(front_end.status(0), 0);
    }
    server.stop();
}

/// Starts five exports as a user whose threads can be limited; `None`, which is reported, if that is not possible here.
fn start_with_limitable_threads(folder: &Folder) -> Option<Process> {
    if !rustix::process::geteuid().is_root() {
        not_run("only root can become another user");
        return None;
    }
    if !installed("setpriv") || !installed("prlimit") {
        return None;
    }
    chown(folder.join("."), Some(UID), None).unwrap();
    let user = ["--user".to_owned(), UID.to_string()];
    Some(start_exports_as(folder, 5, &user, "info"))
}

/// Limits the threads of that user to so many, for one program; `None`: no limit but the hard one. (Without `CAP_SYS_RESOURCE`, only
/// the user itself may do that.)
fn limit_threads(program: &Process, most: Option<u64>) {
    let most = most.or(getrlimit(Resource::Nproc).maximum);
    let most = most.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    let ids = [format!("--reuid={UID}"), format!("--regid={UID}")];
    let status = Command::new("setpriv")
        .args(ids)
        .args(["--clear-groups", "prlimit"])
        .args(["--pid", &program.pid().to_string()])
        .arg(format!("--nproc={most}:"))
        .status();
    assert!(status.unwrap().success());
}

#[test]
fn messages_wait_while_all_threads_are_busy_and_none_can_be_started() {
    let folder = Folder::new();
    let Some(mut server) = start_with_limitable_threads(&folder) else {
        return;
    };
    limit_threads(&server, Some(1));
    let incomplete: Vec<Wire> = (1..5)
        .map(|i| connect_and_send_part(&folder, &format!("s{i}")))
        .collect();
    let log = server.stderr_file();
    server.wait_until("it says why", || text(&log).contains("ulimit -u"));
    let wire = Wire::connect(&folder.join("s0"));
    wire.message(GET_FEATURES, VERSION, &[], &[]);
    limit_threads(&server, None);
    assert!(wire.reply(GET_FEATURES).is_some());
    for incomplete in incomplete {
        incomplete.bytes(&header(GET_FEATURES, VERSION, 0)[6..], &[]);
        assert!(incomplete.reply(GET_FEATURES).is_some());
    }
    server.stop();
}

/// Front-ends that keep all threads busy are disconnected, and one that is idle needs none of these.
#[test]
fn shutdown_works_while_all_threads_are_busy_and_none_can_be_started() {
    let folder = Folder::new();
    let Some(mut server) = start_with_limitable_threads(&folder) else {
        return;
    };
    let idle = FrontEnd::connect(&folder.join("s0"));
    idle.start_queues(2);
    limit_threads(&server, Some(1));
    let floods: Vec<UnixStream> = (1..5)
        .map(|i| connect_and_flood(&folder, &format!("s{i}")))
        .collect();
    let log = server.stderr_file();
    server.wait_until("it says why", || text(&log).contains("ulimit -u"));
    let log = server.stop().stderr;
    idle.wait_for_hang_up();
    let has_ended = |line: &str| line.contains("front-end disconnected") && line.contains("e0");
    assert!(log.lines().any(has_ended), "{log}");
    drop(floods);
}

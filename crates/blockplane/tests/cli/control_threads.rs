//! The threads that serve the front-ends of all vhost-user exports: their number, and front-ends that keep one busy.

use std::fs::DirEntry;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::chown;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Resource, getrlimit, pidfd_getfd, pidfd_open,
};
use test_support::report::{installed, not_run};
use test_support::threads::read_of_each_thread;
use test_support::vhost_user::wire::{
    GET_FEATURES, GET_QUEUE_NUM, SET_FEATURES, VERSION, Wire, header, u64s,
};

use crate::front_end;
use crate::process::{Folder, Process, text, words};
use crate::request_driver::{IN, RequestDriver};

/// A user whose threads can be limited: root has no such limit.
pub(crate) const UID: u32 = 65534;

/// Starts so many exports, with their sockets `s0`, `s1`, …
fn start_exports(folder: &Folder, exports: u32, options: &str, log: &str) -> Process {
    let mut line = format!("--pidfile pid {options}");
    for i in 0..exports {
        line += &format!(
            " --blockdev null-co,node-name=d{i},size=1048576 \
             --export vhost-user-blk,id=e{i},node-name=d{i},addr.type=unix,addr.path=s{i},num-queues=2"
        );
    }
    let mut command = folder.command(line.split_whitespace());
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
    let mut server = start_exports(&folder, EXPORTS, "", "warn");
    let pid = server.pid();
    let (others, control) = threads(pid);
    assert_eq!(control, 1, "no front-end has come");
    let mut guests: Vec<RequestDriver> = (0..EXPORTS)
        .map(|i| front_end(&folder, &format!("s{i}"), 1))
        .collect();
    server.wait_until("surplus threads have ended", || {
        threads(pid).1 <= SPARE_THREADS
    });
    assert_eq!(threads(pid).0, others);
    // Their queues and sockets are served all the same.
    for guest in &mut guests {
        guest.request(0, IN, 0, 0);
        assert_eq!(guest.query(GET_QUEUE_NUM), u64s(&[2]));
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
    let server = start_exports(&folder, 1 + 4 * OF_EACH_KIND, "", "warn");
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
        front_end(&folder, "s0", 2).request(0, IN, 0, 0);
    }
    server.stop();
}

/// Whether [`limit_threads`] is possible here; reports that the calling test does not run if it is not.
pub(crate) fn can_limit_threads() -> bool {
    if !rustix::process::geteuid().is_root() {
        not_run("only root can become another user");
        return false;
    }
    installed("setpriv") && installed("prlimit")
}

/// Starts five exports as a user whose threads can be limited; `None`, which is reported, if that is not possible here.
fn start_with_limitable_threads(folder: &Folder) -> Option<Process> {
    if !can_limit_threads() {
        return None;
    }
    chown(folder.join("."), Some(UID), None).unwrap();
    let user = format!("--user {UID}");
    Some(start_exports(folder, 5, &user, "info"))
}

/// Limits the threads of that user to so many, for one program; `None`: no limit but the hard one. (Without `CAP_SYS_RESOURCE`, only
/// the user itself may do that.)
pub(crate) fn limit_threads(program: &Process, most: Option<u64>) {
    let most = most.or(getrlimit(Resource::Nproc).maximum);
    let most = most.map_or_else(|| "unlimited".to_owned(), |most| most.to_string());
    let pid = program.pid();
    let line =
        format!("--reuid={UID} --regid={UID} --clear-groups prlimit --pid {pid} --nproc={most}:");
    let status = Command::new("setpriv").args(words(&line)).status();
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
    let idle = front_end(&folder, "s0", 2);
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

/// The sockets of a process, held here too: as the kernel holds one while a thread looks at it in epoll_wait(2). `None`: this system lets no
/// process have them.
fn held_sockets(process: Pid) -> Option<Vec<OwnedFd>> {
    let pidfd = pidfd_open(process, PidfdFlags::empty()).unwrap();
    let entries = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
    let is_socket = |entry: &DirEntry| {
        let link = entry.path().read_link();
        link.is_ok_and(|link| link.to_string_lossy().starts_with("socket:"))
    };
    let sockets = entries.map(Result::unwrap).filter(is_socket);
    let numbers = sockets.map(|entry| entry.file_name().to_str().unwrap().parse().unwrap());
    let held = numbers.map(|number| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()));
    held.collect::<Result<_, _>>().ok()
}

#[test]
fn front_end_sees_the_end_of_its_connection_before_its_socket_is_released() {
    let folder = Folder::new();
    let server = start_exports(&folder, 1, "", "warn");
    let wire = Wire::connect(&folder.join("s0"));
    wire.begin_session(1 << 3).unwrap();
    let Some(held) = held_sockets(server.pid()) else {
        return not_run("this system lets no process have the files of another (ptrace)");
    };
    let no_version = 0;
    wire.message(GET_FEATURES, no_version, &[], &[]);
    assert_eq!(wire.reply(GET_FEATURES), None);
    drop(held);
    server.stop();
}

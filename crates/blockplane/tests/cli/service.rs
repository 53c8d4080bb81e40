//! Notifications to a service manager, whose socket the test reads.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixStream};

use test_support::deadline::Deadline;
use test_support::stopped_thread::StoppedThread;

use crate::process::{Folder, Process, STUCK_AFTER, text, words};

const LINE: &str = "--object iothread,id=io0 --blockdev null-co,node-name=d,size=1M \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=io0";

/// The manager's side.
struct Manager(UnixDatagram);

impl Manager {
    fn new(socket: UnixDatagram) -> Self {
        socket.set_read_timeout(Some(STUCK_AFTER)).unwrap();
        Manager(socket)
    }

    /// The next notification.
    #[track_caller]
    fn receive(&self) -> String {
        let (mut buffer, deadline) = ([0; 4096], Deadline::default());
        loop {
            deadline.check("a message");
            match self.0.recv(&mut buffer) {
                Ok(bytes) => return String::from_utf8(buffer[..bytes].to_vec()).unwrap(),
                // A test that holds a thread of the daemon is interrupted by that.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => panic!("a message: {error}"),
            }
        }
    }

    /// Waits for this notification; earlier ones are dropped.
    #[track_caller]
    fn receive_until(&self, message: &str) {
        let deadline = Deadline::default();
        while self.receive() != message {
            deadline.check(message);
        }
    }

    /// All notifications that have arrived.
    fn receive_all(&self) -> Vec<String> {
        self.0.set_nonblocking(true).unwrap();
        let mut buffer = [0; 4096];
        // It does not sleep, so nothing interrupts it.
        let next = std::iter::from_fn(|| {
            let bytes = self.0.recv(&mut buffer).ok()?;
            Some(String::from_utf8(buffer[..bytes].to_vec()).unwrap())
        });
        let heard = next.take(1000).collect();
        self.0.set_nonblocking(false).unwrap();
        heard
    }
}

/// The manager's address in a folder.
fn address(folder: &Folder) -> String {
    folder.join("notify").to_str().unwrap().to_owned()
}

/// The program with further variables under a manager in the folder.
fn managed(folder: &Folder, line: &str, variables: &[(&str, &str)]) -> (Manager, Process) {
    let manager = Manager::new(UnixDatagram::bind(folder.join("notify")).unwrap());
    let notify = address(folder);
    let variables = [&[("NOTIFY_SOCKET", &*notify)], variables].concat();
    (manager, under(folder, line, &variables))
}

/// The program with variables that describe a service manager.
fn under(folder: &Folder, line: &str, variables: &[(&str, &str)]) -> Process {
    let mut command = folder.command(words(line));
    command.envs(variables.iter().copied());
    Process::spawn(command)
}

#[test]
fn service_is_ready_when_every_socket_accepts_and_announces_its_end() {
    for (line, status) in [
        (LINE, "STATUS=serving 1 export, on 1 iothread"),
        ("serve null-co: --socket s", "STATUS=serving 1 export"),
    ] {
        let folder = Folder::new();
        let (manager, process) = managed(&folder, line, &[]);
        assert_eq!(manager.receive(), "READY=1");
        UnixStream::connect(folder.join("s")).unwrap();
        let serving = manager.receive();
        assert!(serving.starts_with(status), "{serving}");
        process.stop();
        let last = manager.receive();
        assert!(last.starts_with("STOPPING=1\nSTATUS="), "{last}");
        assert_eq!(
            manager.receive_all(),
            [""; 0],
            "and no watchdog notification, because none was configured"
        );
    }
}

#[test]
fn notify_socket_may_be_abstract() {
    let folder = Folder::new();
    let name = format!("blockplane-test-{}", std::process::id());
    let socket = SocketAddr::from_abstract_name(&name).unwrap();
    let manager = Manager::new(UnixDatagram::bind_addr(&socket).unwrap());
    let process = under(&folder, LINE, &[("NOTIFY_SOCKET", &format!("@{name}"))]);
    assert_eq!(manager.receive(), "READY=1");
    process.stop();
}

#[test]
fn failed_start_is_never_ready() {
    let folder = Folder::new();
    let line = format!("{LINE} --blockdev file,node-name=f,filename=missing.img");
    let (manager, process) = managed(&folder, &line, &[]);
    process.ended().assert_fails_naming(&["missing.img"]);
    assert_eq!(manager.receive_all(), [""; 0]);
}

#[test]
fn background_daemon_reports_its_process_id() {
    let folder = Folder::new();
    let line = format!("{LINE} --daemonize --pidfile pid");
    let mut manager = None;
    let daemon = crate::daemonize::Daemon::adopt(&folder, || {
        let (listening, process) = managed(&folder, &line, &[]);
        process.ended().assert_success();
        manager = Some(listening);
    });
    let expected = format!("READY=1\nMAINPID={}", daemon.pid);
    assert_eq!(manager.unwrap().receive(), expected);
    daemon.stop();
}

#[test]
fn unreachable_notify_socket_does_not_prevent_the_start() {
    let folder = Folder::new();
    let log_with = |address: &str| {
        let mut process = under(&folder, LINE, &[("NOTIFY_SOCKET", address)]);
        process.wait_until_accepting(&folder.join("s"));
        process.stop().stderr
    };
    assert_eq!(log_with(""), "", "as good as not there");
    log_with(&address(&folder));
    for address in ["vsock:2:1234", "relative"] {
        let log = log_with(address);
        for word in ["unsupported NOTIFY_SOCKET", address, "Type=exec"] {
            assert!(log.contains(word), "no '{word}' in: {log}");
        }
    }
}

#[test]
fn watchdog_interval_may_be_short_and_must_be_a_number_of_microseconds() {
    let folder = Folder::new();
    let refused = under(&folder, LINE, &[("WATCHDOG_USEC", "soon")]).ended();
    refused.assert_fails_naming(&["WATCHDOG_USEC", "'soon'", "microseconds"]);
    assert!(!folder.has("s"));
    let (manager, process) = managed(&folder, LINE, &[("WATCHDOG_USEC", "1")]);
    manager.receive_until("WATCHDOG=1");
    let log = process.stop().stderr;
    let warned = log.matches("WATCHDOG_USEC is too short");
    assert_eq!(warned.count(), 1, "{log}");
    assert!(log.contains("WatchdogSec="), "{log}");
}

#[test]
fn watchdog_is_not_notified_while_an_iothread_hangs() {
    let folder = Folder::new();
    let (manager, mut process) = managed(&folder, LINE, &[("WATCHDOG_USEC", "100000")]);
    for _ in 0..2 {
        manager.receive_until("WATCHDOG=1");
    }
    let stopped = StoppedThread::of_name(process.pid(), "IO io0");
    // An answer may have been under way; then there is one more round.
    let log = process.stderr_file();
    process.wait_until("the log names it", || {
        text(&log).contains("does not respond")
    });
    manager.receive_all();
    std::thread::sleep(std::time::Duration::from_millis(300));
    let heard = manager.receive_all();
    assert_eq!(heard, [""; 0], "kept alive though it is stuck");
    stopped.resume();
    assert_eq!(manager.receive(), "WATCHDOG=1");
    assert!(process.stop().stderr.contains("iothread=\"io0\""));
}

#[test]
fn full_notify_socket_does_not_block_the_daemon() {
    let folder = Folder::new();
    let line = "serve null-co: --socket s --monitor m";
    let (_manager, mut process) = managed(&folder, line, &[]);
    process.wait_until_accepting(&folder.join("m"));
    // Each changes the status. The manager's socket takes some ten.
    for _ in 0..15 {
        folder
            .run("qmp m object-add qom-type=iothread id=more")
            .assert_success();
        folder.run("qmp m object-del id=more").assert_success();
    }
    process.stop();
}

//! The server: the real program, killed and started again as a supervisor does.

use std::os::unix::net::UnixStream;

use rustix::process::Signal;
use test_support::deadline::Deadline;
use test_support::sockets::try_connect;

use crate::client::Client;
use crate::guest::VerifyingGuest;
use crate::process::{Folder, Process, words};
use crate::wire::Wire;

const SOCKET: &str = "disk.sock";
const MONITOR: &str = "qmp";
pub const IMAGE: &str = "disk.img";

pub struct Server {
    pub folder: Folder,
    /// The node, one after the other with every start.
    pub nodes: Vec<String>,
    /// All else.
    line: String,
    process: Option<Process>,
    starts: usize,
}

impl Server {
    /// `nodes` are options of `--blockdev`, for [`IMAGE`]; `export` those of an export, but for its address.
    pub fn new(image_bytes: u64, nodes: Vec<String>, export: &str) -> Self {
        let folder = Folder::new();
        folder.image(IMAGE, image_bytes);
        Server {
            folder,
            nodes,
            line: format!(
                "--export {export},id=e,writable=on,addr.type=unix,addr.path={SOCKET} \
                 --chardev socket,id=c,path={MONITOR},server=on,wait=off --monitor chardev=c"
            ),
            process: None,
            starts: 0,
        }
    }

    /// Starts it, with the next node; it may not be ready when this returns.
    pub fn start(&mut self) {
        let node = &self.nodes[self.starts % self.nodes.len()];
        self.starts += 1;
        let line = format!(
            "--object iothread,id=io,thread-pool-max=1 {node} {}",
            self.line
        );
        self.process = Some(Process::spawn(self.folder.command(words(&line))));
    }

    /// A connection; it is started before if need be. Requests in an io_uring keep the image locked after the process that
    /// has asked for them: one that is refused is started again.
    pub fn connection(&mut self) -> UnixStream {
        let deadline = Deadline::default();
        loop {
            let Some(process) = &mut self.process else {
                self.start();
                continue;
            };
            if let Ok(stream) = try_connect(&self.folder.join(SOCKET)) {
                return stream;
            }
            let ended = !process.is_running();
            let log = process.stderr();
            if ended {
                assert!(
                    log.contains("lock: is another process using the image?"),
                    "{log}"
                );
                self.process = None;
            }
            deadline.pause(format_args!("it accepts: {log}"));
        }
    }

    /// A connection of this guest, whose queues run.
    #[track_caller]
    pub fn connect_guest(&mut self, guest: &mut VerifyingGuest) -> Wire {
        let link = Wire::new(self.connection());
        assert_eq!(guest.connect_and_start(&link, || ()), Ok(()));
        link
    }

    /// A client of its monitor.
    pub fn client(&mut self) -> Client {
        let process = self.process.as_mut().expect("it runs");
        Client::of(process.connection(&self.folder.join(MONITOR)))
    }

    /// Sends it a signal that does not end it.
    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("it runs").signal(signal);
    }

    /// Stops it without ending it.
    pub fn pause(&self) {
        self.process.as_ref().expect("it runs").pause();
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        drop(self.process.take());
    }

    /// What it has written.
    pub fn log(&self) -> String {
        self.process.as_ref().expect("it runs").stderr()
    }

    /// SIGTERM; it has ended well when this returns.
    pub fn stop(&mut self) {
        if let Some(process) = self.process.take() {
            process.stop();
        }
    }
}

impl Drop for Server {
    /// A test that fails shows what the server wrote.
    fn drop(&mut self) {
        if let Some(process) = &self.process
            && std::thread::panicking()
        {
            eprintln!("the server wrote:\n{}", process.stderr());
        }
    }
}

//! A thread that serves one device, for tests and examples.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use unix_socket::listener::Listener;

use crate::device::PciDevice;
use crate::server::Server;

/// The pause after a failed accept: most likely descriptors have run out.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(100);

/// A thread that serves front-ends of a socket, one after the other. Dropping it stops it.
pub struct ServerThread {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl ServerThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn spawn(
        listener: Listener,
        device: impl PciDevice + Send + 'static,
    ) -> io::Result<ServerThread> {
        listener.socket().set_nonblocking(true)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let thread = {
            let stop = stop.clone();
            std::thread::Builder::new()
                .name(format!("vfu {}", device.name()))
                .spawn(move || {
                    if let Err(error) = serve_until_stopped(&listener, Server::new(device), &stop) {
                        tracing::error!(%error, "the thread of a device cannot wait any more");
                    }
                })?
        };
        Ok(ServerThread {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for ServerThread {
    fn drop(&mut self) {
        // Cannot fail: the counter is written once.
        let _ = rustix::io::write(&self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            // A panic was logged already.
            let _ = thread.join();
        }
    }
}

/// Accepts front-ends and calls the server's methods for descriptors that are ready, until `stop` is readable.
fn serve_until_stopped<D: PciDevice>(
    listener: &Listener,
    mut server: Server<D>,
    stop: &OwnedFd,
) -> io::Result<()> {
    let start = Instant::now();
    let now_ns = || u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
    let mut busy = false;
    loop {
        let (mut readable, mut writable, mut unmask_signalled) = (false, false, false);
        {
            let mut fds = vec![PollFd::new(stop, PollFlags::IN)];
            match server.socket() {
                Some(socket) => {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, server.wants_read());
                    flags.set(PollFlags::OUT, server.wants_write());
                    fds.push(PollFd::from_borrowed_fd(socket, flags));
                }
                None => fds.push(PollFd::from_borrowed_fd(
                    listener.socket().as_fd(),
                    PollFlags::IN,
                )),
            }
            if let Some(unmask) = server.unmask_fd() {
                fds.push(PollFd::from_borrowed_fd(unmask, PollFlags::IN));
            }
            let timeout_ns = match busy {
                true => Some(0),
                false => server
                    .deadline_ns()
                    .map(|deadline| deadline.saturating_sub(now_ns())),
            };
            let timeout = timeout_ns.map(|timeout_ns| Timespec {
                tv_sec: i64::try_from(timeout_ns / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: (timeout_ns % 1_000_000_000).cast_signed(),
            });
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) => {}
                Err(rustix::io::Errno::INTR) => continue,
                Err(error) => return Err(error.into()),
            }
            let ready = |fd: Option<&PollFd<'_>>, flags| {
                fd.is_some_and(|fd: &PollFd<'_>| fd.revents().intersects(flags))
            };
            if ready(fds.first(), PollFlags::IN) {
                return Ok(());
            }
            let gone = PollFlags::HUP | PollFlags::ERR;
            readable |= ready(fds.get(1), PollFlags::IN | gone);
            writable |= ready(fds.get(1), PollFlags::OUT);
            unmask_signalled |= ready(fds.get(2), PollFlags::IN);
        }
        if server.socket().is_none() && readable {
            match listener.socket().accept() {
                Ok((socket, _)) => {
                    // No front-end is connected, so an error is the socket's.
                    let _ = server.attach_connection(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => {
                    tracing::warn!(
                        %error,
                        advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                        "cannot accept a front-end; trying again"
                    );
                    std::thread::sleep(ACCEPT_RETRY_DELAY);
                }
            }
        } else if readable {
            server.handle_readable(now_ns());
        }
        if writable {
            server.handle_writable();
        }
        if unmask_signalled {
            server.handle_unmask();
        }
        busy = server.do_pending_work(now_ns());
    }
}

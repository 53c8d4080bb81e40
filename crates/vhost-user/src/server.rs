//! One socket, one thread, one front-end at a time.
//!
//! The messages are read with blocking calls, since the wire format's library does so: a front-end
//! that sends half a message blocks this thread, which is nobody else's. Stopping shuts the
//! connection down, which ends any such wait.

use std::io;
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use unix_socket::listener::Listener;
use vhost::vhost_user::{BackendReqHandler, Error};

use crate::backend_channel::BackendChannel;
use crate::connection::Connection;
use crate::front_ends::FrontEnds;
use crate::take_over::Messages;
use crate::target::Target;

/// Stack of a control thread: messages have at most 4 KiB.
const STACK_BYTES: usize = 256 << 10;

/// How long a stopping server waits for the message that it is at. Answers are so short that only a
/// front-end that never reads makes a write wait; it loses its connection then.
const LAST_MESSAGE_TIME: Duration = Duration::from_secs(5);

/// How often front-ends are turned away while the queues of one that was sent away drain.
const TURN_AWAY_PERIOD: Duration = Duration::from_millis(100);

/// Most regions of a memory table, each with a descriptor; other messages bring one.
const DESCRIPTORS_OF_A_MESSAGE: u32 = 8;

/// A running server. Dropping it stops it.
pub struct Server {
    pub(crate) shared: Arc<Shared>,
    pub(crate) target: Arc<dyn Target>,
    thread: Option<JoinHandle<()>>,
}

pub(crate) struct Shared {
    /// Readable when the thread is to stop, or to stand still.
    wake: OwnedFd,
    state: Mutex<State>,
    messages_ended: Condvar,
    /// The thread stands still, or goes on.
    pub changed: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    pub stopping: bool,
    /// The thread is to stand still.
    pub parking: bool,
    /// It does.
    pub parked: bool,
    pub connection: Option<Arc<UnixStream>>,
    /// What the front-end has set up.
    pub session: Option<Arc<Mutex<Connection>>>,
    /// Messages of the connection are being read; else its queues drain.
    in_messages: bool,
    /// Of a connection that another process has begun.
    pub taken_over: Option<Messages>,
}

impl Shared {
    /// Lets the thread go on that stands still.
    pub fn go_on(&self) {
        self.state().parking = false;
        self.changed.notify_all();
    }

    /// Was woken, and looks why. Who is to stop is woken for good.
    fn woken(&self) {
        if !self.state().stopping {
            // Whoever wakes it from here on writes it again.
            let _ = rustix::io::read(&self.wake, &mut [0; 8]);
        }
    }

    /// Stands still if that is wanted, and as long as it is. False when the server is to stop.
    fn stand_still(&self) -> bool {
        let mut state = self.state();
        if state.parking && !state.stopping {
            state.parked = true;
            self.changed.notify_all();
            let waited = self
                .changed
                .wait_while(state, |state| state.parking && !state.stopping);
            state = waited.unwrap_or_else(PoisonError::into_inner);
            state.parked = false;
        }
        !state.stopping
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Waits until no message is being read or answered any more, and for a front-end that does not
    /// take its answer not for ever.
    fn end_last_message(&self) {
        let waited =
            self.messages_ended
                .wait_timeout_while(self.state(), LAST_MESSAGE_TIME, |state| state.in_messages);
        let (state, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        if timeout.timed_out()
            && let Some(connection) = &state.connection
        {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Server {
    /// Serves front-ends that connect to `listener`, one after the other.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn spawn(listener: Listener, target: Arc<dyn Target>) -> io::Result<Self> {
        Self::spawn_in(listener, target, false)
    }

    /// The same, but serves nobody before [`Server::go_on`].
    ///
    /// # Errors
    /// As of [`Server::spawn`].
    pub fn spawn_parked(listener: Listener, target: Arc<dyn Target>) -> io::Result<Self> {
        Self::spawn_in(listener, target, true)
    }

    fn spawn_in(listener: Listener, target: Arc<dyn Target>, parking: bool) -> io::Result<Self> {
        listener.socket().set_nonblocking(true)?;
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let shared = Arc::new(Shared {
            wake,
            state: Mutex::new(State {
                parking,
                ..State::default()
            }),
            messages_ended: Condvar::new(),
            changed: Condvar::new(),
        });
        let thread = {
            let (shared, target) = (shared.clone(), target.clone());
            std::thread::Builder::new()
                .name(format!("vu {}", target.name()))
                .stack_size(STACK_BYTES)
                .spawn(move || accept_loop(&listener, &target, &shared))?
        };
        Ok(Server {
            shared,
            target,
            thread: Some(thread),
        })
    }

    /// Takes no more front-ends if there is none at the moment; false if there is one.
    #[must_use]
    pub fn stop_if_idle(&self) -> bool {
        let mut state = self.shared.state();
        if state.connection.is_some() {
            return false;
        }
        state.stopping = true;
        drop(state);
        self.wake();
        true
    }

    /// To reach the front-ends.
    #[must_use]
    pub fn front_ends(&self) -> FrontEnds {
        FrontEnds(self.shared.clone())
    }

    pub(crate) fn wake(&self) {
        // Cannot fail: the counter is written a few times.
        let _ = rustix::io::write(&self.shared.wake, &1u64.to_ne_bytes());
    }

    /// Takes no more front-ends and ends the connection of the present one. Returns at once; the
    /// drop waits until its queues have drained.
    pub fn begin_stop(&self) {
        let mut state = self.shared.state();
        state.stopping = true;
        if let Some(connection) = &state.connection {
            // Only our side of reading: the thread wakes up, but the front-end must not see the end
            // before its queues have drained. It takes the used index that it finds then for what
            // is done, and has the rest done again by whoever serves it next. (An error says that
            // the connection is closed already.)
            let _ = connection.shutdown(Shutdown::Read);
        }
        drop(state);
        self.shared.changed.notify_all();
        self.wake();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.begin_stop();
        self.shared.end_last_message();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                advice = "this is a mistake in blockplane: report it",
                "a control thread panicked; its front-end was dropped"
            );
        }
    }
}

pub(crate) fn lock(session: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    session.lock().unwrap_or_else(PoisonError::into_inner)
}

fn accept_loop(listener: &Listener, target: &Arc<dyn Target>, shared: &Shared) {
    while wait(listener.socket().as_fd(), shared) {
        let taken_over = shared.state().taken_over.take();
        if let Some(messages) = taken_over {
            end_with_connection(target, shared, || go_on(messages, listener, target, shared));
            continue;
        }
        match listener.socket().accept() {
            Ok((stream, _)) => {
                end_with_connection(target, shared, || serve(stream, listener, target, shared));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(
                    export = target.name(),
                    %error,
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "cannot accept a front-end; it is tried again"
                );
                // Most likely descriptors have run out: do not spin on it.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

/// Whatever a front-end can bring about ends with its connection.
fn end_with_connection(target: &Arc<dyn Target>, shared: &Shared, serve: impl FnOnce()) {
    let served = catch_unwind(AssertUnwindSafe(serve));
    let mut state = shared.state();
    let (connection, session) = (state.connection.take(), state.session.take());
    state.in_messages = false;
    drop(state);
    // After a panic its queues drain only now; then the front-end hears.
    drop(session);
    let was_connected = connection.map(drop).is_some();
    if was_connected {
        target.connected(false);
    }
    if served.is_err() {
        tracing::error!(
            export = target.name(),
            advice = "this is a mistake in blockplane: report it",
            "a panic; the front-end is disconnected"
        );
    }
}

/// Whether this process may open as many more files as a message brings. The kernel leaves out those that it
/// may not (recvmsg(2), `MSG_CTRUNC`), and the message looks like a bad one.
fn has_descriptors_left(shared: &Shared) -> bool {
    let all: Result<Vec<OwnedFd>, _> = (0..DESCRIPTORS_OF_A_MESSAGE)
        .map(|_| rustix::io::fcntl_dupfd_cloexec(&shared.wake, 0))
        .collect();
    all.is_ok()
}

/// Waits until `fd` is readable, or there is a connection that another process has begun; false when the server is
/// to stop.
fn wait(fd: BorrowedFd<'_>, shared: &Shared) -> bool {
    loop {
        if !shared.stand_still() {
            return false;
        }
        if shared.state().taken_over.is_some() {
            return true;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(fd, PollFlags::IN),
            PollFd::new(&shared.wake, PollFlags::IN),
        ];
        match poll(&mut fds, None) {
            // It is to stop, or to stand still.
            Ok(_) if !fds[1].revents().is_empty() => shared.woken(),
            Ok(_) => return true,
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "a control thread cannot wait any more");
                return false;
            }
        }
    }
}

fn serve(stream: UnixStream, listener: &Listener, target: &Arc<dyn Target>, shared: &Shared) {
    let export = target.name();
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.try_clone());
    let Ok(socket) = prepared.map(Arc::new) else {
        tracing::warn!(
            export,
            "cannot take a front-end: too many open files? see `ulimit -n`"
        );
        return;
    };
    let session = Arc::new(Mutex::new(Connection::new(target.clone())));
    {
        let mut state = shared.state();
        if state.stopping {
            return;
        }
        state.connection = Some(socket.clone());
        state.session = Some(session.clone());
        state.in_messages = true;
    }
    tracing::info!(export, "front-end connected");
    target.connected(true);
    let messages = BackendReqHandler::from_stream(stream, session.clone());
    read_messages(messages, &socket, &session, listener, target, shared);
}

/// Goes on with a connection that another process has begun.
fn go_on(messages: Messages, listener: &Listener, target: &Arc<dyn Target>, shared: &Shared) {
    let mut state = shared.state();
    let (Some(socket), Some(session)) = (state.connection.clone(), state.session.clone()) else {
        return;
    };
    state.in_messages = true;
    drop(state);
    tracing::info!(export = target.name(), "front-end taken over");
    target.connected(true);
    read_messages(messages, &socket, &session, listener, target, shared);
}

/// Carries out what the front-end says until it has gone.
fn read_messages(
    mut messages: Messages,
    socket: &UnixStream,
    session: &Mutex<Connection>,
    listener: &Listener,
    target: &Arc<dyn Target>,
    shared: &Shared,
) {
    let export = target.name();
    loop {
        // To be stopped it is shut down, and what has come before is read.
        let _ = wait(socket.as_fd(), shared);
        let channel = BackendChannel::ahead(socket);
        lock(session).look_ahead(channel);
        match messages.handle_request() {
            Ok(()) => {}
            Err(Error::ReqHandlerError(error)) => {
                tracing::info!(export, %error, "refused a front-end's message");
            }
            Err(Error::Disconnected) => break,
            Err(Error::SocketBroken(_) | Error::PartialMessage) if shared.state().stopping => break,
            Err(_) if lock(session).gave_up() => break,
            Err(error) if !has_descriptors_left(shared) => {
                tracing::warn!(
                    export,
                    %error,
                    "the descriptors of a message find no room: too many files are open, see `ulimit -n` \
                     and `LimitNOFILE=`; the front-end is disconnected"
                );
                break;
            }
            Err(error) => {
                tracing::warn!(
                    export,
                    %error,
                    advice = "see what connects to this socket: it does not keep to vhost-user",
                    "bad message; the front-end is disconnected"
                );
                break;
            }
        }
    }
    shared.state().in_messages = false;
    shared.messages_ended.notify_all();
    // Its queues drain; then the front-end hears (the caller closes the last descriptor).
    drop(messages);
    if lock(session).gave_up() {
        turn_away(socket, listener, session, shared);
    }
    lock(session).end();
    tracing::info!(export, "front-end disconnected");
}

/// Lets a front-end go before its queues have drained, since that takes too long, and takes no other meanwhile: one that connected would
/// wait for an answer. What is not done by now is in the record that it has.
fn turn_away(
    socket: &UnixStream,
    listener: &Listener,
    session: &Mutex<Connection>,
    shared: &Shared,
) {
    // An error says that it has gone by itself.
    let _ = socket.shutdown(Shutdown::Both);
    lock(session).begin_end();
    while !shared.state().stopping && !lock(session).has_ended(TURN_AWAY_PERIOD) {
        // It connects again, and then finds nobody, or whoever serves it.
        let _ = listener.socket().accept();
    }
}

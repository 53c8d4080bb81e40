//! The thread that all monitors share.
//!
//! It waits for sockets and for letters of the program, and never for a command: those that need the
//! program are handed to it as [`Call`]s, and their answers come back as letters. So a command that
//! takes long in the program delays other commands, and neither clients that go out of band nor events; one that
//! the program answers [later](Run::Later) delays only those of its own client.

use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};
use std::{io, mem};

use listener::Listener;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use serde_json::{Value, json};

use crate::client::Client;
use crate::limits::MAX_CLIENTS;
use crate::presence::{Presence, Seat};
use crate::reply::Reply;
use crate::request::Request;
use crate::{Interface, Run};

/// How long clients have at the end to read their last answers.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// How long no client is accepted after that has failed: most likely descriptors have run out.
const ACCEPT_AGAIN_TIME: Duration = Duration::from_millis(100);

/// Where clients of a monitor come from.
#[derive(Debug)]
pub enum Door {
    /// A socket that they connect to, and whoever did so before the monitor was there.
    Listening(Listener, Option<UnixStream>),
    /// One that is there.
    Connected(UnixStream),
}

/// What the program tells the thread.
enum Letter {
    Open {
        door: Door,
        pretty: bool,
        presence: Presence,
    },
    Answer {
        client: u64,
        answer: Value,
    },
    Event {
        name: &'static str,
        event: Value,
    },
    Stop,
}

/// Reaches the server from any thread; also before there is one, when nobody listens.
#[derive(Clone)]
pub struct Handle(Arc<Mailbox>);

struct Mailbox {
    state: Mutex<Letters>,
    wake: OwnedFd,
}

#[derive(Default)]
struct Letters {
    /// Somebody reads them.
    read: bool,
    letters: Vec<Letter>,
}

impl Mailbox {
    fn state(&self) -> MutexGuard<'_, Letters> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Handle {
    /// Of a server to be.
    ///
    /// # Errors
    /// When there is no descriptor left.
    pub fn new() -> io::Result<Self> {
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let state = Mutex::default();
        Ok(Handle(Arc::new(Mailbox { state, wake })))
    }

    /// Tells all clients of an event.
    pub fn emit(&self, name: &'static str, data: Value) {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        // A clock before 1970 is nobody's.
        let now = now.unwrap_or_default();
        let event = json!({
            "timestamp": {"seconds": now.as_secs(), "microseconds": now.subsec_micros()},
            "event": name,
            "data": data,
        });
        self.send(Letter::Event { name, event });
    }

    /// The answer to a client's request.
    pub(crate) fn answer(&self, client: u64, answer: Value) {
        self.send(Letter::Answer { client, answer });
    }

    fn send(&self, letter: Letter) {
        {
            let mut state = self.0.state();
            if !state.read {
                return;
            }
            state.letters.push(letter);
        }
        // Fails only when the counter is full, and somebody wakes up.
        let _ = rustix::io::write(&self.0.wake, &1u64.to_ne_bytes());
    }

    fn take(&self) -> Vec<Letter> {
        // Fails only when nobody has written.
        let _ = rustix::io::read(&self.0.wake, &mut [0; 8]);
        mem::take(&mut self.0.state().letters)
    }
}

/// A command that the program carries out where it wants to. One that is dropped is refused.
pub struct Call<C> {
    interface: Arc<Interface<C>>,
    request: Request,
    reply: Reply,
}

impl<C> Call<C> {
    /// Carries it out; the client gets the answer, now or when it is done.
    pub fn run(self, cx: &mut C) {
        let arguments = &self.request.arguments;
        match self.interface.find(&self.request) {
            Err(error) => self.reply.send(Err(error)),
            Ok(command) => match command.run {
                Run::InBand(run) => self.reply.send(run(cx, arguments)),
                Run::Later(run) => run(cx, arguments, self.reply),
                Run::Anywhere(run) => self.reply.send(run(&self.interface, arguments)),
            },
        }
    }
}

/// A running server. Dropping it gives clients a moment to read their last answers.
pub struct Server {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it. `deliver` hands commands to the program, and must not block. There is one of each client at a
    /// time.
    ///
    /// # Errors
    /// When there is no thread to be had.
    pub fn spawn<C: 'static>(
        handle: Handle,
        interface: Arc<Interface<C>>,
        deliver: impl Fn(Call<C>) + Send + 'static,
    ) -> io::Result<Self> {
        let serving = Serving {
            interface,
            handle: handle.clone(),
            deliver,
            doors: Vec::new(),
            clients: Vec::new(),
            last_id: 0,
            accept_again: None,
            deadline: None,
        };
        handle.0.state().read = true;
        let thread = std::thread::Builder::new()
            .name("monitors".into())
            .spawn(move || serving.run())?;
        Ok(Server {
            handle,
            thread: Some(thread),
        })
    }

    /// Opens one more monitor; its clients are counted.
    pub fn open(&self, door: Door, pretty: bool) -> Presence {
        let presence = Presence::default();
        self.handle.send(Letter::Open {
            door,
            pretty,
            presence: presence.share(),
        });
        presence
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.send(Letter::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                advice = "this is a mistake in blockplane: report it",
                "the monitors' thread panicked"
            );
        }
    }
}

/// A socket that clients of a monitor connect to.
struct Entrance {
    listener: Listener,
    pretty: bool,
    presence: Presence,
}

struct Serving<C, D> {
    interface: Arc<Interface<C>>,
    handle: Handle,
    deliver: D,
    doors: Vec<Entrance>,
    clients: Vec<Client>,
    last_id: u64,
    accept_again: Option<Instant>,
    /// When it ends at the latest, once it was told to.
    deadline: Option<Instant>,
}

impl<C: 'static, D: Fn(Call<C>)> Serving<C, D> {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.accept_again = self.accept_again.filter(|again| *again > now);
            self.clients.retain(|client| !client.is_finished());
            let late = self.deadline.is_some_and(|deadline| deadline <= now);
            if late || self.deadline.is_some() && self.clients.is_empty() {
                return;
            }
            match self.wait(now) {
                Ok(ready) => self.handle(&ready),
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(
                        %error,
                        advice = "disks are served all the same; start the daemon anew when it suits",
                        "monitors cannot be served any more"
                    );
                    return;
                }
            }
        }
    }

    /// What is ready: the letters, then doors, then clients.
    fn wait(&self, now: Instant) -> rustix::io::Result<Vec<PollFlags>> {
        let accepts = self.accept_again.is_none() && self.clients.len() < MAX_CLIENTS;
        let door = if accepts {
            PollFlags::IN
        } else {
            PollFlags::empty()
        };
        let mut fds = vec![PollFd::new(&self.handle.0.wake, PollFlags::IN)];
        fds.extend(
            self.doors
                .iter()
                .map(|entrance| PollFd::from_borrowed_fd(entrance.listener.socket().as_fd(), door)),
        );
        fds.extend(
            self.clients
                .iter()
                .map(|client| PollFd::from_borrowed_fd(client.stream().as_fd(), client.interest())),
        );
        let until = [self.accept_again, self.deadline]
            .into_iter()
            .flatten()
            .min();
        let timeout = until.and_then(|until| Timespec::try_from(until - now).ok());
        poll(&mut fds, timeout.as_ref())?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn handle(&mut self, ready: &[PollFlags]) {
        let (first, doors) = ready.split_at(1);
        let (doors, clients) = doors.split_at(self.doors.len());
        // Clients before doors and letters, which change their number.
        for (index, readiness) in clients.iter().enumerate() {
            if !readiness.is_empty() {
                let client = &mut self.clients[index];
                let id = client.id;
                let mut forward = forward(&self.interface, &self.handle, &self.deliver, id);
                client.ready(*readiness, &self.interface, &mut forward);
            }
        }
        for (index, readiness) in doors.iter().enumerate() {
            if !readiness.is_empty() {
                self.accept(index);
            }
        }
        if !first[0].is_empty() {
            for letter in self.handle.take() {
                self.read(letter);
            }
        }
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Open {
                door,
                pretty,
                presence,
            } => match door {
                Door::Connected(stream) => self.welcome(stream, presence.seat(), pretty),
                Door::Listening(listener, first) => {
                    if let Err(error) = listener.socket().set_nonblocking(true) {
                        tracing::error!(%error, "a monitor's socket cannot be listened on");
                        return;
                    }
                    if let Some(stream) = first {
                        self.welcome(stream, presence.seat(), pretty);
                    }
                    self.doors.push(Entrance {
                        listener,
                        pretty,
                        presence,
                    });
                }
            },
            Letter::Answer { client: id, answer } => {
                if let Some(client) = self.clients.iter_mut().find(|client| client.id == id) {
                    let mut forward = forward(&self.interface, &self.handle, &self.deliver, id);
                    client.answer(&answer, &self.interface, &mut forward);
                }
            }
            Letter::Event { name, event } => {
                debug_assert!(
                    self.interface.events.iter().any(|event| event.name == name),
                    "{name} is declared"
                );
                for client in &mut self.clients {
                    client.tell(&event);
                }
            }
            Letter::Stop => {
                self.doors.clear();
                self.clients.iter_mut().for_each(Client::end);
                self.deadline = Some(Instant::now() + LAST_WORDS_TIME);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let entrance = &self.doors[index];
        match entrance.listener.socket().accept() {
            Ok((stream, _)) => self.welcome(stream, entrance.presence.seat(), entrance.pretty),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => {
                tracing::warn!(
                    %error,
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "cannot accept a monitor's client; it is tried again"
                );
                self.accept_again = Some(Instant::now() + ACCEPT_AGAIN_TIME);
            }
        }
    }

    fn welcome(&mut self, stream: UnixStream, seat: Seat, pretty: bool) {
        if let Err(error) = stream.set_nonblocking(true) {
            tracing::warn!(%error, "a monitor's client cannot be served");
            return;
        }
        self.last_id += 1;
        let client = Client::new(self.last_id, stream, seat, pretty, &self.interface);
        self.clients.push(client);
    }
}

/// Hands requests of a client to the program.
fn forward<C, D: Fn(Call<C>)>(
    interface: &Arc<Interface<C>>,
    handle: &Handle,
    deliver: &D,
    client: u64,
) -> impl FnMut(Request) {
    move |request| {
        let reply = Reply::new(handle.clone(), client, request.id.clone());
        deliver(Call {
            interface: interface.clone(),
            request,
            reply,
        });
    }
}

//! The thread that all monitors share.
//!
//! It waits for sockets and for letters of the program, and never for a command: those that need the
//! program are handed to it as [`Call`]s, and their answers come back as letters. So a command that
//! takes long in the program delays other commands, and neither clients that go out of band nor events; one that
//! the program answers [later](Run::Deferred) delays only those of its own client.

use std::io;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use unix_socket::listener::Listener;

use crate::client::Client;
use crate::client_count::{ClientCount, CountedClient};
use crate::endpoint::Endpoint;
use crate::full::Full;
use crate::limits::MAX_CLIENTS;
use crate::mailbox::{Handle, Letter};
use crate::reply::Reply;
use crate::request::Request;
use crate::watch::{Key, Ready, Watch};
use crate::{Interface, Run};

/// How long clients have at the end to read their last answers.
const LAST_WORDS_TIME: Duration = Duration::from_secs(1);

/// More than the program's own, see sched(7): each step takes a fifth of what is left.
const NICENESS: i32 = 10;

/// How long no client is accepted after that has failed: most likely descriptors have run out.
const ACCEPT_AGAIN_TIME: Duration = Duration::from_millis(100);

/// A command that the program carries out where it wants to. One that is dropped is refused.
pub struct Call<C> {
    interface: Arc<Interface<C>>,
    request: Request,
    reply: Reply,
}

impl<C> Call<C> {
    /// Whether it only asks, by its name: a program is the same afterwards.
    #[must_use]
    pub fn is_query(&self) -> bool {
        self.request.command.starts_with("query-")
    }

    /// Carries it out; the client gets the answer, now or when it is done.
    pub fn run(self, cx: &mut C) {
        let arguments = &self.request.arguments;
        match self.interface.find(&self.request) {
            Err(error) => self.reply.send(Err(error)),
            Ok(command) => match command.run {
                Run::InBand(run) => self.reply.send(run(cx, arguments)),
                Run::Deferred(run) => run(cx, arguments, self.reply),
                Run::Immediate(run) => self.reply.send(run(&self.interface, arguments)),
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
            watch: Watch::new(handle.wake())?,
            doors: Vec::new(),
            accepting: true,
            held: false,
            clients: Vec::new(),
            last_id: 0,
            accept_again: None,
            full: Full::default(),
            deadline: None,
        };
        handle.open();
        let thread = std::thread::Builder::new()
            .name("monitors".into())
            .spawn(move || {
                yield_to_guests();
                let handle = serving.handle.clone();
                serving.run();
                handle.close();
            })?;
        Ok(Server {
            handle,
            thread: Some(thread),
        })
    }

    /// Opens one more monitor; its clients are counted.
    pub fn open(&self, door: Endpoint, pretty: bool) -> ClientCount {
        let clients = ClientCount::default();
        self.handle.send(Letter::Open {
            door,
            pretty,
            clients: clients.share(),
        });
        clients
    }

    /// While `held`, whoever connects waits, for this process or for another one that listens on the same sockets. It is so
    /// when this returns.
    pub fn hold(&self, held: bool) {
        let (done, is_done) = sync_channel(1);
        self.handle.send(Letter::Hold { held, done });
        // Fails when the thread has ended, which accepts nobody.
        let _ = is_done.recv();
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

/// Whoever asks much waits longer for its answers, and guests do not: an iothread that has as much to do
/// gets ten times the processor time. All commands come through this thread, so that it holds back the
/// program's as well. No thread begins here that would inherit it.
fn yield_to_guests() {
    // Lowering one's own priority takes no rights; without it all works as well.
    let _ = rustix::process::nice(NICENESS);
}

/// A socket that clients of a monitor connect to.
struct Entrance {
    listener: Listener,
    pretty: bool,
    clients: ClientCount,
}

struct Serving<C, D> {
    interface: Arc<Interface<C>>,
    handle: Handle,
    deliver: D,
    watch: Watch,
    doors: Vec<Entrance>,
    /// Doors are watched.
    accepting: bool,
    /// Nobody is let in.
    held: bool,
    clients: Vec<Client>,
    last_id: u64,
    accept_again: Option<Instant>,
    full: Full,
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
                Ok(ready) => ready.into_iter().for_each(|ready| self.handle(ready)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
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

    /// What is ready.
    fn wait(&mut self, now: Instant) -> io::Result<Vec<Ready>> {
        let accepts = !self.held && self.accept_again.is_none() && self.clients.len() < MAX_CLIENTS;
        if accepts != self.accepting {
            for (index, door) in self.doors.iter().enumerate() {
                let socket = door.listener.socket();
                self.watch
                    .change(socket, Key::Endpoint(index), door_interest(accepts))?;
            }
            self.accepting = accepts;
        }
        for client in &mut self.clients {
            let interest = client.interest();
            if interest != client.watched {
                self.watch
                    .change(client.stream(), Key::Client(client.id), interest)?;
                client.watched = interest;
            }
        }
        let until = [self.accept_again, self.deadline];
        let until = until.into_iter().flatten().min();
        self.watch.wait(until.map(|until| until - now))
    }

    fn handle(&mut self, ready: Ready) {
        match ready.key {
            Key::Letters => {
                for letter in self.handle.take() {
                    self.read(letter);
                }
            }
            Key::Endpoint(index) => self.accept(index),
            // They stand in the order in which they came.
            Key::Client(id) => {
                if let Ok(index) = self.clients.binary_search_by_key(&id, |client| client.id) {
                    let mut forward = forward(&self.interface, &self.handle, &self.deliver, id);
                    self.clients[index].ready(ready.flags, &self.interface, &mut forward);
                }
            }
        }
    }

    fn read(&mut self, letter: Letter) {
        match letter {
            Letter::Open {
                door,
                pretty,
                clients,
            } => match door {
                Endpoint::Connected(stream) => self.welcome(stream, clients.count(), pretty),
                Endpoint::Listening(listener, first) => {
                    let key = Key::Endpoint(self.doors.len());
                    let interest = door_interest(self.accepting);
                    let socket = listener.socket();
                    let watched = socket
                        .set_nonblocking(true)
                        .and_then(|()| self.watch.add(socket, key, interest));
                    if let Err(error) = watched {
                        tracing::error!(%error, "a monitor's socket cannot be listened on");
                        return;
                    }
                    if let Some(stream) = first {
                        self.welcome(stream, clients.count(), pretty);
                    }
                    self.doors.push(Entrance {
                        listener,
                        pretty,
                        clients,
                    });
                }
            },
            Letter::Answer { client: id, answer } => {
                if let Ok(index) = self.clients.binary_search_by_key(&id, |client| client.id) {
                    let mut forward = forward(&self.interface, &self.handle, &self.deliver, id);
                    self.clients[index].answer(&answer, &self.interface, &mut forward);
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
            Letter::Hold { held, done } => {
                self.held = held;
                // Fails when nobody waits for it any more.
                let _ = done.send(());
            }
            Letter::Stop => {
                self.doors.clear();
                self.clients.iter_mut().for_each(Client::end);
                self.deadline = Some(Instant::now() + LAST_WORDS_TIME);
            }
        }
    }

    fn accept(&mut self, index: usize) {
        let Some(entrance) = self.doors.get(index).filter(|_| !self.held) else {
            return;
        };
        match entrance.listener.accept() {
            Ok(Some(stream)) => self.welcome(stream, entrance.clients.count(), entrance.pretty),
            Ok(None) => {}
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

    fn welcome(&mut self, stream: UnixStream, counted: CountedClient, pretty: bool) {
        self.last_id += 1;
        let (key, interest) = (Key::Client(self.last_id), EventFlags::IN);
        let watched = stream
            .set_nonblocking(true)
            .and_then(|()| self.watch.add(&stream, key, interest));
        if let Err(error) = watched {
            tracing::warn!(%error, "a monitor's client cannot be served");
            return;
        }
        let client = Client::new(
            self.last_id,
            stream,
            counted,
            pretty,
            &self.interface,
            interest,
        );
        self.clients.push(client);
        if self.clients.len() >= MAX_CLIENTS {
            self.full.say();
        }
    }
}

fn door_interest(accepts: bool) -> EventFlags {
    if accepts {
        EventFlags::IN
    } else {
        EventFlags::empty()
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

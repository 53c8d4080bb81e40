//! QMP server: one thread that accepts, reads and answers the clients of all monitors.
//!
//! It waits for sockets and for messages of the program, and never for a command: a command that needs the program is
//! passed to it as a [`CommandCall`], and its response comes back as a message. So a slow command in the program delays
//! other commands, but neither out-of-band commands nor events; a [deferred](CommandHandler::Deferred) one delays only
//! further commands of its own client.

use std::io;
use std::io::ErrorKind;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::epoll::EventFlags;
use serde_json::Value;
use unix_socket::accept::{ACCEPT_RETRY_DELAY, AcceptFailed, client_or_warn};
use unix_socket::listener::Listener;

use crate::client::Client;
use crate::client_count::{ClientCount, CountedClient};
use crate::client_limit::ClientLimitWarning;
use crate::endpoint::Endpoint;
use crate::limits::MAX_CLIENTS;
use crate::poller::{PolledDescriptor, Poller, ReadyDescriptor};
use crate::reply_sender::ReplySender;
use crate::request::Request;
use crate::server_handle::{EventLimit, MessageToServer, ServerHandle};
use crate::state_events::StateEvents;
use crate::{CommandHandler, Interface};

/// Time that clients have to read their last responses when the server stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

/// Nice value of the thread, see sched(7): each step takes a fifth of the remaining share.
const NICENESS: i32 = 10;

/// A command to run on a thread of the program. If it is dropped, the client gets an error.
pub struct CommandCall<C> {
    interface: Arc<Interface<C>>,
    request: Request,
    reply: ReplySender,
}

impl<C> CommandCall<C> {
    /// Whether the command only reads state, by its name.
    #[must_use]
    pub fn is_query(&self) -> bool {
        self.request.command.starts_with("query-")
    }

    /// Runs the command. The client gets the response, now or when the command is done.
    pub fn run(self, program: &mut C) {
        let arguments = &self.request.arguments;
        match self.interface.find_checked_command(&self.request) {
            Err(error) => self.reply.send(Err(error)),
            Ok(command) => match command.run {
                CommandHandler::InBand(run) => self.reply.send(run(program, arguments)),
                CommandHandler::Deferred(run) => run(program, arguments, self.reply),
                CommandHandler::Immediate(run) => self.reply.send(run(&self.interface, arguments)),
            },
        }
    }
}

/// A running monitor server. Dropping it leaves clients a moment to read their last responses.
pub struct Server {
    handle: ServerHandle,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the server. `deliver` passes commands to the program, and must not block. Each client has at most one command in
    /// the program at a time.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn<C: 'static>(
        handle: ServerHandle,
        interface: Arc<Interface<C>>,
        deliver: impl Fn(CommandCall<C>) + Send + 'static,
    ) -> io::Result<Self> {
        let thread = ServerThread {
            interface,
            handle: handle.clone(),
            deliver,
            poller: Poller::polling_messages(handle.wake_fd())?,
            listeners: Vec::new(),
            accepting: true,
            paused: false,
            clients: Vec::new(),
            last_client_id: 0,
            accept_retry_at: None,
            limit_warning: ClientLimitWarning::default(),
            state_events: StateEvents::default(),
            stop_deadline: None,
        };
        handle.mark_server_started();
        let thread = std::thread::Builder::new()
            .name("monitors".into())
            .spawn(move || {
                lower_priority();
                let handle = thread.handle.clone();
                thread.run();
                handle.mark_server_ended_and_drop_messages();
            })?;
        Ok(Server {
            handle,
            thread: Some(thread),
        })
    }

    /// Opens a monitor; returns the count of its clients.
    pub fn open_monitor(&self, endpoint: Endpoint, pretty: bool) -> ClientCount {
        let clients = ClientCount::default();
        self.handle.send(MessageToServer::Open {
            endpoint,
            pretty,
            clients: clients.share(),
        });
        clients
    }

    /// Pauses or resumes the acceptance of clients; it takes effect before this returns. New clients wait meanwhile, for this
    /// process or for another one that listens on the same sockets.
    pub fn set_accepting_paused(&self, paused: bool) {
        let (done, is_done) = sync_channel(1);
        self.handle
            .send(MessageToServer::SetAcceptingPaused { paused, done });
        // Fails when the thread has ended, which accepts no client either.
        let _ = is_done.recv();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.send(MessageToServer::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!(
                advice = "this is a bug in blockplane: report it",
                "the monitors' thread panicked"
            );
        }
    }
}

/// Lowers the priority of this thread, so that a client with many requests slows itself down and not guests: an iothread that
/// is as busy gets ten times the processor time. All commands come through this thread, so this limits those in the program
/// as well. No thread that would inherit the priority is started here.
fn lower_priority() {
    // Needs no privilege; if it fails, everything works all the same.
    let _ = rustix::process::nice(NICENESS);
}

/// The listening socket of a monitor.
struct MonitorListener {
    listener: Listener,
    pretty: bool,
    clients: ClientCount,
}

/// State of the thread.
struct ServerThread<C, D> {
    interface: Arc<Interface<C>>,
    handle: ServerHandle,
    deliver: D,
    poller: Poller,
    listeners: Vec<MonitorListener>,
    /// Listening sockets are polled.
    accepting: bool,
    /// No client is accepted, see [`Server::set_accepting_paused`].
    paused: bool,
    /// In the order of their ids.
    clients: Vec<Client>,
    last_client_id: u64,
    /// When to accept clients again after an error.
    accept_retry_at: Option<Instant>,
    limit_warning: ClientLimitWarning,
    state_events: StateEvents,
    /// The latest end of the thread, once it is stopped.
    stop_deadline: Option<Instant>,
}

impl<C: 'static, D: Fn(CommandCall<C>)> ServerThread<C, D> {
    /// Serves until it is stopped, and clients have read their last responses or the time for that is over.
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.accept_retry_at = self.accept_retry_at.filter(|again| *again > now);
            for event in self.state_events.take_due(now) {
                self.send_event(&event);
            }
            self.clients.retain(|client| !client.is_finished());
            let is_late = self.stop_deadline.is_some_and(|deadline| deadline <= now);
            if is_late || self.stop_deadline.is_some() && self.clients.is_empty() {
                return;
            }
            match self.update_polled_events_and_wait(now) {
                Ok(ready) => ready.into_iter().for_each(|ready| self.handle_ready(ready)),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => {
                    tracing::error!(
                        %error,
                        advice = "disks are not affected; restart the daemon when convenient",
                        "the monitors' thread cannot wait for sockets and ends"
                    );
                    return;
                }
            }
        }
    }

    /// Waits until sockets or messages are ready.
    fn update_polled_events_and_wait(&mut self, now: Instant) -> io::Result<Vec<ReadyDescriptor>> {
        let accepts =
            !self.paused && self.accept_retry_at.is_none() && self.clients.len() < MAX_CLIENTS;
        if accepts != self.accepting {
            for (index, listener) in self.listeners.iter().enumerate() {
                let socket = listener.listener.socket();
                self.poller.change_polled_events(
                    socket,
                    PolledDescriptor::Listener(index),
                    listener_poll_events(accepts),
                )?;
            }
            self.accepting = accepts;
        }
        for client in &mut self.clients {
            let wanted_poll_events = client.wanted_poll_events();
            if wanted_poll_events != client.polled_events {
                self.poller.change_polled_events(
                    client.stream(),
                    PolledDescriptor::Client(client.id),
                    wanted_poll_events,
                )?;
                client.polled_events = wanted_poll_events;
            }
        }
        let wake_times = [
            self.accept_retry_at,
            self.stop_deadline,
            self.state_events.next_due(),
        ];
        let wake_at = wake_times.into_iter().flatten().min();
        self.poller
            .wait(wake_at.map(|at| at.saturating_duration_since(now)))
    }

    /// Handles one descriptor that is ready.
    fn handle_ready(&mut self, ready: ReadyDescriptor) {
        match ready.source {
            PolledDescriptor::Messages => {
                for message in self.handle.take_messages_and_clear_wake() {
                    self.handle_message(message);
                }
            }
            PolledDescriptor::Listener(index) => self.accept_client_or_schedule_retry(index),
            // Absent if it has left meanwhile.
            PolledDescriptor::Client(id) => {
                if let Ok(index) = self.clients.binary_search_by_key(&id, |client| client.id) {
                    let mut forward =
                        request_forwarder(&self.interface, &self.handle, &self.deliver, id);
                    self.clients[index].handle_ready(ready.flags, &self.interface, &mut forward);
                }
            }
        }
    }

    /// Handles a message of the program.
    fn handle_message(&mut self, message: MessageToServer) {
        match message {
            MessageToServer::Open {
                endpoint,
                pretty,
                clients,
            } => match endpoint {
                Endpoint::Connected(stream) => {
                    self.add_client(stream, clients.add_client(), pretty)
                }
                Endpoint::Listening(listener, first_client) => {
                    let source = PolledDescriptor::Listener(self.listeners.len());
                    let events = listener_poll_events(self.accepting);
                    let socket = listener.socket();
                    let polled = socket
                        .set_nonblocking(true)
                        .and_then(|()| self.poller.add(socket, source, events));
                    if let Err(error) = polled {
                        tracing::error!(%error, "cannot listen on the socket of a monitor");
                        return;
                    }
                    if let Some(stream) = first_client {
                        self.add_client(stream, clients.add_client(), pretty);
                    }
                    self.listeners.push(MonitorListener {
                        listener,
                        pretty,
                        clients,
                    });
                }
            },
            MessageToServer::Response {
                client: id,
                response,
            } => {
                if let Ok(index) = self.clients.binary_search_by_key(&id, |client| client.id) {
                    let mut forward =
                        request_forwarder(&self.interface, &self.handle, &self.deliver, id);
                    self.clients[index].respond_and_run_queued(
                        &response,
                        &self.interface,
                        &mut forward,
                    );
                }
            }
            MessageToServer::Event { name, event, limit } => {
                debug_assert!(
                    self.interface.events.iter().any(|event| event.name == name),
                    "{name} is declared"
                );
                self.send_event_or_hold_back(event, limit);
            }
            MessageToServer::SetAcceptingPaused { paused, done } => {
                self.paused = paused;
                // Fails when the sender has ended.
                let _ = done.send(());
            }
            MessageToServer::Stop => {
                self.listeners.clear();
                self.clients
                    .iter_mut()
                    .for_each(Client::discard_and_close_input);
                self.stop_deadline = Some(Instant::now() + STOP_TIMEOUT);
            }
        }
    }

    /// Sends an event to all clients as its limit allows.
    fn send_event_or_hold_back(&mut self, event: Value, limit: EventLimit) {
        let event = match limit {
            EventLimit::None => Some(event),
            EventLimit::State(state) => {
                let now = Instant::now();
                self.state_events.pass_or_hold(state, event, now)
            }
            EventLimit::EndOfStates(owner) => {
                for held in self.state_events.end_states_of(&owner) {
                    self.send_event(&held);
                }
                Some(event)
            }
        };
        if let Some(event) = event {
            self.send_event(&event);
        }
    }

    /// Sends an event to all clients.
    fn send_event(&mut self, event: &Value) {
        for client in &mut self.clients {
            client.send_event_or_disconnect(event);
        }
    }

    /// Accepts a client of a monitor, the one whose listening socket has this index. After an error, the sockets are polled
    /// again a little later. At the limit of clients this is not called: their sockets are not polled.
    fn accept_client_or_schedule_retry(&mut self, index: usize) {
        let Some(listener) = self.listeners.get(index).filter(|_| !self.paused) else {
            return;
        };
        match client_or_warn(listener.listener.accept(), "a client of a monitor", None) {
            Ok(Some(Some(stream))) => {
                self.add_client(stream, listener.clients.add_client(), listener.pretty)
            }
            Ok(Some(None) | None) => {}
            Err(AcceptFailed) => {
                self.accept_retry_at = Some(Instant::now() + ACCEPT_RETRY_DELAY);
            }
        }
    }

    /// Greets a client, and polls its socket.
    fn add_client(&mut self, stream: UnixStream, counted: CountedClient, pretty: bool) {
        self.last_client_id += 1;
        let (source, events) = (
            PolledDescriptor::Client(self.last_client_id),
            EventFlags::IN,
        );
        let polled = stream
            .set_nonblocking(true)
            .and_then(|()| self.poller.add(&stream, source, events));
        if let Err(error) = polled {
            tracing::warn!(%error, "cannot serve a client of a monitor");
            return;
        }
        let client = Client::with_greeting(
            self.last_client_id,
            stream,
            counted,
            pretty,
            &self.interface,
            events,
        );
        self.clients.push(client);
        if self.clients.len() >= MAX_CLIENTS {
            self.limit_warning.warn_if_due();
        }
    }
}

/// The events to poll a listening socket for.
fn listener_poll_events(accepts: bool) -> EventFlags {
    if accepts {
        EventFlags::IN
    } else {
        EventFlags::empty()
    }
}

/// Returns a function that passes requests of a client to the program.
fn request_forwarder<C, D: Fn(CommandCall<C>)>(
    interface: &Arc<Interface<C>>,
    handle: &ServerHandle,
    deliver: &D,
    client: u64,
) -> impl FnMut(Request) {
    move |request| {
        let reply = ReplySender::new(handle.clone(), client, request.id.clone());
        deliver(CommandCall {
            interface: interface.clone(),
            request,
            reply,
        });
    }
}

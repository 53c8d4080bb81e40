//! The server's thread: it accepts clients, negotiates with them, and passes them to the iothreads of their exports.
//!
//! The main thread waits for it when the server stops, or pauses for a live upgrade, and clients may send options without end. So a turn of
//! a client is short, and messages are looked for after each.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use unix_socket::accept::{ACCEPT_RETRY_DELAY, AcceptFailed, client_or_warn};

use crate::export::Export;
use crate::export_list::ExportList;
use crate::listener::NbdListener;
use crate::negotiation::{NegotiatedClient, NegotiatingClient, Outcome};
use crate::tls::ServerTls;

/// Clients that are accepted of a listener in one turn of the thread: some may connect and leave without end.
const MAX_ACCEPTED_PER_TURN: usize = 16;

/// How often a server that is full looks for connections whose clients have left.
const COUNT_INTERVAL: Duration = Duration::from_secs(1);

/// Settings of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// Most clients, also those in the handshake; further ones wait to be accepted. `None`: any number.
    pub max_connections: Option<u32>,
    /// Time for the handshake. `None`: any time.
    pub handshake_timeout: Option<Duration>,
}

/// A running server. It ends when this is dropped; the connections of its exports do not.
pub struct NbdServer {
    exports: Arc<ExportList>,
    messages: MessageSender,
    thread: Option<JoinHandle<()>>,
}

/// A message to the server's thread.
enum Message {
    /// The connection of this number has ended.
    Ended(Weak<Export>, u64),
    /// Accept no clients, or accept them again; and disconnect those in the handshake. The answer comes when that is so.
    SetAcceptingPaused(bool, Sender<()>),
    Stop,
}

#[derive(Clone)]
struct MessageSender {
    sender: Sender<Message>,
    wake: Arc<OwnedFd>,
}

impl MessageSender {
    fn send(&self, message: Message) {
        // The thread has ended if this fails. A full counter has woken it already.
        if self.sender.send(message).is_ok() {
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl NbdServer {
    /// Starts a server without exports. With `tls` all clients have to use TLS. With `paused` it accepts no clients yet.
    ///
    /// # Errors
    /// Those of eventfd(2), fcntl(2) and of a new thread.
    pub fn start(
        listeners: Vec<NbdListener>,
        settings: ServerSettings,
        tls: Option<Arc<ServerTls>>,
        paused: bool,
    ) -> io::Result<Self> {
        let mut runner = ServerThread::new(listeners, settings, tls, paused)?;
        let (exports, messages) = (runner.exports.clone(), runner.messages.clone());
        let thread = std::thread::Builder::new()
            .name("nbd".to_owned())
            .spawn(move || while runner.run_iteration() {})?;
        Ok(NbdServer {
            exports,
            messages,
            thread: Some(thread),
        })
    }

    /// Adds an export. Clients find it until it is removed, or dropped.
    ///
    /// # Errors
    /// The server has an export of this name.
    pub fn add_export(&self, export: &Arc<Export>) -> Result<(), String> {
        match self.exports.add(export) {
            true => Ok(()),
            false => Err(format!(
                "NBD server already has export named '{}'",
                export.name()
            )),
        }
    }

    /// Accepts no clients, or accepts them again. Those in the handshake are disconnected. It returns when that is so.
    pub fn set_accepting_paused(&self, paused: bool) {
        let (reply, answer) = channel();
        self.messages
            .send(Message::SetAcceptingPaused(paused, reply));
        // The thread has ended if this fails.
        let _ = answer.recv();
    }
}

impl Drop for NbdServer {
    fn drop(&mut self) {
        self.messages.send(Message::Stop);
        if let Some(thread) = self.thread.take() {
            // It does not panic.
            let _ = thread.join();
        }
    }
}

/// Everything that the thread owns.
struct ServerThread {
    listeners: Vec<NbdListener>,
    settings: ServerSettings,
    tls: Option<Arc<ServerTls>>,
    paused: bool,
    exports: Arc<ExportList>,
    messages: MessageSender,
    inbox: Receiver<Message>,
    negotiating: VecDeque<NegotiatingClient>,
    /// Connections on iothreads.
    running_count: usize,
    /// How many of them had no client any more when that was counted, which is done while a server for several clients is full.
    gone_count: usize,
    /// When to count these again.
    next_count_at: Instant,
    /// After a failed `accept`: the time before which none is accepted.
    accept_retry_at: Option<Instant>,
}

impl ServerThread {
    fn new(
        listeners: Vec<NbdListener>,
        settings: ServerSettings,
        tls: Option<Arc<ServerTls>>,
        paused: bool,
    ) -> io::Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking()?;
        }
        let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (sender, inbox) = channel();
        let messages = MessageSender {
            sender,
            wake: Arc::new(wake),
        };
        Ok(ServerThread {
            listeners,
            settings,
            tls,
            paused,
            exports: Arc::default(),
            messages,
            inbox,
            negotiating: VecDeque::new(),
            running_count: 0,
            gone_count: 0,
            next_count_at: Instant::now(),
            accept_retry_at: None,
        })
    }

    /// Waits for something to do, and does it. False: the server ends.
    fn run_iteration(&mut self) -> bool {
        let now = Instant::now();
        self.accept_retry_at = self.accept_retry_at.filter(|at| *at > now);
        let counts_gone = self.counts_gone();
        if counts_gone && self.next_count_at <= now {
            self.gone_count = self.exports.gone_connection_count();
            self.next_count_at = now + COUNT_INTERVAL;
        }
        let accepts = self.accepts();
        let deadlines = self.negotiating.iter().filter_map(|client| client.deadline);
        let next_count_at = counts_gone.then_some(self.next_count_at);
        let next = deadlines.chain(self.accept_retry_at).chain(next_count_at);
        let next = next.min();
        let mut timeout = next.map(|next| {
            // A millisecond later, so that the deadline is over then.
            let left = next.saturating_duration_since(now) + Duration::from_millis(1);
            Timespec {
                tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
                tv_nsec: left.subsec_nanos().into(),
            }
        });
        let mut clients = self.negotiating.iter();
        if clients.any(NegotiatingClient::may_have_more) {
            timeout = Some(Timespec::default());
        }
        let mut fds = vec![PollFd::new(&self.messages.wake, PollFlags::IN)];
        if accepts {
            let listeners = self.listeners.iter();
            fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
        }
        let first_client = fds.len();
        let clients = self.negotiating.iter().map(|client| {
            let flags = match client.wants_write() {
                true => PollFlags::OUT,
                false => PollFlags::IN,
            };
            PollFd::from_borrowed_fd(client.socket(), flags)
        });
        fds.extend(clients);
        if poll(&mut fds, timeout.as_ref()).is_err() {
            // EINTR, or no memory for the moment.
            return true;
        }
        let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
        let ready: Vec<bool> = fds.iter().map(is_ready).collect();
        if ready[0] {
            let mut count = [0; 8];
            // Before the messages are looked for: a later one wakes the thread again.
            let _ = rustix::io::read(self.messages.wake.as_fd(), &mut count);
        }
        if !self.run_clients(&ready[first_client..]) {
            return false;
        }
        if accepts {
            for (listener, ready) in ready[1..first_client].iter().enumerate() {
                if *ready {
                    self.accept_clients(listener);
                }
            }
        }
        self.handle_messages()
    }

    /// Whether connections without a client matter now: there are as many connections as there may be clients, and more than one.
    fn counts_gone(&self) -> bool {
        let most = self.settings.max_connections.filter(|most| *most > 1);
        most.is_some_and(|most| self.connection_count() >= most as usize)
    }

    /// Clients in the handshake, and connections on iothreads.
    fn connection_count(&self) -> usize {
        self.negotiating.len() + self.running_count
    }

    /// Whether the server accepts another client now. Clients of a disk that does not answer may leave, and must not keep others out:
    /// as many connections without a client may exist besides. A client that is to be the only one waits for the one before: its requests
    /// may still change the disk.
    fn accepts(&self) -> bool {
        let has_room = match self.settings.max_connections.map(|most| most as usize) {
            None => true,
            Some(1) => self.connection_count() == 0,
            Some(most) => {
                let all = self.connection_count();
                all.saturating_sub(self.gone_count) < most && all < 2 * most
            }
        };
        has_room && !self.paused && self.accept_retry_at.is_none()
    }

    /// Runs the clients in the handshake that are ready, each for a turn, and closes those whose time is up. Messages do not wait for
    /// all of them. False: the server ends.
    fn run_clients(&mut self, ready: &[bool]) -> bool {
        let now = Instant::now();
        for ready in ready {
            let Some(client) = self.negotiating.pop_front() else {
                // A message has disconnected them.
                break;
            };
            if client.deadline.is_some_and(|deadline| deadline <= now) {
                client.log_timeout();
            } else if *ready || client.may_have_more() {
                self.run_client(client);
                if !self.handle_messages() {
                    return false;
                }
            } else {
                self.negotiating.push_back(client);
            }
        }
        true
    }

    /// Runs a client in the handshake.
    fn run_client(&mut self, client: NegotiatingClient) {
        match client.run(&*self.exports) {
            Outcome::Continue(client) => self.negotiating.push_back(client),
            Outcome::Complete(client) => self.start_connection(client),
            Outcome::Closed => {}
        }
    }

    /// Passes a client to an iothread of its export, which may have been removed meanwhile.
    fn start_connection(&mut self, client: NegotiatedClient) {
        let Some(export) = self.exports.find_by_number(client.negotiated.export_number) else {
            return;
        };
        let (messages, ended) = (self.messages.clone(), Arc::downgrade(&export));
        let on_end = move |number| messages.send(Message::Ended(ended, number));
        if export.start_connection(client, on_end) {
            self.running_count += 1;
        }
    }

    /// Accepts clients of a listener. More of them wait until others and messages have had their turn.
    fn accept_clients(&mut self, listener: usize) {
        for _ in 0..MAX_ACCEPTED_PER_TURN {
            if !self.accepts() {
                return;
            }
            match client_or_warn(self.listeners[listener].accept(), "an NBD client", None) {
                Ok(Some((socket, peer))) => {
                    let timeout = self.settings.handshake_timeout;
                    let deadline = timeout.map(|timeout| Instant::now() + timeout);
                    let client = NegotiatingClient::new(socket, peer, self.tls.clone(), deadline);
                    self.negotiating.push_back(client);
                }
                Ok(None) => break,
                Err(AcceptFailed) => {
                    self.accept_retry_at = Some(Instant::now() + ACCEPT_RETRY_DELAY);
                }
            }
        }
    }

    /// Handles all messages. False: the server ends.
    fn handle_messages(&mut self) -> bool {
        while let Ok(message) = self.inbox.try_recv() {
            match message {
                Message::Ended(export, number) => {
                    self.running_count -= 1;
                    // It may have been one of them.
                    self.gone_count = self.gone_count.saturating_sub(1);
                    if let Some(export) = export.upgrade() {
                        export.remove_ended_connection(number);
                    }
                }
                Message::SetAcceptingPaused(paused, reply) => {
                    self.paused = paused;
                    self.negotiating.clear();
                    // The receiver may be gone; ignore the error.
                    let _ = reply.send(());
                }
                Message::Stop => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use nbd::server::{Handshake, MAX_OPTIONS_PER_CALL};

    use super::*;
    use crate::peer::Peer;

    const SETTINGS: ServerSettings = ServerSettings {
        max_connections: None,
        handshake_timeout: None,
    };

    /// The thread without a listener, with clients that have connected.
    fn thread_with_clients<const N: usize>() -> (ServerThread, [UnixStream; N]) {
        let mut thread = ServerThread::new(Vec::new(), SETTINGS, None, false).unwrap();
        let clients = [(); N].map(|()| {
            let (client, accepted) = UnixStream::pair().unwrap();
            accepted.set_nonblocking(true).unwrap();
            client.set_nonblocking(true).unwrap();
            // One that is forgotten is disconnected then, instead of a test that does not end.
            let deadline = Instant::now() + Duration::from_secs(20);
            let client_of_thread =
                NegotiatingClient::new(accepted.into(), Peer::Unknown, None, Some(deadline));
            thread.negotiating.push_back(client_of_thread);
            client
        });
        (thread, clients)
    }

    /// The client's flags, and options that have one reply of 20 bytes each: lists of no export.
    fn flags_and_lists(count: usize) -> Vec<u8> {
        let list = b"IHAVEOPT\0\0\0\x03\0\0\0\0";
        [&b"\0\0\0\x03"[..], &list.repeat(count)].concat()
    }

    /// The number of options that the thread has replied to.
    fn count_replies(client: &mut UnixStream) -> usize {
        let mut received = Vec::new();
        // Until the end, or until there is nothing more for the moment.
        let _ = client.read_to_end(&mut received);
        received.len().saturating_sub(Handshake::greeting().len()) / 20
    }

    #[test]
    fn clients_that_connect_without_end_do_not_keep_the_thread_from_its_messages() {
        let address = std::net::SocketAddr::from(([127, 0, 0, 1], 0));
        let listener = NbdListener::bind_tcp(address, false).unwrap();
        let address = listener.tcp_addr().unwrap();
        let mut thread = ServerThread::new(vec![listener], SETTINGS, None, false).unwrap();
        let connect = |_| std::net::TcpStream::connect(address).unwrap();
        let clients: Vec<_> = (0..100).map(connect).collect();
        thread.messages.send(Message::Stop);
        assert!(!thread.run_iteration());
        assert_eq!(thread.negotiating.len(), MAX_ACCEPTED_PER_TURN);
        drop(clients);
    }

    #[test]
    fn clients_that_send_options_without_end_do_not_keep_the_thread_from_its_messages() {
        let (mut thread, mut clients) = thread_with_clients::<50>();
        for client in &mut clients {
            client.write_all(&flags_and_lists(4000)).unwrap();
        }
        for _ in 0..3 {
            assert!(thread.run_iteration());
        }
        let handled = clients.each_mut().map(count_replies);
        assert!(handled.iter().all(|handled| *handled > 0), "{handled:?}");
        thread.messages.send(Message::Stop);
        assert!(!thread.run_iteration());
        let handled: usize = clients.iter_mut().map(count_replies).sum();
        assert!(handled <= MAX_OPTIONS_PER_CALL, "{handled} options");
    }

    #[test]
    fn a_client_that_sends_many_options_at_once_has_all_replies() {
        let (mut thread, [mut client]) = thread_with_clients();
        let abort = b"IHAVEOPT\0\0\0\x02\0\0\0\0";
        let options = [&flags_and_lists(1000)[..], abort].concat();
        client.write_all(&options).unwrap();
        while !thread.negotiating.is_empty() {
            assert!(thread.run_iteration());
        }
        assert_eq!(count_replies(&mut client), 1001);
    }
}

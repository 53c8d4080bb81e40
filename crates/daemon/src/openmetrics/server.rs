//! The thread that serves metrics over HTTP: accepts clients, polls their sockets, and disconnects the longest idle if there are too
//! many.
//!
//! It wakes up for clients only: without one it blocks indefinitely.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;
use unix_socket::accept::{ACCEPT_RETRY_DELAY, AcceptFailed, client_or_warn};

use crate::openmetrics::client::HttpConnection;
use crate::openmetrics::limits::MAX_CLIENTS;
use crate::openmetrics::listener::HttpListener;
use crate::openmetrics::pages::HttpPageSource;

/// Added to the nice value of the process, see sched(7); the monitors' thread has the same.
const NICENESS: i32 = 10;

/// A running server. Dropping it disconnects its clients.
#[derive(Debug)]
pub struct HttpServer {
    /// Readable when the thread has to end.
    stop_event: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl HttpServer {
    /// Starts the thread.
    ///
    /// # Errors
    /// If a thread or a descriptor cannot be created.
    pub fn spawn(listener: HttpListener, pages: impl HttpPageSource) -> io::Result<Self> {
        let stop_event = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let server_thread = HttpServerThread {
            listener,
            pages,
            stop_event: stop_event.clone(),
            clients: Vec::new(),
            accept_paused_until: None,
        };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                // Guests come first where processors are busy. An error does not matter: lowering the own priority
                // takes no privileges, and the server works without it.
                let _ = rustix::process::nice(NICENESS);
                server_thread.run();
            })?;
        Ok(HttpServer {
            stop_event,
            thread: Some(thread),
        })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        // Fails only when the counter is full, and then the thread wakes up anyway.
        let _ = rustix::io::write(&*self.stop_event, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves metrics panicked");
        }
    }
}

/// State of the thread: the listening socket and the clients.
struct HttpServerThread<P> {
    listener: HttpListener,
    pages: P,
    /// Readable when the thread has to end.
    stop_event: Arc<OwnedFd>,
    clients: Vec<HttpConnection>,
    accept_paused_until: Option<Instant>,
}

impl<P: HttpPageSource> HttpServerThread<P> {
    /// Serves clients until the server is dropped.
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.accept_paused_until = self.accept_paused_until.filter(|until| *until > now);
            self.clients
                .retain(|client| !client.has_ended_or_timed_out(now));
            let ready = match self.wait_for_events(now) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "metrics are no longer served: poll(2) failed");
                    return;
                }
            };
            let now = Instant::now();
            if !ready[0].is_empty() {
                return;
            }
            for (client, ready) in self.clients.iter_mut().zip(&ready[2..]) {
                if !ready.is_empty() {
                    client.on_ready(&self.pages, now);
                }
            }
            if !ready[1].is_empty() {
                self.accept_client_and_evict_if_full(now);
            }
        }
    }

    /// Waits for events: of the stop eventfd, of the listener, then of each client.
    fn wait_for_events(&self, now: Instant) -> rustix::io::Result<Vec<PollFlags>> {
        let listener_events = match self.accept_paused_until {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        let mut fds = vec![
            PollFd::new(&*self.stop_event, PollFlags::IN),
            PollFd::new(&self.listener, listener_events),
        ];
        let clients = self.clients.iter();
        fds.extend(clients.map(|client| PollFd::new(client, client.events_to_poll())));
        let deadlines = self.clients.iter().map(HttpConnection::deadline);
        let deadline = deadlines.chain(self.accept_paused_until).min();
        let timeout = deadline.and_then(|deadline| Timespec::try_from(deadline - now).ok());
        poll(&mut fds, timeout.as_ref())?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    /// Accepts a client, in place of another if there are too many.
    fn accept_client_and_evict_if_full(&mut self, now: Instant) {
        match client_or_warn(self.listener.accept(), "a client of --metrics", None) {
            Ok(Some(socket)) => {
                if self.clients.len() >= MAX_CLIENTS {
                    self.evict_client();
                }
                self.clients.push(HttpConnection::new(socket, now));
            }
            Ok(None) => {}
            Err(AcceptFailed) => self.accept_paused_until = Some(now + ACCEPT_RETRY_DELAY),
        }
    }

    /// Disconnects a client to make room for another.
    fn evict_client(&mut self) {
        let clients = self.clients.iter().enumerate();
        if let Some((index, _)) = clients.min_by_key(|(_, client)| client.eviction_rank()) {
            self.clients.remove(index);
        }
    }
}

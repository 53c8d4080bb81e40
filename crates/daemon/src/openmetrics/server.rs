//! The thread that serves figures.
//!
//! It wakes up for clients only: without one it blocks for ever.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::openmetrics::client::Client;
use crate::openmetrics::door::Door;
use crate::openmetrics::limits::{ACCEPT_AGAIN_TIME, MAX_CLIENTS};
use crate::openmetrics::pages::Pages;

/// More than the program's own, see sched(7): the monitors' thread has as much.
const NICENESS: i32 = 10;

/// A running server. Dropping it hangs up on its clients.
#[derive(Debug)]
pub struct Server {
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts it.
    ///
    /// # Errors
    /// When there is no thread or no descriptor to be had.
    pub fn spawn(door: Door, pages: impl Pages) -> io::Result<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let serving = Serving {
            door,
            pages,
            stop: stop.clone(),
            clients: Vec::new(),
            accept_again: None,
        };
        let thread = std::thread::Builder::new()
            .name("metrics".into())
            .spawn(move || {
                // Guests come first where processors are busy. Lowering one's own priority takes no rights; without
                // it all works as well.
                let _ = rustix::process::nice(NICENESS);
                serving.run();
            })?;
        Ok(Server {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Fails only when the counter is full, and somebody wakes up.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that serves metrics panicked");
        }
    }
}

struct Serving<P> {
    door: Door,
    pages: P,
    stop: Arc<OwnedFd>,
    clients: Vec<Client>,
    accept_again: Option<Instant>,
}

impl<P: Pages> Serving<P> {
    fn run(mut self) {
        loop {
            let now = Instant::now();
            self.accept_again = self.accept_again.filter(|again| *again > now);
            self.clients.retain(|client| !client.is_gone(now));
            let ready = match self.wait(now) {
                Ok(ready) => ready,
                Err(Errno::INTR) => continue,
                Err(error) => {
                    tracing::error!(%error, "metrics cannot be served any more");
                    return;
                }
            };
            let now = Instant::now();
            if !ready[0].is_empty() {
                return;
            }
            for (client, ready) in self.clients.iter_mut().zip(&ready[2..]) {
                if !ready.is_empty() {
                    client.turn(&self.pages, now);
                }
            }
            if !ready[1].is_empty() {
                self.accept(now);
            }
        }
    }

    /// What is ready: the end, the door, then clients.
    fn wait(&self, now: Instant) -> rustix::io::Result<Vec<PollFlags>> {
        let door = match self.accept_again {
            None => PollFlags::IN,
            Some(_) => PollFlags::empty(),
        };
        let mut fds = vec![
            PollFd::new(&*self.stop, PollFlags::IN),
            PollFd::new(&self.door, door),
        ];
        let clients = self.clients.iter();
        fds.extend(clients.map(|client| PollFd::new(client, client.interest())));
        let deadlines = self.clients.iter().map(Client::deadline);
        let until = deadlines.chain(self.accept_again).min();
        let timeout = until.and_then(|until| Timespec::try_from(until - now).ok());
        poll(&mut fds, timeout.as_ref())?;
        Ok(fds.iter().map(PollFd::revents).collect())
    }

    fn accept(&mut self, now: Instant) {
        match self.door.accept() {
            Ok(socket) => {
                if self.clients.len() >= MAX_CLIENTS {
                    self.drop_one();
                }
                self.clients.push(Client::new(socket, now));
            }
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED) => {}
            Err(error) => {
                tracing::warn!(
                    %error,
                    advice = "if too many files are open, raise `ulimit -n` (`LimitNOFILE=`)",
                    "cannot accept a client of metrics; it is tried again"
                );
                self.accept_again = Some(now + ACCEPT_AGAIN_TIME);
            }
        }
    }

    /// Makes room.
    fn drop_one(&mut self) {
        let clients = self.clients.iter().enumerate();
        if let Some((index, _)) = clients.min_by_key(|(_, client)| client.rank()) {
            self.clients.remove(index);
        }
    }
}

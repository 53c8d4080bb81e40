//! The threads that serve the front-ends of all servers of a process.
//!
//! All of them wait for all sockets: the listening ones, and those of front-ends that are connected. A thread whose socket is readable
//! handles what was sent, and may wait as long as that takes: for the rest of a message, for a queue, for a disk. Before, it makes sure
//! that another thread waits for the other sockets, so that no front-end delays another. So there are as many threads as front-ends that
//! keep one busy, and one or two more, however many servers there are.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

/// Stack of a thread: messages have at most 4 KiB.
const STACK_BYTES: usize = 256 << 10;

/// So many threads stay when all of them wait: a front-end that sends one message after the other starts none.
const SPARE_THREADS: usize = 2;

/// How long a thread beyond these waits before it ends.
const SURPLUS_TIME: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};

/// The pause before a thread is started again after that has failed.
const START_RETRY_DELAY: Duration = Duration::from_millis(100);

/// The key of the eventfd that ends the threads; those of servers are larger.
const STOP_KEY: u64 = 0;

/// A server, as the threads see it.
pub(super) trait SocketOwner: Send + Sync {
    /// Serves what a readable socket has, as long as that takes.
    fn serve_readable_socket(&self);

    /// Has its sockets watched again, none of which was served.
    fn watch_again(&self);
}

/// The threads that serve the front-ends of all servers of a process. They end when this is dropped, after all servers.
pub struct ControlThreads(Arc<ThreadsShared>);

/// What the threads share.
struct ThreadsShared {
    epoll: OwnedFd,
    /// Readable when the threads are to end.
    stop: OwnedFd,
    state: Mutex<ThreadsState>,
}

#[derive(Default)]
struct ThreadsState {
    /// By the key of their sockets.
    servers: HashMap<u64, Weak<dyn SocketOwner>>,
    last_key: u64,
    /// Threads that wait for sockets, or are about to.
    waiting: usize,
    /// The last attempt to start a thread failed.
    start_failed: bool,
}

impl ControlThreads {
    /// Starts the first thread.
    ///
    /// # Errors
    /// When threads or descriptors have run out.
    pub fn start() -> io::Result<Self> {
        let shared = Arc::new(ThreadsShared::new()?);
        shared.start_thread_if_none_waits()?;
        Ok(ControlThreads(shared))
    }

    /// Registers a server, whose sockets the threads wait for.
    pub(super) fn register(&self, server: Weak<dyn SocketOwner>) -> Registration {
        let mut state = self.0.lock_state();
        state.last_key += 1;
        let key = state.last_key;
        state.servers.insert(key, server);
        drop(state);
        Registration {
            threads: self.0.clone(),
            key,
        }
    }
}

impl Drop for ControlThreads {
    fn drop(&mut self) {
        // Cannot fail: the counter is written once.
        let _ = rustix::io::write(&self.0.stop, &1u64.to_ne_bytes());
    }
}

impl ThreadsShared {
    /// Without a thread.
    fn new() -> io::Result<Self> {
        let shared = ThreadsShared {
            epoll: epoll::create(CreateFlags::CLOEXEC)?,
            stop: eventfd(0, EventfdFlags::CLOEXEC)?,
            state: Mutex::default(),
        };
        let stop_key = EventData::new_u64(STOP_KEY);
        epoll::add(&shared.epoll, &shared.stop, stop_key, EventFlags::IN)?;
        Ok(shared)
    }

    fn lock_state(&self) -> MutexGuard<'_, ThreadsState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts a thread if all others are busy.
    fn start_thread_if_none_waits(self: &Arc<Self>) -> io::Result<()> {
        let mut state = self.lock_state();
        if state.waiting == 0 {
            let threads = self.clone();
            let thread = std::thread::Builder::new()
                .name("vhost-user".into())
                .stack_size(STACK_BYTES);
            thread.spawn(move || threads.serve_sockets_until_stopped())?;
            state.waiting = 1;
            state.start_failed = false;
        }
        Ok(())
    }

    /// Serves one readable socket after the other, until the threads are to end, or there are enough without this one.
    fn serve_sockets_until_stopped(self: Arc<Self>) {
        loop {
            let key = match self.wait_for_socket() {
                Ok(STOP_KEY) => return,
                Ok(key) => key,
                Err(Errno::INTR) => continue,
                Err(Errno::TIME) => match self.leave_if_surplus() {
                    true => return,
                    false => continue,
                },
                Err(error) => {
                    tracing::error!(
                        %error,
                        advice = "guests go on; restart or upgrade the daemon to serve new front-ends",
                        "a thread for front-ends cannot wait any more"
                    );
                    return;
                }
            };
            // The socket of a server that has ended may still be open in another process.
            let Some(server) = self.find_server(key) else {
                continue;
            };
            self.lock_state().waiting -= 1;
            match self.start_thread_if_none_waits() {
                Ok(()) => server.serve_readable_socket(),
                Err(error) => {
                    self.warn_of_first_failure(&error);
                    // To serve it might take for ever, and nothing would wait for the other sockets.
                    std::thread::sleep(START_RETRY_DELAY);
                    server.watch_again();
                }
            }
            self.lock_state().waiting += 1;
        }
    }

    /// The server of this key, if it has not ended.
    fn find_server(&self, key: u64) -> Option<Arc<dyn SocketOwner>> {
        self.lock_state().servers.get(&key).and_then(Weak::upgrade)
    }

    /// Waits for a socket, and returns its key; `TIME`: there have been more threads than needed for a while.
    fn wait_for_socket(&self) -> rustix::io::Result<u64> {
        let is_surplus = self.lock_state().waiting > SPARE_THREADS;
        let timeout = is_surplus.then_some(&SURPLUS_TIME);
        let mut events: Vec<epoll::Event> = Vec::with_capacity(1);
        epoll::wait(&self.epoll, spare_capacity(&mut events), timeout)?;
        let event = events.first().ok_or(Errno::TIME)?;
        Ok(event.data.u64())
    }

    /// Counts this thread as ended if enough others wait.
    fn leave_if_surplus(&self) -> bool {
        let mut state = self.lock_state();
        let is_surplus = state.waiting > SPARE_THREADS;
        state.waiting -= usize::from(is_surplus);
        is_surplus
    }

    /// Logs that no thread can be started, once until one can.
    fn warn_of_first_failure(&self, error: &io::Error) {
        if !std::mem::replace(&mut self.lock_state().start_failed, true) {
            tracing::warn!(
                %error,
                advice = "raise the limit of threads (`ulimit -u`, `TasksMax=`)",
                "all threads for front-ends are busy and none can be started: messages of front-ends wait"
            );
        }
    }
}

/// A server whose sockets the threads wait for, until this is dropped.
pub(super) struct Registration {
    threads: Arc<ThreadsShared>,
    key: u64,
}

impl Registration {
    /// Adds a socket of the server, which is not watched before [`Registration::watch_once`]. It is removed when it is closed.
    pub fn add_socket(&self, socket: impl AsFd) -> io::Result<()> {
        let key = EventData::new_u64(self.key);
        Ok(epoll::add(
            &self.threads.epoll,
            socket,
            key,
            EventFlags::ONESHOT,
        )?)
    }

    /// Has a thread serve a socket once it is readable, or its other end is closed: also if it is so already.
    pub fn watch_once(&self, socket: impl AsFd) {
        let (key, flags) = (
            EventData::new_u64(self.key),
            EventFlags::IN | EventFlags::ONESHOT,
        );
        if let Err(error) = epoll::modify(&self.threads.epoll, socket, key, flags) {
            // It was added, and changing it allocates nothing.
            tracing::error!(%error, "a socket cannot be watched");
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        self.threads.lock_state().servers.remove(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_leave_until_the_spare_ones_are_left() {
        let threads = ThreadsShared::new().unwrap();
        threads.lock_state().waiting = SPARE_THREADS + 2;
        let have_left = [(); 4].map(|()| threads.leave_if_surplus());
        assert_eq!(have_left, [true, true, false, false]);
        assert_eq!(threads.lock_state().waiting, SPARE_THREADS);
    }
}

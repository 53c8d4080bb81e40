//! The launcher: a thread that starts the threads which connect to servers, so that these have its privileges and not those of an
//! iothread.
//!
//! A sandbox takes privileges from the process, which no later thread can get back: new connections over TCP, for one. A
//! daemon that is to connect to servers over TCP starts the launcher before. Otherwise the first disk starts it.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The main function of a thread to start.
type ThreadMain = Box<dyn FnOnce() + Send>;

/// A thread to start.
struct Launch {
    name: String,
    /// Taken by the thread.
    main: Arc<Mutex<Option<ThreadMain>>>,
    /// Whether it is started later if it cannot be started now.
    is_retried: bool,
    /// Whether it could not be started once, which is in the log.
    has_failed: Cell<bool>,
}

/// The wait before threads are tried again that could not be started.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

static LAUNCHER: Mutex<Option<Launcher>> = Mutex::new(None);

/// The launcher was started by [`start_confined`].
static IS_CONFINED_ITSELF: AtomicBool = AtomicBool::new(false);

/// Starts the launcher before the process is confined. It calls `confine` first, whose error is returned.
///
/// # Errors
/// That of `confine`, or of starting a thread.
pub fn start_confined(confine: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    get_or_start(confine)?;
    IS_CONFINED_ITSELF.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether connections may be made over TCP although the process is confined: [`start_confined`] was called before.
#[must_use]
pub fn may_use_tcp() -> bool {
    IS_CONFINED_ITSELF.load(Ordering::Relaxed)
}

fn get_or_start(confine: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<Launcher> {
    let mut launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(launcher) = &*launcher {
        return Ok(launcher.clone());
    }
    let (launches, received) = channel();
    let (confined, result) = channel();
    thread::Builder::new()
        .name("nbd launcher".to_owned())
        .spawn(move || {
            let outcome = confine();
            let is_confined = outcome.is_ok();
            let _ = confined.send(outcome);
            if is_confined {
                launch_threads(&received);
            }
        })?;
    result
        .recv()
        .map_err(|_| io::Error::other("the thread ended"))??;
    Ok(launcher.insert(Launcher(launches)).clone())
}

/// The launcher, which runs until the process ends. A disk has it before its first request, so that connecting again does not depend
/// on a thread that may not start.
#[derive(Clone)]
pub(super) struct Launcher(Sender<Launch>);

impl Launcher {
    /// The launcher of this process, which is started if there is none.
    pub fn get_or_start() -> io::Result<Self> {
        get_or_start(|| Ok(()))
    }

    /// Calls a function on a thread that it starts, and waits for the result.
    pub fn run<T: Send + 'static>(
        &self,
        call: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let (sender, result) = channel();
        self.launch("nbd connect", false, move || {
            // The receiver waits below.
            let _ = sender.send(call());
        });
        let ended = |_| io::Error::other("no thread could be started to connect");
        result.recv().map_err(ended)
    }

    /// Starts a thread, again and again until that succeeds. Does not wait for it.
    pub fn spawn_thread(&self, name: &str, main: impl FnOnce() + Send + 'static) {
        self.launch(name, true, main);
    }

    fn launch(&self, name: &str, is_retried: bool, main: impl FnOnce() + Send + 'static) {
        let launch = Launch {
            name: name.to_owned(),
            main: Arc::new(Mutex::new(Some(Box::new(main)))),
            is_retried,
            has_failed: Cell::new(false),
        };
        // If the launcher has ended, so has the process.
        let _ = self.0.send(launch);
    }
}

/// Starts threads until the process ends.
fn launch_threads(launches: &Receiver<Launch>) {
    let mut waiting: Vec<Launch> = Vec::new();
    loop {
        let received = match waiting.is_empty() {
            true => launches.recv().map_err(|_| RecvTimeoutError::Disconnected),
            false => launches.recv_timeout(RETRY_INTERVAL),
        };
        match received {
            Ok(launch) => waiting.push(launch),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        waiting.retain(|launch| match launch.start() {
            Ok(()) => false,
            Err(error) => {
                if !launch.has_failed.replace(true) {
                    tracing::error!(%error, "no thread to connect to an NBD server");
                }
                launch.is_retried
            }
        });
    }
}

impl Launch {
    fn start(&self) -> io::Result<()> {
        let main = self.main.clone();
        let thread = thread::Builder::new().name(self.name.clone());
        thread.spawn(move || {
            let main = main.lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(main) = main {
                main();
            }
        })?;
        Ok(())
    }
}

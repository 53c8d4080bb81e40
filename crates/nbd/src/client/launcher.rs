//! The launcher: a thread that starts the threads which connect to servers, so that these have its privileges and not those of an
//! iothread.
//!
//! A sandbox takes privileges from the process, which no later thread can get back: new connections over TCP, for one. A
//! daemon that is to connect to servers over TCP starts the launcher before. Otherwise the first disk starts it.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The main function of a thread to start.
type ThreadMain = Box<dyn FnOnce() + Send>;

/// A thread to start: its name, and its main function.
type Launch = (String, ThreadMain);

static LAUNCHER: Mutex<Option<Sender<Launch>>> = Mutex::new(None);

/// The launcher was started by [`start_confined`].
static IS_CONFINED_ITSELF: AtomicBool = AtomicBool::new(false);

/// Starts the launcher before the process is confined. It calls `confine` first, whose error is returned.
///
/// # Errors
/// That of `confine`, or of starting a thread.
pub fn start_confined(confine: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
    start_unless_started(confine)?;
    IS_CONFINED_ITSELF.store(true, Ordering::Relaxed);
    Ok(())
}

/// Whether connections may be made over TCP although the process is confined: [`start_confined`] was called before.
#[must_use]
pub fn may_use_tcp() -> bool {
    IS_CONFINED_ITSELF.load(Ordering::Relaxed)
}

/// Starts the launcher unless there is one.
pub(super) fn start_unless_started(
    confine: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let mut launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner);
    if launcher.is_some() {
        return Ok(());
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
    *launcher = Some(launches);
    Ok(())
}

/// Calls a function on a thread of the launcher's, which is started if there is none, and waits for the result.
pub(super) fn run<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> io::Result<T> {
    start_unless_started(|| Ok(()))?;
    let (sender, result) = channel();
    spawn_thread("nbd connect", move || {
        // The receiver waits below.
        let _ = sender.send(call());
    });
    let ended = |_| io::Error::other("no thread could be started to connect");
    result.recv().map_err(ended)
}

/// Starts a thread, by the launcher. Does not wait for it; a failure is in the log.
pub(super) fn spawn_thread(name: &str, main: impl FnOnce() + Send + 'static) {
    let launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner);
    match launcher.as_ref() {
        // If the launcher has ended, so has the process.
        Some(launcher) => drop(launcher.send((name.to_owned(), Box::new(main)))),
        None => unreachable!("the launcher is started before the first connection"),
    }
}

/// Starts threads until the process ends.
fn launch_threads(launches: &Receiver<Launch>) {
    for (name, main) in launches {
        if let Err(error) = thread::Builder::new().name(name).spawn(main) {
            tracing::error!(%error, "no thread to connect to an NBD server");
        }
    }
}

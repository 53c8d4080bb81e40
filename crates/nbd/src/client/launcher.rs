//! The launcher: a thread that starts the threads which connect again, so that these have its privileges and not those of an
//! iothread.
//!
//! A sandbox takes privileges from the process, which no later thread can get back: no new connections over TCP, for one. A
//! daemon that is to connect to servers starts the launcher before.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// The main function of a thread to start.
type ThreadMain = Box<dyn FnOnce() + Send>;

/// A thread to start: its name, and its main function.
type Launch = (String, ThreadMain);

static LAUNCHER: Mutex<Option<Sender<Launch>>> = Mutex::new(None);

/// Starts the launcher, which calls `confine` first, unless there is one. An error of `confine` is returned.
///
/// # Errors
/// That of `confine`, or of starting a thread.
pub fn start(confine: impl FnOnce() -> io::Result<()> + Send + 'static) -> io::Result<()> {
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

/// Whether [`start`] was called.
#[must_use]
pub fn exists() -> bool {
    let launcher = LAUNCHER.lock().unwrap_or_else(PoisonError::into_inner);
    launcher.is_some()
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
            tracing::error!(%error, "no thread to connect to an NBD server again: its requests fail");
        }
    }
}

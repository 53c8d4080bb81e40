//! The launcher: a thread that starts all threads which call librados, so that these, and the threads of librados, have its
//! privileges.
//!
//! A sandbox takes privileges from the process, which no later thread can get back. A daemon that is to connect to clusters
//! starts the launcher before, with a list of system calls of its own.

use std::io;
use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;

/// The main function of a thread to start.
type ThreadMain = Box<dyn FnOnce() + Send>;

/// A thread to start: its name, its main function, and where the result is sent.
type Launch = (String, ThreadMain, Sender<io::Result<()>>);

static LAUNCHER: OnceLock<Sender<Launch>> = OnceLock::new();

/// Starts the launcher, once per process. It loads the libraries, so that it need not make memory executable later, and calls
/// `confine` first. An error of either is returned.
///
/// # Errors
/// That of `confine`, or of starting a thread.
pub fn start_confined_launcher(
    confine: impl FnOnce() -> io::Result<()> + Send + 'static,
) -> io::Result<()> {
    let (launches, received) = channel();
    let (confined, result) = channel();
    thread::Builder::new()
        .name("ceph launcher".to_owned())
        .spawn(move || {
            // Without the libraries the first connection fails, with the name of the package to install.
            let _ = crate::load();
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
    // A second launcher would end here, with its channel.
    let _ = LAUNCHER.set(launches);
    Ok(())
}

/// Whether [`start_confined_launcher`] was called.
#[must_use]
pub fn has_launcher() -> bool {
    LAUNCHER.get().is_some()
}

/// Starts a thread: by the launcher if there is one, or else from the calling thread.
pub(crate) fn spawn_thread(name: &str, main: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let Some(launcher) = LAUNCHER.get() else {
        return thread::Builder::new()
            .name(name.to_owned())
            .spawn(main)
            .map(drop);
    };
    let (done, result) = channel();
    // If the launcher has ended, the channel for the result ends as well.
    let _ = launcher.send((name.to_owned(), Box::new(main), done));
    result
        .recv()
        .map_err(|_| io::Error::other("the thread that starts others has ended"))?
}

/// Starts threads until the process ends.
fn launch_threads(launches: &Receiver<Launch>) {
    for (name, main, done) in launches {
        let started = thread::Builder::new().name(name).spawn(main);
        // Its caller waits for this.
        let _ = done.send(started.map(drop));
    }
}

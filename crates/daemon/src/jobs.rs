//! Commands that have to wait for a disk: a thread waits, the main thread goes on with other commands and
//! finishes this one when it hears that the waiting is over.
//!
//! Nodes that such a command works on are reserved meanwhile ([`crate::state::objects::Objects::reserve`]): no other command changes them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use qmp::{Error, Reply};
use serde_json::json;

use crate::control::{Control, Job, Mail};

/// All of it but its begin; without a thread it does not wait, and fails.
type Rest = Box<dyn FnOnce(Result<(), Error>) -> Job + Send>;

/// What becomes of a command when the program is told to end meanwhile.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum AtTheEnd {
    /// The program waits for it: it is at work on a disk that is there.
    Finish,
    /// It is no loss: other disks are not held up by it.
    Leave,
}

impl Control {
    /// Lets a thread of this name `wait`, and finishes the command with what came of it.
    pub fn later<T: Send + 'static>(
        &mut self,
        thread: String,
        at_the_end: AtTheEnd,
        reply: Reply,
        wait: impl FnOnce() -> Result<T, Error> + Send + 'static,
        finish: impl FnOnce(&mut Control, Result<T, Error>) -> Result<(), Error> + Send + 'static,
    ) {
        self.wait(thread, at_the_end, wait, move |control, waited| {
            let finished = finish(control, waited);
            reply.send(finished.map(|()| json!({})));
        });
    }

    /// Lets a thread of this name `wait`, and goes on with what came of it: there may be more to wait for.
    pub fn wait<T: Send + 'static>(
        &mut self,
        thread: String,
        at_the_end: AtTheEnd,
        wait: impl FnOnce() -> Result<T, Error> + Send + 'static,
        go_on: impl FnOnce(&mut Control, Result<T, Error>) + Send + 'static,
    ) {
        let counted = usize::from(at_the_end == AtTheEnd::Finish);
        let rest: Rest = Box::new(move |ready| {
            let waited = ready.and_then(|()| {
                catch_unwind(AssertUnwindSafe(wait))
                    .unwrap_or_else(|_| Err(Error::generic("it panicked: see the log")))
            });
            Box::new(move |control| {
                control.waiting -= counted;
                go_on(control, waited);
            })
        });
        self.waiting += counted;
        let mail = self.mail.clone();
        let (hand_over, taken) = std::sync::mpsc::channel::<Rest>();
        let spawned = std::thread::Builder::new().name(thread).spawn(move || {
            if let Ok(rest) = taken.recv() {
                // Fails only when the program ends without it.
                let _ = mail.send(Mail::Do(rest(Ok(()))));
            }
        });
        match spawned {
            // Cannot fail: the thread waits for it.
            Ok(_) => drop(hand_over.send(rest)),
            Err(error) => {
                let error = Error::generic(format!("no thread to wait on: {error}"));
                rest(Err(error))(self);
            }
        }
    }
}

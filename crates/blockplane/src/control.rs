//! What the main thread does once everything is started: it waits for commands of monitors and for
//! the signal to end, and carries them out one after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use options::{ChardevOptions, MonitorOptions};
use qmp::{Call, Error, Handle, Server};

use crate::chardev::Chardevs;
use crate::objects::Objects;
use crate::signals::Signals;
use crate::{Failure, monitor};

/// What other threads tell the main thread.
pub(crate) enum Mail {
    /// SIGTERM, SIGINT or SIGHUP has come.
    Signal,
    /// The queues of an export that was ended have drained.
    ExportEnded(String),
    /// A monitor's client wants something.
    Call(Call<Control>),
}

/// All that the main thread owns.
pub(crate) struct Control {
    /// What runs.
    pub objects: Objects,
    /// A client has said `quit`.
    pub quit: bool,
    mail: Sender<Mail>,
    inbox: Receiver<Mail>,
    /// Readable once a signal has come.
    end: OwnedFd,
    chardevs: Chardevs,
    monitors: Option<Server>,
}

impl Control {
    /// Nothing yet. From now on a signal is mail.
    pub fn new(signals: Signals) -> Result<Self, Failure> {
        let (mail, inbox) = channel();
        let end = signals.watch(mail.clone())?;
        Ok(Control {
            objects: Objects::new(Handle::new()?, mail.clone()),
            quit: false,
            mail,
            inbox,
            end,
            chardevs: Chardevs::default(),
            monitors: None,
        })
    }

    /// A socket for a monitor.
    pub fn add_chardev(&mut self, options: &ChardevOptions) -> Result<(), Failure> {
        self.chardevs.add(options, self.end.as_fd())
    }

    /// From now on commands are mail.
    pub fn add_monitor(&mut self, options: &MonitorOptions) -> Result<(), Failure> {
        let door = self.chardevs.take(&options.chardev)?;
        if self.monitors.is_none() {
            let mail = self.mail.clone();
            let deliver = move |call| {
                // Fails only when the program has ended.
                let _ = mail.send(Mail::Call(call));
            };
            let interface = Arc::new(monitor::interface());
            self.monitors = Some(Server::spawn(
                self.objects.events.clone(),
                interface,
                deliver,
            )?);
        }
        if let Some(monitors) = &self.monitors {
            monitors.open(door, options.pretty);
        }
        Ok(())
    }

    /// Carries out commands until it is told to end.
    pub fn run(&mut self) {
        while !self.quit {
            match self.inbox.recv() {
                Ok(Mail::Call(call)) => call.run(self),
                Ok(Mail::ExportEnded(id)) => self.objects.export_ended(&id),
                // (Nobody can tell more: there is always a sender, our own.)
                Ok(Mail::Signal) | Err(_) => return,
            }
        }
    }

    /// The orderly end. Clients of monitors see theirs when all is done.
    pub fn shut_down(self) -> Result<(), Failure> {
        for mail in self.inbox.try_iter() {
            if let Mail::Call(call) = mail {
                call.refuse(Error::generic("the daemon is about to end"));
            }
        }
        let ended = self.objects.shut_down();
        drop(self.monitors);
        ended
    }
}

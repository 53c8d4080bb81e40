//! The main thread once everything is started: it waits for commands of monitors and for the signal
//! to end, and carries them out one after the other.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use options::{ChardevOptions, MetricsAddr, MonitorOptions};
use qmp::{Call, Handle, Interface, Server};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::process::pidfile::PidFile;
use crate::process::signals::Signals;
use crate::service::{Service, Watchdog};
use crate::state::chardev::Chardevs;
use crate::state::late::Late;
use crate::state::objects::Objects;
use crate::state::reports;
use crate::upgrade::Upgrade;
use crate::upgrade::launcher::Launcher;

/// What other threads tell the main thread.
pub(crate) enum Mail {
    /// SIGTERM, SIGINT or SIGHUP has come.
    Signal,
    /// The queues of an export that was ended have drained.
    ExportEnded(String),
    /// What a command has waited for is there, or a signal asks for something.
    Do(Job),
    /// A monitor's client wants something.
    Call(Box<Call<Control>>),
}

/// Work for the main thread.
pub(crate) type Job = Box<dyn FnOnce(&mut Control) + Send>;

/// All that the main thread owns.
pub(crate) struct Control {
    /// What runs.
    pub objects: Objects,
    /// A client has said `quit`.
    pub quit: bool,
    pub service: Service,
    /// Can start another program.
    pub launcher: Option<Arc<Launcher>>,
    /// Another program is being started.
    pub upgrading: bool,
    /// It has everything.
    pub upgraded: Option<Upgrade>,
    pub pidfile: Option<PidFile>,
    pub mail: Sender<Mail>,
    inbox: Receiver<Mail>,
    /// Commands whose threads wait for a disk, and that have to be finished.
    pub waiting: usize,
    /// Readable once a signal has come.
    end: OwnedFd,
    /// Sockets of monitors, and those that nobody uses.
    pub chardevs: Chardevs,
    interface: fn() -> Interface<Control>,
    monitors: Option<Server>,
    /// As they were opened.
    pub monitors_opened: Vec<MonitorOptions>,
    pub metrics: Option<Metrics>,
}

impl Control {
    /// Nothing runs yet. From now on a signal is a message. `interface` has the commands of monitors; `upgrade` is called when a
    /// signal asks for it.
    pub fn new(
        signals: Signals,
        mut service: Service,
        interface: fn() -> Interface<Control>,
        upgrade: fn(&mut Control),
    ) -> Result<Self, Failure> {
        let (mail, inbox) = channel();
        // Sending fails only when the main thread is at its end already.
        let (to_end, to_upgrade, to_drained) = (mail.clone(), mail.clone(), mail.clone());
        let end = signals.watch(
            move || drop(to_end.send(Mail::Signal)),
            move || drop(to_upgrade.send(Mail::Do(Box::new(upgrade)))),
        )?;
        let events = Handle::new()?;
        let reports = reports::spawn(events.clone())?;
        let late = Late::spawn()?;
        Ok(Control {
            objects: Objects::new(
                events,
                reports,
                late,
                Arc::new(move |id| drop(to_drained.send(Mail::ExportEnded(id)))),
                service.take_inherited(),
            ),
            quit: false,
            service,
            launcher: None,
            upgrading: false,
            upgraded: None,
            pidfile: None,
            mail,
            inbox,
            waiting: 0,
            end,
            chardevs: Chardevs::default(),
            interface,
            monitors: None,
            monitors_opened: Vec::new(),
            metrics: None,
        })
    }

    /// A socket for a monitor.
    pub fn add_chardev(&mut self, options: &ChardevOptions) -> Result<(), Failure> {
        let inherited = &mut self.objects.inherited;
        self.chardevs.add(options, inherited, self.end.as_fd())
    }

    /// One that nobody uses makes place for another of its name.
    pub fn change_chardev(&mut self, options: &ChardevOptions) -> Result<(), Failure> {
        let inherited = &mut self.objects.inherited;
        self.chardevs.change(options, inherited, self.end.as_fd())
    }

    /// From now on commands are mail.
    pub fn add_monitor(&mut self, options: &MonitorOptions) -> Result<(), Failure> {
        if self.monitors.is_none() {
            let mail = self.mail.clone();
            let deliver = move |call| {
                // Fails only when the program has ended.
                let _ = mail.send(Mail::Call(Box::new(call)));
            };
            let interface = Arc::new((self.interface)());
            self.monitors = Some(Server::spawn(
                self.objects.events.clone(),
                interface,
                deliver,
            )?);
        }
        if let Some(monitors) = &self.monitors {
            let open = |door| monitors.open(door, options.pretty);
            self.chardevs.take(&options.chardev, open)?;
            self.monitors_opened.push(options.clone());
        }
        Ok(())
    }

    /// While `held`, whoever connects to a monitor waits for this process or for the one that takes over.
    pub fn hold_monitors(&self, held: bool) {
        if let Some(monitors) = &self.monitors {
            monitors.pause_accepting(held);
        }
    }

    /// Figures are served there.
    pub fn serve_metrics(&mut self, addr: &MetricsAddr) -> Result<(), Failure> {
        self.serve_metrics_on(addr, None)
    }

    /// The same with the socket of an address that the process before has listened on.
    pub fn serve_metrics_on(
        &mut self,
        addr: &MetricsAddr,
        handed: Option<OwnedFd>,
    ) -> Result<(), Failure> {
        let metrics = Metrics::start(addr, handed, &mut self.objects.inherited)?;
        self.metrics = Some(metrics);
        Ok(())
    }

    /// Carries out commands until it is told to end. The service manager hears that all is ready, and
    /// that the end begins.
    pub fn run(&mut self, in_background: bool) {
        self.service.ready(in_background);
        let mut watchdog = self.service.watchdog();
        let mut changed = true;
        while !self.quit && self.upgraded.is_none() {
            if changed {
                self.show();
            }
            let mail = self.next_mail(watchdog.as_mut());
            // With a hundred disks it takes longer than most answers.
            changed = !matches!(&mail, Mail::Call(call) if call.is_query());
            match mail {
                Mail::Call(call) => call.run(self),
                Mail::ExportEnded(id) => self.objects.export_ended(&id),
                Mail::Do(job) => job(self),
                Mail::Signal => break,
            }
        }
        if self.upgraded.is_none() {
            self.service.stopping();
        }
    }

    /// Another process has everything: clients of monitors get their last answers, and nothing else is touched.
    pub fn leave(mut self) -> ! {
        drop(self.monitors.take());
        std::process::exit(0);
    }

    /// A signal to end has come, perhaps while something else is done.
    pub fn is_to_end(&self) -> bool {
        let mut fds = [PollFd::new(&self.end, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&Timespec::default())), Ok(1..))
    }

    /// Tells the service manager, and those who serve figures, what there is.
    fn show(&mut self) {
        let (exports, iothreads) = (self.objects.exports.len(), self.objects.iothreads.len());
        self.service.status(exports, iothreads);
        if let Some(metrics) = &self.metrics {
            metrics.show(&self.objects);
        }
    }

    /// Waits for mail, and shows meanwhile that everything lives.
    fn next_mail(&self, watchdog: Option<&mut Watchdog>) -> Mail {
        // (Without a sender there is no more mail, but there is always our own.)
        let Some(watchdog) = watchdog else {
            return self.inbox.recv().unwrap_or(Mail::Signal);
        };
        loop {
            // Before the mail: however much there is, the service manager hears of us.
            let left = watchdog.next().saturating_duration_since(Instant::now());
            if left.is_zero() {
                let iothreads = self
                    .objects
                    .iothreads
                    .iter()
                    .map(|iothread| &iothread.thread);
                let ask = || iothreads.map(|t| (t.id().to_owned(), t.ping())).collect();
                if watchdog.turn(ask) {
                    self.service.alive();
                }
                continue;
            }
            match self.inbox.recv_timeout(left) {
                Ok(mail) => return mail,
                Err(RecvTimeoutError::Disconnected) => return Mail::Signal,
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// The orderly end. Clients of monitors see theirs when all is done. Commands that wait for a disk that is
    /// there are done first; others are refused, by being dropped.
    pub fn shut_down(mut self) -> Result<(), Failure> {
        // Some wait for requests that a filter delays until their queue stops.
        self.objects.begin_stop();
        while self.waiting > 0 {
            match self.inbox.recv() {
                Ok(Mail::Do(job)) => job(&mut self),
                Ok(Mail::ExportEnded(id)) => self.objects.export_ended(&id),
                Ok(Mail::Call(_) | Mail::Signal) => {}
                Err(_) => break,
            }
        }
        drop(self.inbox);
        let ended = self.objects.shut_down();
        drop(self.monitors);
        ended
    }
}

//! The service manager that started us, if one did: what it handed over, and what it is told.
//!
//! The protocols are systemd's (sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3)), which others speak
//! too. They are variables of the environment and datagrams of text, so no library is needed. Without
//! the variables nothing happens: no socket is made, and nothing wakes up.

mod inherited;
mod notify;
mod watchdog;

use std::ffi::OsString;
use std::time::Duration;

use crate::failure::Failure;
pub(crate) use inherited::Inherited;
use notify::Notifier;
pub(crate) use watchdog::Watchdog;

/// The service manager, as the main thread sees it.
pub struct Service {
    notifier: Option<Notifier>,
    watchdog: Option<Duration>,
    /// What it was told last.
    status: String,
    /// What was taken out of the environment, for whoever takes over.
    environment: Vec<(String, OsString)>,
    inherited: Inherited,
}

impl Service {
    /// Reads what concerns us out of the environment, and takes it away: what we start has another
    /// relation to whoever set it.
    ///
    /// # Safety
    /// The process has one thread.
    pub unsafe fn take() -> Result<Self, Failure> {
        // SAFETY: as our caller says.
        let take = |name: &str| unsafe { take_variable(name) };
        let socket = take("NOTIFY_SOCKET");
        let notifier = Notifier::new(socket.as_deref().unwrap_or_default())?;
        let (usec, pid) = (take("WATCHDOG_USEC"), take("WATCHDOG_PID"));
        let watchdog = watchdog::period(usec.clone(), pid)?;
        let of_both = [
            ("NOTIFY_SOCKET", socket),
            ("WATCHDOG_USEC", usec.filter(|_| watchdog.is_some())),
        ];
        let set = |(name, value): (&str, Option<OsString>)| Some((name.to_owned(), value?));
        let environment = of_both.into_iter().filter_map(set).collect();
        Ok(Service {
            watchdog: watchdog.filter(|_| notifier.is_some()),
            notifier,
            status: String::new(),
            environment,
            inherited: Inherited::new(
                take("LISTEN_FDS"),
                take("LISTEN_PID"),
                take("LISTEN_FDNAMES"),
            )?,
        })
    }

    /// The sockets that it handed over, which can be had once.
    pub(crate) fn take_inherited(&mut self) -> Inherited {
        std::mem::take(&mut self.inherited)
    }

    /// What a process needs that takes over, to speak with it.
    pub(crate) fn environment(&self) -> Vec<(String, OsString)> {
        self.environment.clone()
    }

    /// Another process goes on.
    pub(crate) fn main_process(&self, pid: i64) {
        self.tell(&format!("MAINPID={pid}"));
    }

    /// All sockets are listened on. In the background we are another process than the one that was
    /// started.
    pub(crate) fn ready(&self, in_background: bool) {
        let mut state = "READY=1".to_owned();
        if in_background {
            state.push_str(&format!("\nMAINPID={}", std::process::id()));
        }
        self.tell(&state);
    }

    /// What `systemctl status` shows; told when it has changed.
    pub(crate) fn status(&mut self, exports: usize, iothreads: usize) {
        let Some(notifier) = &self.notifier else {
            return;
        };
        let status = format!(
            "STATUS=serving {}, on {}",
            count(exports, "export"),
            count(iothreads, "iothread")
        );
        if status != self.status && notifier.offer(&status) {
            self.status = status;
        }
    }

    /// The end has begun.
    pub(crate) fn stopping(&self) {
        self.tell("STOPPING=1\nSTATUS=finishing requests in flight, and flushing disks");
    }

    /// What is to be asked whether it lives, if that is wanted.
    pub(crate) fn watchdog(&self) -> Option<Watchdog> {
        self.watchdog.map(Watchdog::new)
    }

    /// Everything answers.
    pub(crate) fn alive(&self) {
        if let Some(notifier) = &self.notifier {
            // One who does not read it cannot be helped.
            notifier.offer("WATCHDOG=1");
        }
    }

    fn tell(&self, state: &str) {
        if let Some(notifier) = &self.notifier {
            notifier.tell(state);
        }
    }
}

fn count(number: usize, what: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {what}{plural}")
}

/// # Safety
/// The process has one thread.
unsafe fn take_variable(name: &str) -> Option<OsString> {
    let value = std::env::var_os(name)?;
    // SAFETY: nobody else reads or writes the environment, as our caller says.
    unsafe { std::env::remove_var(name) };
    Some(value)
}

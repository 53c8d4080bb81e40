//! The drop-in face: objects, nodes and exports in the order of the command line.

use std::sync::Arc;

use options::{Daemon, Directive, ObjectOptions, Sandbox};

use crate::actions;
use crate::control::Control;
use crate::disk::handover::Handover;
use crate::failure::Failure;
use crate::monitor;
use crate::process::daemonize::{self, Daemonized};
use crate::process::pidfile::PidFile;
use crate::process::signals::Signals;
use crate::process::{Process, confine, raise_descriptor_limit};
use crate::service::Service;
use crate::upgrade;
use crate::upgrade::launcher::{Launcher, Program};

/// The drop-in face.
///
/// # Errors
/// What cannot be made, or the last flush that failed.
pub fn run(options: &Daemon, service: Service) -> Result<(), Failure> {
    // Whoever takes over from a daemon is in the background already.
    let forks = options.daemonize && !upgrade::is_wanted();
    let daemonized = forks.then(daemonize::fork).transpose()?;
    run_until_signalled(
        Process {
            directives: &options.directives,
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
            confinement: &options.confinement,
            made: &[],
            background: options.daemonize,
        },
        daemonized,
        service,
        || (),
    )
}

/// Makes everything, says so, and ends it when a signal comes, or a monitor's client says so. Exit status 0 means that every
/// acknowledged write is on stable storage.
///
/// # Errors
/// What cannot be made, or the last flush that failed.
pub fn run_process(
    process: Process<'_>,
    service: Service,
    announce: impl FnOnce(),
) -> Result<(), Failure> {
    run_until_signalled(process, None, service, announce)
}

fn run_until_signalled(
    process: Process<'_>,
    daemonized: Option<Daemonized>,
    service: Service,
    announce: impl FnOnce(),
) -> Result<(), Failure> {
    raise_descriptor_limit();
    confine::become_user(&process)?;
    let launcher = launcher(&process, &service);
    confine::confine(&process)?;
    let signals = Signals::block()?;
    let mut control = Control::new(signals, service, monitor::interface, |control| {
        control.upgrade(None, |_| ());
    })?;
    control.launcher = launcher;
    let outcome = if upgrade::is_wanted() {
        take_over(&process, &mut control)
    } else {
        begin(&process, &mut control, daemonized, announce)
    };
    let outcome = outcome.map(|in_background| {
        control.run(in_background);
        if control.upgraded.is_none() {
            tracing::info!("stopping: no more requests, waiting for those in flight");
        }
    });
    if control.upgraded.is_some() {
        control.exit_after_upgrade();
    }
    // It goes when all is done.
    let _pidfile = control.pidfile.take();
    // Whatever went wrong: what was acknowledged meanwhile is made stable.
    let ended = control.shut_down();
    outcome?;
    ended
}

/// Makes everything and says so. True: it was started in the background.
fn begin(
    process: &Process<'_>,
    control: &mut Control,
    daemonized: Option<Daemonized>,
    announce: impl FnOnce(),
) -> Result<bool, Failure> {
    create(process, control)?;
    // A daemon's path is meant from where it was started, and its process id is the child's.
    let pidfile = process.pidfile.map(std::path::absolute).transpose()?;
    control.pidfile = pidfile.as_deref().map(PidFile::create).transpose()?;
    let in_background = daemonized.is_some();
    if let Some(daemonized) = daemonized {
        daemonized.ready()?;
    }
    announce();
    Ok(in_background)
}

/// Goes on for another process, which has told the service manager.
fn take_over(process: &Process<'_>, control: &mut Control) -> Result<bool, Failure> {
    actions::upgrade::restore::restore(process, control);
    if process.background {
        rustix::process::chdir("/")?;
    }
    Ok(false)
}

/// What can start another program later. Without it all works but an upgrade.
fn launcher(process: &Process<'_>, service: &Service) -> Option<Arc<Launcher>> {
    let program = Program {
        environment: service.environment(),
        any: process.confinement.sandbox == Sandbox::Off,
        silent: process.background,
    };
    // SAFETY: the process has one thread.
    let launcher = unsafe { Launcher::fork(&program) };
    if let Err(error) = &launcher {
        tracing::warn!(
            %error,
            advice = "see TasksMax= and `ulimit -u`",
            "no process can be made that starts programs: the daemon cannot be upgraded in place"
        );
    }
    launcher.ok().map(Arc::new)
}

fn create(process: &Process<'_>, control: &mut Control) -> Result<(), Failure> {
    if let Some(addr) = process.metrics {
        control.serve_metrics(addr)?;
    }
    let mut handover = Handover::default();
    for directive in process.directives {
        let objects = &mut control.objects;
        match directive {
            Directive::Object(ObjectOptions::Iothread(options)) => objects.add_iothread(options)?,
            Directive::Blockdev(options) => actions::node::open(options, objects, &mut handover)?,
            Directive::Export(options) => actions::export::start(options, objects)?,
            Directive::Chardev(options) => control
                .add_chardev(options)
                .map_err(|failure| format!("--chardev: {failure}"))?,
            Directive::Monitor(options) => control.add_monitor(options)?,
        }
    }
    Ok(())
}

//! The drop-in face: objects, nodes and exports in the order of the command line.

use std::path::Path;

use options::{Confinement, Daemon, Directive, MetricsAddr, ObjectOptions};

use crate::control::Control;
use crate::daemonize::{self, Daemonized};
use crate::handover::Handover;
use crate::pidfile::PidFile;
use crate::service::Service;
use crate::signals::Signals;
use crate::{Failure, confine, export, node};

pub(crate) fn run(options: &Daemon, service: Service) -> Result<(), Failure> {
    let daemonized = options.daemonize.then(daemonize::fork).transpose()?;
    run_until_signalled(
        Process {
            directives: &options.directives,
            pidfile: options.pidfile.as_deref(),
            metrics: options.metrics.as_ref(),
            confinement: &options.confinement,
            made: &[],
        },
        daemonized,
        service,
        || (),
    )
}

/// What a process does, whoever says it.
pub(crate) struct Process<'a> {
    /// What is made.
    pub directives: &'a [Directive],
    pub pidfile: Option<&'a Path>,
    /// Where figures are served.
    pub metrics: Option<&'a MetricsAddr>,
    /// What it gives away before.
    pub confinement: &'a Confinement,
    /// Files that were made for it, and that are removed if it comes to nothing.
    pub made: &'a [&'a Path],
}

/// Makes everything, says so, and ends it when a signal comes, or a monitor's client says so. Exit status 0 means that every
/// acknowledged write is on stable storage.
pub(crate) fn run_until_signalled(
    process: Process<'_>,
    daemonized: Option<Daemonized>,
    service: Service,
    announce: impl FnOnce(),
) -> Result<(), Failure> {
    raise_descriptor_limit();
    confine::confine(&process)?;
    let signals = Signals::block()?;
    let mut control = Control::new(signals, service)?;
    let outcome = create(&process, &mut control).and_then(|()| {
        // A daemon's path is meant from where it was started, and its process id is the child's.
        let pidfile = process.pidfile.map(std::path::absolute).transpose()?;
        let pidfile = pidfile.as_deref().map(PidFile::create).transpose()?;
        let in_background = daemonized.is_some();
        if let Some(daemonized) = daemonized {
            daemonized.ready()?;
        }
        announce();
        control.run(in_background);
        tracing::info!("stopping: no more requests, waiting for those in flight");
        Ok(pidfile)
    });
    // Whatever went wrong: what was acknowledged meanwhile is made stable.
    let ended = control.shut_down();
    let _pidfile = outcome?;
    ended
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
            Directive::Blockdev(options) => node::open(options, objects, &mut handover)?,
            Directive::Export(options) => export::start(options, objects)?,
            Directive::Chardev(options) => control
                .add_chardev(options)
                .map_err(|failure| format!("--chardev: {failure}"))?,
            Directive::Monitor(options) => control.add_monitor(options)?,
        }
    }
    Ok(())
}

/// Every queue has three descriptors; the usual soft limit of 1024 is for programs that use
/// select(2).
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // Fails only where the limit is what it may be at most already.
    let _ = setrlimit(
        Resource::Nofile,
        Rlimit {
            current: maximum,
            maximum,
        },
    );
}

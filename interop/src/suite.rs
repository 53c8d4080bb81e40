//! Run of the suite: every test is a row that says what it needs.
//!
//! A test that this machine cannot run, or that the server in comparison is known not to pass,
//! is announced with the reason and counted as ignored, never as passed;
//! `--include-ignored` runs it all the same. Everything else is libtest's usual command line.

use std::process::{Command, ExitCode};

use libtest_mimic::{Arguments, Trial};

use crate::cluster;
use crate::image::Backing;
use crate::loop_device;
use crate::python;
use crate::server::Kind;

/// What a test needs beside the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// Root and the loop driver.
    LoopDevice,
    /// `qemu-img` and `qemu-io`.
    QemuTools,
    /// The Python package `qemu.qmp`, which is installed if need be.
    QemuQmp,
    /// Programs of a Ceph cluster.
    Ceph,
}

impl Need {
    fn missing(self) -> Option<String> {
        match self {
            Self::LoopDevice => {
                loop_device::unusable().map(|why| format!("no loop devices: {why}"))
            }
            Self::Ceph => cluster::missing(),
            Self::QemuQmp => python::programs().err().map(str::to_owned),
            Self::QemuTools => ["qemu-img", "qemu-io"].into_iter().find_map(|tool| {
                let found = Command::new(tool).arg("--version").output();
                found.err().map(|e| format!("{tool}: {e}"))
            }),
        }
    }
}

/// The function of a test.
#[derive(Debug, Clone, Copy)]
enum Run {
    Once(fn()),
    OnEachBacking(fn(Backing)),
}

/// One row of the suite.
#[derive(Debug, Clone, Copy)]
pub struct Test {
    name: &'static str,
    run: Run,
    needs: Option<Need>,
    qsd_cannot: Option<&'static str>,
}

impl Test {
    /// A test that every server must pass on every machine.
    pub const fn new(name: &'static str, run: fn()) -> Self {
        Self::of(name, Run::Once(run))
    }

    /// The same on an image of each kind. With a Ceph cluster its name begins with `rbd::`.
    pub const fn on_each_backing(name: &'static str, run: fn(Backing)) -> Self {
        Self::of(name, Run::OnEachBacking(run))
    }

    const fn of(name: &'static str, run: Run) -> Self {
        Self {
            name,
            run,
            needs: None,
            qsd_cannot: None,
        }
    }

    /// It runs only where `need` is there.
    pub const fn needs(mut self, need: Need) -> Self {
        self.needs = Some(need);
        self
    }

    /// qemu-storage-daemon is known not to pass it; `reason` says why.
    pub const fn qsd_cannot(mut self, reason: &'static str) -> Self {
        self.qsd_cannot = Some(reason);
        self
    }

    fn reason_to_ignore(&self, kind: Kind) -> Option<String> {
        let known = match kind {
            Kind::QemuStorageDaemon => self.qsd_cannot,
            Kind::Blockplane => None,
        };
        known
            .map(|why| format!("qemu-storage-daemon cannot: {why}"))
            .or_else(|| self.needs.and_then(Need::missing))
    }
}

/// A test with all that it depends on chosen.
struct Case {
    test: Test,
    name: String,
    run: Box<dyn FnOnce() + Send>,
}

impl Case {
    fn of_test(test: Test) -> Vec<Self> {
        let case = |test: Test, name, run| Case { test, name, run };
        let name = test.name.to_owned();
        match test.run {
            Run::Once(run) => vec![case(test, name, Box::new(run))],
            Run::OnEachBacking(run) => {
                let on_cluster = Test {
                    needs: Some(Need::Ceph),
                    qsd_cannot: Some("the comparison is on files"),
                    ..test
                };
                let name_on_cluster = format!("rbd::{name}");
                vec![
                    case(test, name, Box::new(move || run(Backing::File))),
                    case(
                        on_cluster,
                        name_on_cluster,
                        Box::new(move || run(Backing::Rbd)),
                    ),
                ]
            }
        }
    }
}

/// Runs `tests` as the command line asks.
pub fn run(tests: impl IntoIterator<Item = Test>) -> ExitCode {
    let arguments = Arguments::from_args();
    let kind = Kind::under_test();
    if !arguments.list {
        eprintln!("server under test: {}", kind.program().display());
    }
    let trials = tests.into_iter().flat_map(Case::of_test).map(|case| {
        let Case { test, name, run } = case;
        let ignored = (!arguments.list)
            .then(|| test.reason_to_ignore(kind))
            .flatten();
        if let Some(why) = &ignored {
            eprintln!("NOT RUN: {name}: {why}");
        }
        let body = move || {
            run();
            Ok(())
        };
        Trial::test(name, body).with_ignored_flag(ignored.is_some())
    });
    let trials = trials.collect();
    libtest_mimic::run(&arguments, trials).exit_code()
}

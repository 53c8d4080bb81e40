//! Runs cells, two at a time: each guest keeps a processor busy.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::cell::{Cell, Device};
use super::outcome::{Outcome, Packages, Passed, Reconnection, Verdict};
use crate::boot_disk::boot_disk;
use crate::cache::{Cache, disk_folder};
use crate::device::Chipset;
use crate::emulator::{Emulator, QemuVersion, read_versions};
use crate::error::{Error, Result};
use crate::firmware::Firmware;
use crate::kernel::KernelVersion;
use crate::parts::parts;
use crate::progress::{Board, Progress};
use crate::report::Report;
use crate::scenario::{Boot, Scenario};
use crate::server::{Program, Server, ServerOptions};

const GUESTS_AT_A_TIME: usize = 2;
const DISK_BYTES: u64 = 256 << 20;
const NUM_QUEUES: u16 = 2;
/// How often the daemon is killed in a cell.
const KILLS: u32 = 3;
/// Long enough for QEMU to have connected again (it tries each second) and for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(1600);

/// Runs the cells and shows how that goes on standard error; `ended` is called for each. The outcomes are in the cells' order.
pub fn run(program: &Program, cells: &[Cell], ended: impl Fn(&Outcome) + Sync) -> Vec<Outcome> {
    let board = Board::start(cells.len());
    let next = AtomicUsize::new(0);
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for _ in 0..GUESTS_AT_A_TIME {
            scope.spawn(|| {
                while let Some(cell) = cells.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let outcome = run_cell(program, *cell, &board.task(cell.to_string()));
                    board.done(&summary(&outcome));
                    ended(&outcome);
                    let mut outcomes = outcomes.lock().unwrap_or_else(PoisonError::into_inner);
                    outcomes.push(outcome);
                }
            });
        }
    });
    let mut outcomes = outcomes
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner);
    outcomes.sort_by_key(|outcome| cells.iter().position(|cell| *cell == outcome.cell));
    outcomes
}

fn summary(outcome: &Outcome) -> String {
    let verdict = match &outcome.verdict {
        Verdict::Passed(_) => "ok",
        Verdict::Failed(_) => "FAILED",
        Verdict::NotApplicable(_) => "not applicable",
    };
    format!(
        "{}: {verdict} ({:.0} s)",
        outcome.cell,
        outcome.took.as_secs_f64()
    )
}

/// Runs one cell.
pub fn run_cell(program: &Program, cell: Cell, progress: &Progress) -> Outcome {
    let started = Instant::now();
    let verdict = match cell.not_applicable() {
        Some(reason) => Verdict::NotApplicable(reason),
        None => match boot_twice(program, cell, progress) {
            Ok(passed) => Verdict::Passed(passed),
            Err(error) => Verdict::Failed(error.to_string()),
        },
    };
    Outcome {
        cell,
        took: match verdict {
            Verdict::NotApplicable(_) => Duration::ZERO,
            _ => started.elapsed(),
        },
        verdict,
    }
}

/// The packages of the front-ends, their firmware and the kernels in these cells, each with its version. Fetches those
/// that are not in the cache.
///
/// # Errors
/// Whatever keeps them from being had.
pub fn packages(cells: &[Cell]) -> Result<Vec<Packages>> {
    let runs = |applies: &dyn Fn(&Cell) -> bool| {
        cells
            .iter()
            .any(|cell| cell.not_applicable().is_none() && applies(cell))
    };
    let mut all = Vec::new();
    for version in QemuVersion::ALL {
        if runs(&|cell| cell.qemu == version) {
            let mut versions = Emulator::of(&Cache::lock()?, version)?.versions()?;
            versions.sort();
            all.push(Packages {
                of: format!("QEMU {}", version.name()),
                versions,
            });
        }
    }
    for version in KernelVersion::ALL {
        if runs(&|cell| cell.kernel == version) {
            let versions = read_versions(&parts(Some(version))?.kernel.versions)?;
            all.push(Packages {
                of: format!("Linux {}", version.name()),
                versions,
            });
        }
    }
    Ok(all)
}

fn boot_twice(program: &Program, cell: Cell, progress: &Progress) -> Result<Passed> {
    progress.now("fetching packages, making the disk");
    let folder = disk_folder()?;
    let disk = folder.path().join("disk.img");
    boot_disk(&disk, DISK_BYTES, Scenario::Installed, Some(cell.kernel))?;
    let mut options = ServerOptions::new(&disk, DISK_BYTES);
    options.num_queues = NUM_QUEUES;
    options.packed = cell.device == Device::BlkPacked;
    options.device = cell.device.exported();

    let server = Server::start(program, &options)?;
    let boot = || {
        let boot = Boot::new(&server, Scenario::Installed)
            .qemu(cell.qemu)
            .firmware(cell.firmware, folder.path())
            .chipset(chipset(cell))
            .from_disk()
            .show(progress);
        match cell.no_reconnection() {
            None => boot.reconnecting(),
            Some(_) => boot,
        }
    };
    let (reconnection, kills) = match cell.no_reconnection() {
        None => (Reconnection::Survived(KILLS), KILLS),
        Some(reason) => (Reconnection::NotApplicable(reason), 0),
    };
    let mut crashed = Ok(());
    let first = boot().run_asking(|_| {
        crashed = (0..kills).try_for_each(|_| {
            thread::sleep(AT_WORK);
            server.crash()
        });
        thread::sleep(AT_WORK);
    });
    crashed?;
    let first = first?;
    check(cell, &first, "first")?;
    if let Some(writer) = first.idle_writer(2 * NUM_QUEUES) {
        return Err(first.lacks(format!("writer {writer} wrote nothing")));
    }
    let second = boot().run()?;
    check(cell, &second, "second")?;
    if first.sums().is_empty() || first.sums() != second.sums() {
        return Err(
            second.lacks("the second boot reads other data than the first one wrote".into())
        );
    }
    let sums = first.sums().len();
    server.stop()?;
    Ok(Passed {
        kernel: first.fact("kernel").unwrap_or_default().to_owned(),
        sums,
        reconnection,
        daemon_warnings: [first.daemon_warnings(), second.daemon_warnings()].concat(),
    })
}

/// The adapter has a driver in SeaBIOS for the older chipset's interrupts; all others are in the newest.
fn chipset(cell: Cell) -> Chipset {
    match cell.device {
        Device::Lsi => Chipset::Pc,
        _ => Chipset::Q35,
    }
}

/// Whether the guest is what the cell says.
fn check(cell: Cell, report: &Report, boot: &str) -> Result<()> {
    let firmware = match cell.firmware {
        Firmware::SeaBios => "bios",
        Firmware::Ovmf => "uefi",
    };
    let size = DISK_BYTES.to_string();
    let queues = match cell.device {
        Device::Lsi => 1,
        _ => NUM_QUEUES,
    };
    let mut expected = vec![
        ("boot", boot.to_owned()),
        ("firmware", firmware.to_owned()),
        ("driver", cell.device.driver().to_owned()),
        ("size_bytes", size),
        ("queues", queues.to_string()),
    ];
    if cell.device != Device::Lsi {
        let packed = cell.device == Device::BlkPacked;
        expected.push(("packed", u8::from(packed).to_string()));
    }
    for (fact, expected) in expected {
        let found = report.fact(fact).unwrap_or_default();
        if found != expected {
            return Err(report.lacks(format!("{fact} is '{found}' and not '{expected}'")));
        }
    }
    // The loader's kernel, and the cell's.
    for (fact, begin) in [
        ("command_line", "BOOT_IMAGE=(hd0,msdos1)/vmlinuz "),
        ("kernel", &*format!("{}.", cell.kernel.name())),
    ] {
        let found = report.fact(fact).unwrap_or_default();
        if !found.starts_with(begin) {
            return Err(report.lacks(format!(
                "{fact} is '{found}' and does not begin with '{begin}'"
            )));
        }
    }
    Ok(())
}

impl Report {
    fn lacks(&self, what: String) -> Error {
        Error::Report {
            what,
            console: self.console_tail(),
        }
    }
}

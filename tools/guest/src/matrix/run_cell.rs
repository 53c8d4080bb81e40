//! One cell: two boots of a guest from its disk, the daemon killed during the first, and what the guest must report.

use std::thread;
use std::time::{Duration, Instant};

use super::cell::{Cell, Device};
use super::outcome::{Outcome, Passed, Reconnection, Verdict};
use crate::boot_disk::boot_disk;
use crate::cache::disk_folder;
use crate::device::Chipset;
use crate::error::Result;
use crate::firmware::Firmware;
use crate::progress::Progress;
use crate::report::Report;
use crate::scenario::{Boot, Scenario};
use crate::server::{Program, Server, ServerOptions};

const DISK_BYTES: u64 = 256 << 20;
const NUM_QUEUES: u16 = 2;
/// How often the daemon is killed in a cell.
const KILLS: u32 = 3;
/// Long enough for QEMU to have connected again (it tries each second) and for the guest to be at work.
const AT_WORK: Duration = Duration::from_millis(1600);

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
        return Err(first.error(format!("writer {writer} wrote nothing")));
    }
    let second = boot().run()?;
    check(cell, &second, "second")?;
    if first.sums().is_empty() || first.sums() != second.sums() {
        return Err(
            second.error("the second boot reads other data than the first one wrote".into())
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
            return Err(report.error(format!("{fact} is '{found}' and not '{expected}'")));
        }
    }
    // The loader's kernel, and the cell's.
    for (fact, begin) in [
        ("command_line", "BOOT_IMAGE=(hd0,msdos1)/vmlinuz "),
        ("kernel", &*format!("{}.", cell.kernel.name())),
    ] {
        let found = report.fact(fact).unwrap_or_default();
        if !found.starts_with(begin) {
            return Err(report.error(format!(
                "{fact} is '{found}' and does not begin with '{begin}'"
            )));
        }
    }
    Ok(())
}

//! One guest with several disks: QEMU's own LSI 53C895A, ours, and our virtio devices, under the same load in turn.
//!
//! The processor is emulated, so the figures are low and most of the time is the guest's; what they are good for is
//! to be compared with each other. Each round has all loads and disks, so that what slows the machine down slows all.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attach;
use crate::cache::{Cache, disk_folder};
use crate::device::{Chipset, Device};
use crate::emulator::Emulator;
use crate::error::{Error, Result};
use crate::initramfs;
use crate::parts::parts;
use crate::progress::Progress;
use crate::qemu::{self, Machine, Start};
use crate::report::Report;
use crate::server::{Program, Server, ServerOptions};

/// The disks by their serial numbers; the first is what the others are compared with.
pub const DISKS: [&str; 4] = ["qemu-lsi", "lsi", "virtio-scsi", "virtio-blk"];

/// The loads: fio's name of the pattern, and bytes of a request.
pub const CELLS: [Cell; 4] = [
    Cell::new("randread", 16 << 10),
    Cell::new("randwrite", 16 << 10),
    Cell::new("randread", 64 << 10),
    Cell::new("randwrite", 64 << 10),
];

/// Bytes of each disk.
const SIZE_BYTES: u64 = 64 << 20;

/// A load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// fio's name of the pattern.
    pub pattern: &'static str,
    /// Of a request.
    pub block_bytes: u32,
}

/// What is measured, and how long.
#[derive(Clone, Debug)]
pub struct Contest {
    /// Whether there is nothing behind the disks (null-co); else files, past the page cache.
    pub null: bool,
    /// Requests in flight.
    pub depth: u16,
    /// How often each disk has each load.
    pub rounds: u16,
    /// How long, each time.
    pub time: Duration,
}

impl Cell {
    const fn new(pattern: &'static str, block_bytes: u32) -> Self {
        Self {
            pattern,
            block_bytes,
        }
    }

    /// As the guest's script wants it.
    fn name(self) -> String {
        format!("{}-{}", self.pattern, self.block_bytes)
    }
}

/// Boots the guest and returns the requests per second of each round and cell, of [`DISKS`] in order. `load` is the
/// program `disk_load`.
///
/// # Errors
/// Where no guest can be run, the error says what to install; otherwise what went wrong.
pub fn contest(
    blockplane: &Path,
    load: &Path,
    contest: &Contest,
) -> Result<Vec<Vec<[f64; DISKS.len()]>>> {
    let progress = Progress::start("guest: four disks");
    progress.now("preparing the kernel, and a QEMU that has vfio-user");
    let parts = parts(None)?;
    let emulator = Emulator::with_vfio_user(&Cache::lock()?)?;
    let folder = disk_folder()?;
    let initramfs = folder.path().join("initramfs.cpio");
    initramfs::extend(
        &parts.initramfs,
        &[("disk_load", load.to_owned())],
        &initramfs,
    )?;

    let mut disks = qemu_disk(folder.path(), contest.null)?;
    let mut servers = Vec::new();
    for (name, device) in [
        ("lsi", Device::HostAdapter { slow: None }),
        ("virtio-scsi", Device::Controller { slow: None }),
        ("virtio-blk", Device::VirtioBlk),
    ] {
        let image = filled(folder.path(), name, contest.null)?;
        let mut options = ServerOptions::new(&image, SIZE_BYTES);
        options.null = contest.null;
        options.serial = name.to_owned();
        options.monitor = true;
        options.device = device;
        let server = Server::start(&Program::Blockplane(blockplane.to_owned()), &options)?;
        disks.extend(attach::arguments(&server, name, attach::Extras::default()));
        servers.push(server);
    }
    let machine = Machine {
        emulator,
        chipset: Chipset::Q35,
        disks,
        extras: attach::Extras::default(),
        firmware: Vec::new(),
        start: Start::Kernel {
            vmlinuz: parts.kernel.vmlinuz.clone(),
            initramfs,
            parameters: contest.parameters(),
        },
        cpus: 1,
        monitor: None,
        incoming: None,
        limit: contest.limit(),
        // A load is one step.
        silence_limit: contest.limit(),
    };
    let report = qemu::run(&machine, |_, _| {}, |step| progress.now(step)).map_err(|error| {
        let logs = servers.iter().map(|server| server.log().all());
        error.with_daemon_log(&logs.collect::<String>())
    })?;
    for server in servers {
        server.stop()?;
    }
    contest.rates(&report)
}

/// An image with something in all its blocks, so that none is a hole.
fn filled(folder: &Path, name: &str, null: bool) -> Result<PathBuf> {
    let path = folder.join(name);
    if !null {
        let failed = || Error::io(format!("write {}", path.display()));
        let mut file = File::create(&path).map_err(failed())?;
        let chunk = vec![0x5a; 1 << 20];
        for _ in 0..SIZE_BYTES >> 20 {
            file.write_all(&chunk).map_err(failed())?;
        }
        file.sync_all().map_err(failed())?;
    }
    Ok(path)
}

/// QEMU's own adapter, with a disk behind it.
fn qemu_disk(folder: &Path, null: bool) -> Result<Vec<String>> {
    let name = DISKS[0];
    let path = filled(folder, name, null)?.display().to_string();
    let node = if null {
        format!("driver=null-co,node-name=node,size={SIZE_BYTES}")
    } else {
        let path = path.replace(',', ",,");
        format!("driver=file,node-name=node,filename={path},cache.direct=on,aio=native")
    };
    let disk = format!("scsi-hd,bus=adapter.0,drive=node,serial={name}");
    let options = [
        "-blockdev",
        &node,
        "-device",
        "lsi53c895a,id=adapter",
        "-device",
        &disk,
    ];
    Ok(options.map(str::to_owned).to_vec())
}

impl Contest {
    fn parameters(&self) -> String {
        let loads = CELLS.map(Cell::name).join(",");
        let time_ms = self.time.as_millis();
        format!(
            "bp.scenario=contest bp.disks={} bp.loads={loads} bp.depth={} bp.rounds={} bp.warm_up_ms={} bp.time_ms={time_ms}",
            DISKS.join(","),
            self.depth,
            self.rounds,
            time_ms / 4,
        )
    }

    /// Twice what the loads take, and what a guest has to boot.
    fn limit(&self) -> Duration {
        let loads = u32::from(self.rounds) * u32::try_from(CELLS.len() * DISKS.len()).unwrap_or(1);
        (self.time * 5 / 4 + Duration::from_secs(1)) * loads * 2 + Duration::from_secs(240)
    }

    fn rates(&self, report: &Report) -> Result<Vec<Vec<[f64; DISKS.len()]>>> {
        let rate = |round: u16, cell: Cell, disk: &str| {
            let key = format!("rate.{round}.{}.{disk}", cell.name());
            let text = report.fact(&key).unwrap_or_default();
            text.parse::<f64>()
                .map_err(|_| report.error(format!("the guest's {key} is '{text}', not a number")))
        };
        let mut all = Vec::new();
        for round in 1..=self.rounds {
            let mut cells = Vec::new();
            for cell in CELLS {
                let mut rates = [0.0; DISKS.len()];
                for (slot, disk) in rates.iter_mut().zip(DISKS) {
                    *slot = rate(round, cell, disk)?;
                }
                cells.push(rates);
            }
            all.push(cells);
        }
        Ok(all)
    }
}

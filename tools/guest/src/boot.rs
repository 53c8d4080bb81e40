//! A guest: what it boots, on which disk, what it does there.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attach::{self, Extras};
use crate::cache::Cache;
use crate::emulator::{Emulator, QemuVersion};
use crate::error::{Error, Result, tail};
use crate::parts::parts;
use crate::qemu::{self, Machine, RunningGuest, Start};
use crate::report::Report;
use crate::server::{Device, Server};

/// Far more than the minute that the longest of them takes on an idle core: reached only if something hangs.
const LIMIT: Duration = Duration::from_secs(900);
/// Lines of the daemon's log that an error carries.
const DAEMON_LINES: usize = 60;

/// A guest to boot on a server's disk.
#[derive(Debug)]
pub struct Boot<'a> {
    server: &'a Server,
    scenarios: &'a str,
    extras: Extras,
    reconnects: bool,
    qemu: Option<QemuVersion>,
    uefi_variables: Option<PathBuf>,
    is_pc: bool,
    from_disk: bool,
    limit: Duration,
}

impl<'a> Boot<'a> {
    /// A guest with one CPU for each of the server's queues. `scenarios` are names of scripts under `src/init`, with commas between
    /// them, that it runs one after the other; what they do, and what they ask, is said there.
    #[must_use]
    pub fn new(server: &'a Server, scenarios: &'a str) -> Self {
        let has_vfio_user = matches!(server.options().device, Device::HostAdapter);
        Self {
            server,
            scenarios,
            extras: Extras::default(),
            reconnects: false,
            qemu: has_vfio_user.then_some(QemuVersion::V11_1),
            uefi_variables: None,
            is_pc: false,
            from_disk: false,
            limit: LIMIT,
        }
    }

    /// QEMU connects again, within a second, to a server that has gone.
    #[must_use]
    pub fn reconnecting(mut self) -> Self {
        self.reconnects = true;
        self
    }

    /// Requests that are in flight when the guest is [moved](RunningGuest::move_to) move with it; without this they are completed, or
    /// returned to the ring.
    #[must_use]
    pub fn inflight_migration(mut self) -> Self {
        self.extras.inflight_migration = true;
        self
    }

    /// The older chipset, with PCI and not PCI Express.
    #[must_use]
    pub fn pc(mut self) -> Self {
        self.is_pc = true;
        self
    }

    /// QEMU is given no kernel: the firmware finds one on the disk, see [`boot_disk`](crate::boot_disk), and with it the scenarios.
    #[must_use]
    pub fn from_disk(mut self) -> Self {
        self.from_disk = true;
        self
    }

    /// The QEMU of a Debian release instead of this machine's. Guests that move want 11.1: before 9.0 an emulated processor's writes
    /// were lost now and then while its memory was copied.
    #[must_use]
    pub fn qemu(mut self, version: QemuVersion) -> Self {
        self.qemu = Some(version);
        self
    }

    /// UEFI instead of a BIOS, with a folder in which it keeps its variables. Wants [`Boot::qemu`].
    #[must_use]
    pub fn uefi(mut self, variables: &Path) -> Self {
        self.uefi_variables = Some(variables.to_owned());
        self
    }

    /// The time that the guest has, from start to the end of its scenarios.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Boots, and returns when the guest is off and every step succeeded.
    ///
    /// # Errors
    /// Whatever keeps a guest from booting; the step that failed, or that the guest ended before or took too long, with the end of
    /// the console and of the daemon's log.
    pub fn run(self) -> Result<Report> {
        self.run_asking(|_, _| {})
    }

    /// Like [`Boot::run`]; `ask` is called when the guest waits at a named point.
    ///
    /// # Errors
    /// See [`Boot::run`].
    pub fn run_asking(self, mut ask: impl FnMut(&str, &mut RunningGuest<'_>)) -> Result<Report> {
        let emulator = match self.qemu {
            Some(version) => Emulator::of(&Cache::lock()?, version)?,
            None => Emulator::installed()?,
        };
        let start = match self.from_disk {
            true => None,
            false => {
                let parts = parts(None)?;
                Some(Start {
                    vmlinux: parts.kernel.vmlinux(),
                    initramfs: parts.initramfs.whole.clone(),
                    parameters: self.parameters(),
                })
            }
        };
        let mut extras = self.extras;
        if self.reconnects {
            extras.reconnect = Some(emulator.reconnect_option()?);
        }
        let firmware = match &self.uefi_variables {
            Some(folder) => emulator.uefi(folder)?,
            None => Vec::new(),
        };
        let machine = Machine {
            title: format!("guest: {}", self.scenarios),
            emulator,
            is_pc: self.is_pc,
            disks: attach::arguments(self.server, "disk", extras),
            extras,
            firmware,
            start,
            cpus: self.server.options().cpus(),
            limit: self.limit,
        };
        qemu::run(&machine, &mut ask).map_err(|error| {
            let log = tail(&self.server.log(), DAEMON_LINES);
            Error::new(format!("{error}\n--- the daemon's log ---\n{log}"))
        })
    }

    /// What the scripts read from the kernel's command line.
    fn parameters(&self) -> String {
        let options = self.server.options();
        let mut parameters = format!(
            "bp.scenarios={} bp.size={} bp.queues={} bp.read_only={} bp.serial={} bp.cache=write_back",
            self.scenarios,
            options.size_bytes,
            options.num_queues,
            u8::from(options.read_only),
            options.serial,
        );
        if let Some(port) = options.nbd_port {
            parameters.push_str(&format!(" bp.nbd_port={port}"));
        }
        parameters
    }
}

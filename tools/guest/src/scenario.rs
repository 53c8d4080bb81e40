//! Tasks of a guest and what it must find. Their scripts are under `init/`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::attach;
use crate::cache::Cache;
use crate::device::{Chipset, Device};
use crate::emulator::{Emulator, QemuVersion};
use crate::error::{Error, Result};
use crate::firmware::Firmware;
use crate::initramfs::ExtraPackage;
use crate::migration::{self, Movable};
use crate::parts::{initramfs_with, parts};
use crate::progress::Progress;
use crate::qemu::{self, Guest, Machine, Start};
use crate::report::Report;
use crate::server::Server;
use crate::server::warnings;

/// Far more than the 15 s that a guest takes on an idle core: reached only if something hangs.
const LIMIT: Duration = Duration::from_secs(240);
/// The firmware, the boot loader and each step of a scenario print a line within seconds, on a busy host within a few
/// tens of them.
const SILENCE_LIMIT: Duration = Duration::from_secs(180);

/// One of the scripts under `init/`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scenario {
    /// A new disk: partitions, a file system, files of many sizes, direct I/O on every CPU at once.
    FirstBoot,
    /// After [`Scenario::FirstBoot`], on a writable disk: everything is still there.
    SecondBoot,
    /// After [`Scenario::FirstBoot`], on a read-only disk: everything is there, nothing can be written.
    ReadonlyBoot,
    /// A new disk: discard, write zeroes, `fstrim`. Asks `raw_written`, `raw_discarded`,
    /// `file_written`, `file_trimmed`, for the host to look at the space that the image takes.
    Discard,
    /// A new disk of a server with a monitor: asks `grow` for twice its size, then `shrink` for the first, and
    /// sees both while it is up.
    Resize,
    /// A new disk, written and read back all the time while it asks `crashes`, for the server to be killed and started
    /// again, which wants [`Boot::reconnecting`]; or for the guest to be [moved](Boot::run_moving).
    Crashes,
    /// A new disk whose image finds less space than it is to have: asks `full` while files are written that do not fit. Wants a
    /// server with [`ServerOptions::waits_for_space`](crate::ServerOptions::waits_for_space).
    FullDisk,
    /// A new disk, and a slot for a second one: asks `plug`, uses what appears, asks `unplug`, sees that it
    /// goes, and asks `gone`. Wants [`Boot::monitor`].
    HotPlug,
    /// The disks of a [`Device::Controller`] are found and used; asks `add`, `delete` and `grow`, for units to come, go and
    /// become larger.
    Controller,
    /// A new disk behind a [`Device::Controller`] with a slow one beside it, which are used while units are reset.
    ControllerResets,
    /// A new disk behind a [`Device::HostAdapter`] with a slow one beside it. Asks `before_large` and `after_large`,
    /// between which are 64 writes of 64 KiB, and `busy` when the slow disk has all that the driver gives it.
    HostAdapter,
    /// A new SCSI disk, accessed by the programs of sg3-utils, with each reply checked against SPC-4 and SBC-3.
    Sg3Utils,
    /// A new disk that the guest uses in two ways: as its virtio disk, and by the kernel's NBD client. Wants
    /// [`ServerOptions::nbd_port`](crate::ServerOptions::nbd_port).
    Nbd,
    /// A disk made by [`boot_disk`](crate::boot_disk), from which the guest booted: it goes on to use it.
    Booted,
    /// A disk made by [`boot_disk`](crate::boot_disk), from which the guest boots twice: at first it fills a file system and asks
    /// `crashes`, as in [`Scenario::Crashes`], then it finds all that.
    Installed,
}

impl Scenario {
    /// The script's name.
    pub(crate) const fn script(self) -> &'static str {
        match self {
            Self::FirstBoot => "first_boot",
            Self::SecondBoot => "second_boot",
            Self::ReadonlyBoot => "readonly_boot",
            Self::Discard => "discard",
            Self::Resize => "resize",
            Self::Crashes => "crashes",
            Self::FullDisk => "full_disk",
            Self::HotPlug => "hot_plug",
            Self::Controller => "controller",
            Self::ControllerResets => "controller_resets",
            Self::HostAdapter => "host_adapter",
            Self::Sg3Utils => "sg3",
            Self::Nbd => "nbd",
            Self::Booted => "booted",
            Self::Installed => "installed",
        }
    }

    /// The package whose programs the script calls.
    const fn extra_package(self) -> Option<ExtraPackage> {
        match self {
            Self::ControllerResets | Self::HostAdapter | Self::Sg3Utils => {
                Some(ExtraPackage::Sg3Utils)
            }
            Self::Nbd => Some(ExtraPackage::NbdClient),
            _ => None,
        }
    }
}

/// A guest to boot on a server's disk.
#[derive(Debug)]
pub struct Boot<'a> {
    server: &'a Server,
    scenario: Scenario,
    serial: String,
    monitor: Option<PathBuf>,
    extras: attach::Extras,
    moves: bool,
    reconnects: bool,
    qemu: Option<QemuVersion>,
    firmware: Option<(Firmware, PathBuf)>,
    chipset: Chipset,
    from_disk: bool,
    limit: Duration,
    silence_limit: Duration,
    progress: Option<&'a Progress>,
}

impl<'a> Boot<'a> {
    /// A guest with one CPU for each of the server's queues.
    #[must_use]
    pub fn new(server: &'a Server, scenario: Scenario) -> Self {
        Self {
            server,
            scenario,
            serial: server.serial().to_owned(),
            monitor: None,
            extras: attach::Extras::default(),
            moves: false,
            reconnects: false,
            qemu: None,
            firmware: None,
            chipset: Chipset::Q35,
            from_disk: false,
            limit: LIMIT,
            silence_limit: SILENCE_LIMIT,
            progress: None,
        }
    }

    /// The serial number that the guest must see, if not the server's.
    #[must_use]
    pub fn expect_serial(mut self, serial: &str) -> Self {
        serial.clone_into(&mut self.serial);
        self
    }

    /// A socket for QEMU's own monitor, see [`execute`](crate::execute), and a PCI slot called `slot0` for a disk
    /// that comes later.
    #[must_use]
    pub fn monitor(mut self, socket: &Path) -> Self {
        self.monitor = Some(socket.to_owned());
        self
    }

    /// QEMU connects again, within a second, to a server that has gone.
    #[must_use]
    pub fn reconnecting(mut self) -> Self {
        self.reconnects = true;
        self
    }

    /// Requests that are in flight when the guest is [moved](Boot::run_moving) move with it; without this they are completed, or
    /// returned to the ring.
    #[must_use]
    pub fn inflight_migration(mut self) -> Self {
        self.extras.inflight_migration = true;
        self
    }

    /// Another chipset than the newest.
    #[must_use]
    pub fn chipset(mut self, chipset: Chipset) -> Self {
        self.chipset = chipset;
        self
    }

    /// QEMU is given no kernel: the firmware finds one on the disk, see [`boot_disk`](crate::boot_disk).
    #[must_use]
    pub fn from_disk(mut self) -> Self {
        self.from_disk = true;
        self
    }

    /// The QEMU of a Debian release instead of this machine's.
    #[must_use]
    pub fn qemu(mut self, version: QemuVersion) -> Self {
        self.qemu = Some(version);
        self
    }

    /// Another firmware than the default, with a folder in which it keeps its variables. Wants [`Boot::qemu`].
    #[must_use]
    pub fn firmware(mut self, firmware: Firmware, folder: &Path) -> Self {
        self.firmware = Some((firmware, folder.to_owned()));
        self
    }

    /// The longest time without a line on the console, for scenarios with a step that takes its time. What QEMU waits for a processor
    /// is not counted.
    #[must_use]
    pub fn silence_limit(mut self, limit: Duration) -> Self {
        self.silence_limit = limit;
        self
    }

    /// Its steps are shown there, and not by a line of their own.
    #[must_use]
    pub fn show(mut self, progress: &'a Progress) -> Self {
        self.progress = Some(progress);
        self
    }

    /// The time that the guest has, from start to the scenario's end.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Boots, and returns when the guest is off and every step succeeded.
    ///
    /// # Errors
    /// Whatever keeps a guest from booting, and [`Error::StepFailed`], [`Error::GuestDied`],
    /// [`Error::Timeout`], [`Error::Silent`] with the end of the console and of the daemon's log.
    pub fn run(self) -> Result<Report> {
        self.run_asking(|_| {})
    }

    /// Like [`Boot::run`]; `ask` is called when the guest waits at a named point.
    ///
    /// # Errors
    /// See [`Boot::run`].
    pub fn run_asking(self, mut ask: impl FnMut(&str)) -> Result<Report> {
        self.follow(|question, _, _| ask(question))
    }

    /// Like [`Boot::run_asking`]; the guest may also be moved then. Its QEMU has vfio-user, and so is newer than 9.0: until then an
    /// emulated processor's writes were lost now and then while its memory was copied.
    ///
    /// # Errors
    /// See [`Boot::run`].
    pub fn run_moving(mut self, mut ask: impl FnMut(&str, &mut Movable<'_>)) -> Result<Report> {
        // Paths of sockets are short.
        let folder = tempfile::Builder::new()
            .prefix("blockplane-move-")
            .tempdir()
            .map_err(Error::io("create a folder for sockets"))?;
        let folder = folder.path();
        let mut moves = 0;
        self.monitor = Some(migration::monitor(folder, moves));
        self.moves = true;
        self.follow(|question, guest, machine| {
            let moves = &mut moves;
            ask(
                question,
                &mut Movable {
                    guest,
                    machine,
                    folder,
                    moves,
                },
            );
        })
    }

    fn follow(self, mut ask: impl FnMut(&str, &mut Guest, &Machine)) -> Result<Report> {
        let options = self.server.options();
        let own;
        let progress = match self.progress {
            Some(progress) => progress,
            None => {
                own = Progress::start(format!(
                    "guest: {} ({} queue{})",
                    self.scenario.script(),
                    options.num_queues,
                    if options.num_queues == 1 { "" } else { "s" }
                ));
                &own
            }
        };
        let now = |doing: &str| progress.now(doing);
        now("preparing QEMU and the kernel");
        let emulator = self.emulator()?;
        let start = match self.from_disk {
            true => Start::Disk,
            false => {
                let parts = parts(None)?;
                Start::Kernel {
                    vmlinuz: parts.kernel.vmlinuz.clone(),
                    initramfs: match self.scenario.extra_package() {
                        Some(extra) => initramfs_with(parts, extra)?.to_owned(),
                        None => parts.initramfs.clone(),
                    },
                    parameters: self.parameters()?,
                }
            }
        };
        let mut extras = self.extras;
        if self.reconnects {
            extras.reconnect = Some(emulator.reconnect_option()?);
        }
        let firmware = match &self.firmware {
            Some((firmware, folder)) => firmware.arguments(&emulator, folder)?,
            None => Vec::new(),
        };
        let machine = Machine {
            emulator,
            chipset: self.chipset,
            disks: attach::arguments(self.server, "disk", extras),
            extras,
            firmware,
            start,
            cpus: options.device.cpus(options.num_queues),
            monitor: self.monitor.clone(),
            incoming: None,
            limit: self.limit,
            silence_limit: self.silence_limit,
        };
        now("booting");
        let report = qemu::run(
            &machine,
            |question, guest| ask(question, guest, &machine),
            now,
        );
        let logged = self.server.log().unreported();
        let mut report = report.map_err(|error| error.with_daemon_log(&logged))?;
        report.set_daemon_warnings(warnings(&logged));
        Ok(report)
    }

    /// What runs the guest.
    fn emulator(&self) -> Result<Emulator> {
        if let Some(version) = self.qemu {
            return Emulator::of(&Cache::lock()?, version);
        }
        match self.server.options().device {
            Device::VirtioBlk | Device::Controller { .. } if !self.moves => Emulator::installed(),
            _ => Emulator::with_vfio_user(&Cache::lock()?),
        }
    }

    /// What the scripts read from the kernel's command line.
    fn parameters(&self) -> Result<String> {
        let options = self.server.options();
        let mut parameters = format!(
            "bp.scenario={} bp.size={} bp.queues={} bp.read_only={} bp.serial={}",
            self.scenario.script(),
            options.size_bytes,
            options.num_queues,
            u8::from(options.read_only),
            word("serial", &self.serial)?,
        );
        if let Some(port) = options.nbd_port {
            parameters.push_str(&format!(" bp.nbd_port={port}"));
        }
        if let Some(cache) = self.server.write_cache() {
            parameters.push_str(&format!(" bp.cache={}", cache.replace(' ', "_")));
        }
        Ok(parameters)
    }
}

/// Fails if the guest's shell or kernel would not take `value` as one word.
fn word<'v>(what: &'static str, value: &'v str) -> Result<&'v str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.:+/".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        Ok(value)
    } else {
        Err(Error::BadValue {
            what,
            value: value.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Scenario, word};
    use crate::initramfs::ExtraPackage;

    #[test]
    fn scenarios_that_call_programs_of_further_packages_have_an_initramfs_with_them() {
        let scripts = [
            (
                Scenario::FirstBoot,
                concat!(
                    include_str!("init/lib.sh"),
                    include_str!("init/first_boot.sh")
                ),
            ),
            (Scenario::SecondBoot, include_str!("init/second_boot.sh")),
            (
                Scenario::ReadonlyBoot,
                include_str!("init/readonly_boot.sh"),
            ),
            (Scenario::Discard, include_str!("init/discard.sh")),
            (Scenario::Resize, include_str!("init/resize.sh")),
            (Scenario::Crashes, include_str!("init/crashes.sh")),
            (Scenario::FullDisk, include_str!("init/full_disk.sh")),
            (Scenario::HotPlug, include_str!("init/hot_plug.sh")),
            (Scenario::Controller, include_str!("init/controller.sh")),
            (
                Scenario::ControllerResets,
                include_str!("init/controller_resets.sh"),
            ),
            (Scenario::HostAdapter, include_str!("init/host_adapter.sh")),
            (Scenario::Sg3Utils, include_str!("init/sg3.sh")),
            (Scenario::Nbd, include_str!("init/nbd.sh")),
            (Scenario::Booted, include_str!("init/booted.sh")),
            (
                Scenario::Installed,
                concat!(
                    include_str!("init/installed.sh"),
                    include_str!("init/files.sh"),
                    include_str!("init/rounds.sh")
                ),
            ),
        ];
        for (scenario, script) in scripts {
            let expected = if script.contains("sg_") {
                Some(ExtraPackage::Sg3Utils)
            } else {
                script
                    .contains("nbd-client")
                    .then_some(ExtraPackage::NbdClient)
            };
            assert_eq!(scenario.extra_package(), expected, "{scenario:?}");
        }
    }

    #[test]
    fn values_with_separators_are_refused() {
        assert!(word("serial", "BP-0001").is_ok());
        for bad in ["", "a b", "a\"b", "a;b", "a,b", "$x", "a\nb"] {
            assert!(word("serial", bad).is_err(), "{bad:?}");
        }
    }
}

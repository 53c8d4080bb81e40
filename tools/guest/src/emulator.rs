//! The QEMU that runs a guest: this machine's, or that of a Debian release.
//!
//! The tests of the front-ends run several versions, and `vfio-user-pci` came with QEMU 11.1. What is fetched is reduced to
//! the program, its libraries, the BIOS and the UEFI firmware, and runs from the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::debian::Apt;
use crate::error::{Error, Result, find_program, run};

/// The programs, and the firmware for BIOS and UEFI guests.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ovmf"];
const QEMU: &str = "qemu-system-x86_64";
/// Where libraries are: Debian 12's packages still have some in the second.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";
/// The BIOS, and what it runs to start a guest with `-kernel`; the UEFI firmware and its variables.
const FIRMWARE: [&str; 6] = [
    "seabios/bios-256k.bin",
    "qemu/kvmvapic.bin",
    "qemu/linuxboot_dma.bin",
    "qemu/pvh.bin",
    "OVMF/OVMF_CODE_4M.fd",
    "OVMF/OVMF_VARS_4M.fd",
];
/// What 7.2 loads to emulate a processor; newer ones have it built in.
const MODULES: &str = "qemu";
const TCG: &str = "accel-tcg-x86_64.so";
/// Changes with what is picked from the packages.
const LAYOUT: u32 = 2;

/// A QEMU of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QemuVersion {
    /// 7.2, of Debian 12.
    V7_2,
    /// 10.0, of Debian 13.
    V10_0,
    /// 11.1, of Debian 13's backports: the first that has vfio-user.
    V11_1,
}

impl QemuVersion {
    const fn name(self) -> &'static str {
        match self {
            Self::V7_2 => "7.2",
            Self::V10_0 => "10.0",
            Self::V11_1 => "11.1",
        }
    }

    const fn suites(self) -> &'static [&'static str] {
        match self {
            Self::V7_2 => &["bookworm"],
            Self::V10_0 => &["trixie"],
            Self::V11_1 => &["trixie", "trixie-backports"],
        }
    }
}

/// How a QEMU is called.
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    program: PathBuf,
    /// Stand before all others.
    arguments: Vec<String>,
    /// Where it was unpacked; `None` for this machine's.
    folder: Option<PathBuf>,
}

impl Emulator {
    /// The one of this machine.
    pub(crate) fn installed() -> Result<Self> {
        Ok(Self {
            program: find_program(QEMU, "qemu-system-x86")?,
            arguments: Vec::new(),
            folder: None,
        })
    }

    /// That of a Debian release; the first call fetches it (50 MB to 70 MB). It starts with its own loader: this machine's C
    /// library may be older.
    pub(crate) fn of(cache: &Cache, version: QemuVersion) -> Result<Self> {
        let folder = cache
            .folder()
            .join(format!("qemu-{}-{LAYOUT}", version.name()));
        if !folder.is_dir() {
            fetch(cache, version, &folder)?;
        }
        let path = |name: &str| folder.join(name).display().to_string();
        Ok(Self {
            program: folder.join("lib").join(LOADER),
            arguments: vec![
                "--library-path".to_owned(),
                path("lib"),
                path(QEMU),
                "-L".to_owned(),
                path("firmware"),
            ],
            folder: Some(folder),
        })
    }

    /// A command to which arguments are added.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        if let Some(folder) = &self.folder {
            command.env("QEMU_MODULE_DIR", folder.join(MODULES));
        }
        command
    }

    /// QEMU's options for UEFI instead of a BIOS. It keeps its variables in a file of `variables`, from one boot to the next.
    pub(crate) fn uefi(&self, variables: &Path) -> Result<Vec<String>> {
        let folder = self.folder.as_ref().ok_or_else(|| {
            Error::new("UEFI comes only with the QEMU of a named version".to_owned())
        })?;
        let firmware = folder.join("firmware");
        let copy = variables.join("variables.fd");
        if !copy.is_file() {
            copy_file(&firmware.join("OVMF_VARS_4M.fd"), &copy)?;
        }
        let drive = |unit: u8, path: &Path, read_only: &str| {
            let path = path.display().to_string().replace(',', ",,");
            format!("if=pflash,format=raw,unit={unit},readonly={read_only},file={path}")
        };
        Ok(vec![
            "-drive".to_owned(),
            drive(0, &firmware.join("OVMF_CODE_4M.fd"), "on"),
            "-drive".to_owned(),
            drive(1, &copy, "off"),
        ])
    }

    /// The option of a chardev that makes it connect again after a second.
    pub(crate) fn reconnect_option(&self) -> Result<&'static str> {
        let text = run(self.command().arg("--version"))?;
        // `reconnect` is deprecated since 9.2, which brought the other one.
        Ok(match parse_version(&String::from_utf8_lossy(&text)) {
            Some(version) if version >= (9, 2) => "reconnect-ms=1000",
            _ => "reconnect=1",
        })
    }
}

/// Finds 10 and 0 in `QEMU emulator version 10.0.13 (...)`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (_, version) = text.split_once("version ")?;
    let mut numbers = version.split(|char: char| !char.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Downloads, unpacks, picks, and renames the result to `folder`.
fn fetch(cache: &Cache, version: QemuVersion, folder: &Path) -> Result<()> {
    let apt = Apt::new(cache, version.suites())?;
    let root = apt.unpack_with_dependencies(&PACKAGES)?;
    let picked = apt.path("picked");
    pick(&root, &picked)?;
    fs::rename(&picked, folder).map_err(Error::io(format!("rename to {}", folder.display())))
}

/// Copies what a guest needs from an unpacked system.
fn pick(root: &Path, picked: &Path) -> Result<()> {
    for name in ["lib", "firmware", MODULES] {
        let path = picked.join(name);
        fs::create_dir_all(&path).map_err(Error::io(format!("create {}", path.display())))?;
    }
    let libraries = LIBRARIES.map(|folder| root.join(folder));
    let [first, second] = &libraries;
    let loader = match first.join(LOADER) {
        loader if loader.is_file() => loader,
        _ => second.join(LOADER),
    };
    let program = root.join("usr/bin").join(QEMU);
    let list = run(Command::new(&loader)
        .arg("--library-path")
        .arg(format!("{}:{}", first.display(), second.display()))
        .arg("--list")
        .arg(&program))?;
    copy_file(&loader, &picked.join("lib").join(LOADER))?;
    copy_file(&program, &picked.join(QEMU))?;
    for library in below(&String::from_utf8_lossy(&list), root) {
        copy_file(&library, &picked.join("lib").join(name_of(&library)))?;
    }
    let tcg = first.join("qemu").join(TCG);
    if tcg.is_file() {
        copy_file(&tcg, &picked.join(MODULES).join(TCG))?;
    }
    for file in FIRMWARE {
        let file = root.join("usr/share").join(file);
        copy_file(&file, &picked.join("firmware").join(name_of(&file)))?;
    }
    Ok(())
}

/// The libraries in what the loader prints that come from `folder`: lines are `name => /path (address)`.
fn below(list: &str, folder: &Path) -> Vec<PathBuf> {
    list.lines()
        .filter_map(|line| line.split_once(" => "))
        .filter_map(|(_, found)| found.rsplit_once(" (").map(|(path, _)| PathBuf::from(path)))
        .filter(|path| path.starts_with(folder) && path.file_name().is_some_and(|n| n != LOADER))
        .collect()
}

fn name_of(path: &Path) -> &Path {
    path.file_name().map_or(path, Path::new)
}

/// The file itself, where `from` is a link to it.
fn copy_file(from: &Path, to: &Path) -> Result<()> {
    let copying = || Error::io(format!("copy {} to {}", from.display(), to.display()));
    fs::copy(from, to).map_err(copying())?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(copying())
}

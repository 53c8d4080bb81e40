//! The QEMU that runs a guest: this machine's, or that of a Debian release.
//!
//! The tests of the front-ends run several versions, and `vfio-user-pci` came with QEMU 11.1. What is fetched is reduced to
//! the program, its libraries, three files of the BIOS and two of the UEFI firmware, and runs from the cache.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::debian::{Apt, Release};
use crate::error::{Error, Result, find_program, run};

/// The programs, and the firmware for BIOS and UEFI guests.
const PACKAGES: [&str; 3] = ["qemu-system-x86", "seabios", "ovmf"];
const QEMU: &str = "qemu-system-x86_64";
/// Where libraries are: Debian 12's packages still have some in the second.
const LIBRARIES: [&str; 2] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"];
const LOADER: &str = "ld-linux-x86-64.so.2";
/// The BIOS, and what it runs to start a guest with `-kernel`; the UEFI firmware and its variables.
const FIRMWARE: [&str; 5] = [
    "seabios/bios-256k.bin",
    "qemu/kvmvapic.bin",
    "qemu/linuxboot_dma.bin",
    "OVMF/OVMF_CODE_4M.fd",
    "OVMF/OVMF_VARS_4M.fd",
];
/// What 7.2 loads to emulate a processor; newer ones have it built in.
const MODULES: &str = "qemu";
const TCG: &str = "accel-tcg-x86_64.so";
/// A package and its version in each line.
const VERSIONS: &str = "versions";

/// A QEMU of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum QemuVersion {
    /// 7.2, of Debian 12.
    V7_2,
    /// 10.0, of Debian 13.
    V10_0,
    /// 11.1, of Debian 13's backports.
    V11_1,
}

impl QemuVersion {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::V7_2, Self::V10_0, Self::V11_1];

    /// Its first two numbers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V7_2 => "7.2",
            Self::V10_0 => "10.0",
            Self::V11_1 => "11.1",
        }
    }

    const fn release(self) -> Release {
        match self {
            Self::V7_2 => Release::Bookworm,
            Self::V10_0 => Release::Trixie,
            Self::V11_1 => Release::TrixieBackports,
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

    /// That of a Debian release; the first call fetches it (50 MB to 70 MB).
    pub(crate) fn of(cache: &Cache, version: QemuVersion) -> Result<Self> {
        let folder = cache.folder().join(format!("qemu-{}", version.name()));
        if !folder.is_dir() {
            fetch(cache, version.release(), &folder)?;
        }
        Ok(Self::unpacked(folder))
    }

    /// One that has vfio-user: this machine's, or Debian's backport.
    pub(crate) fn with_vfio_user(cache: &Cache) -> Result<Self> {
        let installed = Self::installed()?;
        if installed.has_vfio_user()? {
            return Ok(installed);
        }
        let fetched = Self::of(cache, QemuVersion::V11_1).map_err(|error| match error {
            Error::NoPackages { detail, .. } => Error::NoVfioUser { detail },
            other => other,
        })?;
        if fetched.has_vfio_user()? {
            return Ok(fetched);
        }
        Err(Error::NoVfioUser {
            detail: "that of Debian's backports has none either".to_owned(),
        })
    }

    /// Starts with its own loader: this machine's C library may be older.
    fn unpacked(folder: PathBuf) -> Self {
        let path = |name: &str| folder.join(name).display().to_string();
        Self {
            program: folder.join("lib").join(LOADER),
            arguments: vec![
                "--library-path".to_owned(),
                path("lib"),
                path(QEMU),
                "-L".to_owned(),
                path("firmware"),
            ],
            folder: Some(folder),
        }
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

    /// A firmware file that was unpacked with it.
    pub(crate) fn firmware_file(&self, name: &str) -> Option<PathBuf> {
        Some(self.folder.as_ref()?.join("firmware").join(name))
    }

    /// The packages that were unpacked, each with its version.
    pub(crate) fn versions(&self) -> Result<Vec<(String, String)>> {
        let Some(folder) = &self.folder else {
            return Ok(Vec::new());
        };
        read_versions(&folder.join(VERSIONS))
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

    /// Asks it. Its status says nothing: it is 0 also for a device that is not there.
    fn has_vfio_user(&self) -> Result<bool> {
        let help = run(self.command().args(["-device", "vfio-user-pci,help"]));
        match help {
            Ok(text) => Ok(text.starts_with(b"vfio-user-pci options")),
            Err(Error::CommandFailed { .. }) => Ok(false),
            Err(other) => Err(other),
        }
    }
}

/// Finds 10 and 0 in `QEMU emulator version 10.0.13 (...)`.
fn parse_version(text: &str) -> Option<(u32, u32)> {
    let (_, version) = text.split_once("version ")?;
    let mut numbers = version.split(|char: char| !char.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// Lines of `name version`.
pub(crate) fn read_versions(path: &Path) -> Result<Vec<(String, String)>> {
    let text = fs::read_to_string(path).map_err(Error::io(format!("read {}", path.display())))?;
    let pairs = text.lines().filter_map(|line| line.split_once(' '));
    Ok(pairs
        .map(|(name, version)| (name.to_owned(), version.to_owned()))
        .collect())
}

/// The reverse of [`read_versions`].
pub(crate) fn write_versions(path: &Path, versions: &[(String, String)]) -> Result<()> {
    let lines: String = versions
        .iter()
        .map(|(name, version)| format!("{name} {version}\n"))
        .collect();
    fs::write(path, lines).map_err(Error::io(format!("write {}", path.display())))
}

/// Downloads, unpacks, picks, and renames the result to `folder`.
fn fetch(cache: &Cache, release: Release, folder: &Path) -> Result<()> {
    let apt = Apt::new(cache, release)?;
    apt.unpack_with_dependencies(&PACKAGES)?;
    let picked = apt.path("picked");
    pick(&apt.root(), &picked)?;
    write_versions(&picked.join(VERSIONS), &apt.versions(&PACKAGES)?)?;
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
    copy(&loader, &picked.join("lib").join(LOADER))?;
    copy(&program, &picked.join(QEMU))?;
    for library in below(&String::from_utf8_lossy(&list), root) {
        copy(&library, &picked.join("lib").join(name_of(&library)))?;
    }
    let tcg = first.join("qemu").join(TCG);
    if tcg.is_file() {
        copy(&tcg, &picked.join(MODULES).join(TCG))?;
    }
    for file in FIRMWARE {
        let file = root.join("usr/share").join(file);
        copy(&file, &picked.join("firmware").join(name_of(&file)))?;
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
fn copy(from: &Path, to: &Path) -> Result<()> {
    let copying = || Error::io(format!("copy {} to {}", from.display(), to.display()));
    fs::copy(from, to).map_err(copying())?;
    fs::set_permissions(to, fs::Permissions::from_mode(0o755)).map_err(copying())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_of_the_unpacked_system_are_taken() {
        let list = "\tlinux-vdso.so.1 (0x00007ffc)\n\
                    \tlibc.so.6 => /a b/usr/lib/libc.so.6 (0x00007f2a)\n\
                    \tlibm.so.6 => /lib/libm.so.6 (0x00007f2b)\n\
                    \t/lib64/ld-linux-x86-64.so.2 => /a b/usr/lib/ld-linux-x86-64.so.2 (0x00007f2c)\n";
        assert_eq!(
            below(list, Path::new("/a b/usr/lib")),
            [Path::new("/a b/usr/lib/libc.so.6")]
        );
    }

    #[test]
    fn the_version_is_read_from_what_qemu_prints() {
        let version = |text| parse_version(text);
        let text = "QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright\n";
        assert_eq!(version(text), Some((7, 2)));
        assert_eq!(version("QEMU emulator version 10.0.13\n"), Some((10, 0)));
        assert_eq!(version("something else"), None);
    }
}

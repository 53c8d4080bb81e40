//! The QEMU that runs a guest: this machine's, or a newer one for devices over vfio-user and for guests that move.
//!
//! `vfio-user-pci` came with QEMU 11.1. Where the installed one lacks it, Debian's backports have it: apt resolves
//! and verifies the packages as for an empty system, with lists and archives of its own; they are unpacked, never
//! installed, and reduced to the program, its libraries and three firmware files. No root rights are needed. The
//! system's packages and lists stay as they are; its settings of apt count, such as a proxy.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::error::{Error, Result, debian_program, find_program, run};

/// The release for which the backports are, and they themselves.
const SUITES: [&str; 2] = ["trixie", "trixie-backports"];
const MIRROR: &str = "http://deb.debian.org/debian";
/// What signs them.
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
const PACKAGES: [&str; 2] = ["qemu-system-x86", "seabios"];
const QEMU: &str = "qemu-system-x86_64";
const LIBRARIES: &str = "usr/lib/x86_64-linux-gnu";
const LOADER: &str = "ld-linux-x86-64.so.2";
/// The BIOS, and what it runs to start a guest with `-kernel`.
const FIRMWARE: [&str; 3] = [
    "seabios/bios-256k.bin",
    "qemu/kvmvapic.bin",
    "qemu/linuxboot_dma.bin",
];

/// How a QEMU is called.
#[derive(Clone, Debug)]
pub(crate) struct Emulator {
    program: PathBuf,
    /// Stand before all others.
    arguments: Vec<String>,
}

impl Emulator {
    /// The one of this machine.
    pub(crate) fn installed() -> Result<Self> {
        Ok(Self {
            program: find_program(QEMU, "qemu-system-x86")?,
            arguments: Vec::new(),
        })
    }

    /// One that has vfio-user: this machine's, or Debian's backport; the first call fetches that (50 MB).
    pub(crate) fn with_vfio_user(cache: &Cache) -> Result<Self> {
        let installed = Self::installed()?;
        if installed.has_vfio_user()? {
            return Ok(installed);
        }
        let folder = cache.folder().join("qemu");
        if !folder.is_dir() {
            fetch(cache, &folder)?;
        }
        let fetched = Self::unpacked(&folder);
        if fetched.has_vfio_user()? {
            return Ok(fetched);
        }
        Err(Error::NoVfioUser {
            detail: format!("that of {MIRROR} {SUITES:?} has none either"),
        })
    }

    /// Starts with its own loader: this machine's C library may be older.
    fn unpacked(folder: &Path) -> Self {
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
        }
    }

    /// A command to which arguments are added.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
        command
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

/// Downloads, unpacks, picks, and renames the result to `folder`.
fn fetch(cache: &Cache, folder: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::NotDebian {
            found: std::env::consts::ARCH.to_owned(),
        });
    }
    if !Path::new(KEYRING).is_file() {
        return Err(Error::NoVfioUser {
            detail: format!("{KEYRING} is missing: apt-get install debian-archive-keyring"),
        });
    }
    let scratch = cache.scratch()?;
    let apt = Apt::new(scratch.path())?;
    apt.get(&["update"])?;
    let mut install = vec![
        "--yes",
        "--no-install-recommends",
        "--download-only",
        "--target-release",
        SUITES[1],
        "install",
    ];
    install.extend(PACKAGES);
    apt.get(&install)?;

    let root = scratch.path().join("root");
    let dpkg_deb = debian_program("dpkg-deb")?;
    for archive in entries(&apt.archives())? {
        if archive.extension().is_some_and(|ending| ending == "deb") {
            run(Command::new(&dpkg_deb).arg("-x").arg(&archive).arg(&root))?;
        }
    }
    let picked = scratch.path().join("picked");
    pick(&root, &picked)?;
    fs::rename(&picked, folder).map_err(Error::io(format!("rename to {}", folder.display())))
}

/// An apt that knows of no installed package and leaves the system's files alone.
struct Apt<'a> {
    program: PathBuf,
    folder: &'a Path,
}

impl<'a> Apt<'a> {
    fn new(folder: &'a Path) -> Result<Self> {
        let apt = Self {
            program: debian_program("apt-get")?,
            folder,
        };
        for name in ["lists/partial", "archives/partial"] {
            let path = folder.join(name);
            fs::create_dir_all(&path).map_err(Error::io(format!("create {}", path.display())))?;
        }
        let sources =
            SUITES.map(|suite| format!("deb [signed-by={KEYRING}] {MIRROR} {suite} main\n"));
        for (name, content) in [
            ("status", String::new()),
            ("sources.list", sources.concat()),
        ] {
            let path = folder.join(name);
            fs::write(&path, content).map_err(Error::io(format!("write {}", path.display())))?;
        }
        Ok(apt)
    }

    /// Where the packages come to.
    fn archives(&self) -> PathBuf {
        self.folder.join("archives")
    }

    fn get(&self, arguments: &[&str]) -> Result<()> {
        let path = |name: &str| self.folder.join(name).display().to_string();
        let settings = [
            format!("Dir::State={}", path("")),
            format!("Dir::State::lists={}", path("lists")),
            format!("Dir::State::status={}", path("status")),
            format!("Dir::Cache={}", path("")),
            format!("Dir::Cache::archives={}", path("archives")),
            format!("Dir::Etc::sourcelist={}", path("sources.list")),
            "Dir::Etc::sourceparts=/dev/null".to_owned(),
            "Dir::Etc::preferences=/dev/null".to_owned(),
            "Dir::Etc::preferencesparts=/dev/null".to_owned(),
            "APT::Architecture=amd64".to_owned(),
            "APT::Architectures=amd64".to_owned(),
            // As root, apt would download as a user who cannot write here.
            "APT::Sandbox::User=root".to_owned(),
            // A list that cannot be fetched is an error and not a warning.
            "APT::Update::Error-Mode=any".to_owned(),
            // Of the lists, only those of packages.
            "Acquire::Languages=none".to_owned(),
            "Acquire::IndexTargets::deb::DEP-11::DefaultEnabled=false".to_owned(),
            "Acquire::Retries=3".to_owned(),
        ];
        let mut command = Command::new(&self.program);
        command.arg("-q").env("LC_ALL", "C");
        for setting in settings {
            command.args(["-o", &setting]);
        }
        match run(command.args(arguments)) {
            Ok(_) => Ok(()),
            Err(Error::CommandFailed { output, .. }) => Err(Error::NoVfioUser {
                detail: format!(
                    "from {MIRROR}, `apt-get {}`:\n{output}",
                    arguments.join(" ")
                ),
            }),
            Err(other) => Err(other),
        }
    }
}

/// Copies what a guest needs from an unpacked system.
fn pick(root: &Path, picked: &Path) -> Result<()> {
    for name in ["lib", "firmware"] {
        let path = picked.join(name);
        fs::create_dir_all(&path).map_err(Error::io(format!("create {}", path.display())))?;
    }
    let libraries = root.join(LIBRARIES);
    let loader = libraries.join(LOADER);
    let program = root.join("usr/bin").join(QEMU);
    let list = run(Command::new(&loader)
        .arg("--library-path")
        .arg(&libraries)
        .arg("--list")
        .arg(&program))?;
    copy(&loader, &picked.join("lib").join(LOADER))?;
    copy(&program, &picked.join(QEMU))?;
    for library in below(&String::from_utf8_lossy(&list), &libraries) {
        copy(&library, &picked.join("lib").join(name_of(&library)))?;
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

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let reading = || Error::io(format!("read {}", folder.display()));
    fs::read_dir(folder)
        .map_err(reading())?
        .map(|entry| entry.map(|entry| entry.path()).map_err(reading()))
        .collect()
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
}

//! Everything that a guest has before it has a disk: a shell, the file-system tools, the modules,
//! the scripts of the scenarios, and pseudo-random bytes to write.
//!
//! One archive serves every scenario; which one runs is on the kernel's command line. Scenarios that call programs of further packages
//! boot from another archive, which has these besides: other guests do without them.
//! The tools are those of this machine, copied with the libraries that `ldd` names.

use std::collections::BTreeSet;
use std::fs;
use std::io::BufWriter;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::cpio::Archive;
use crate::error::{Error, Result, find_program, run};
use crate::kernel::Kernel;

/// Programs beyond busybox: (name in the guest, program here, its package).
/// busybox has poorer ones (no ext4, no `blkdiscard -z`), and users have these.
const TOOLS: [(&str, &str, &str); 4] = [
    ("mkfs.ext4", "mke2fs", "e2fsprogs"),
    ("e2fsck", "e2fsck", "e2fsprogs"),
    ("blkdiscard", "blkdiscard", "util-linux"),
    ("fstrim", "fstrim", "util-linux"),
];

/// A package with programs that only some scenarios call; they have the same names in the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExtraPackage {
    /// Sets up the kernel's NBD client.
    NbdClient,
    /// Sends SCSI commands.
    Sg3Utils,
}

impl ExtraPackage {
    /// All of them.
    pub(crate) const ALL: [Self; 2] = [Self::NbdClient, Self::Sg3Utils];

    const fn name(self) -> &'static str {
        match self {
            Self::NbdClient => "nbd-client",
            Self::Sg3Utils => "sg3-utils",
        }
    }

    const fn programs(self) -> &'static [&'static str] {
        match self {
            Self::NbdClient => &["nbd-client"],
            Self::Sg3Utils => &SG3_UTILS,
        }
    }
}

const SG3_UTILS: [&str; 20] = [
    "sg_compare_and_write",
    "sg_get_lba_status",
    "sg_inq",
    "sg_logs",
    "sg_luns",
    "sg_modes",
    "sg_opcodes",
    "sg_persist",
    "sg_raw",
    "sg_readcap",
    "sg_requests",
    "sg_reset",
    "sg_senddiag",
    "sg_start",
    "sg_sync",
    "sg_turs",
    "sg_unmap",
    "sg_verify",
    "sg_vpd",
    "sg_write_same",
];

/// `/init` and what it calls.
const SCRIPTS: [(&str, &str); 22] = [
    ("init", include_str!("init/init.sh")),
    ("scripts/lib.sh", include_str!("init/lib.sh")),
    ("scripts/first_boot.sh", include_str!("init/first_boot.sh")),
    (
        "scripts/second_boot.sh",
        include_str!("init/second_boot.sh"),
    ),
    (
        "scripts/readonly_boot.sh",
        include_str!("init/readonly_boot.sh"),
    ),
    ("scripts/crashes.sh", include_str!("init/crashes.sh")),
    ("scripts/full_disk.sh", include_str!("init/full_disk.sh")),
    ("scripts/discard.sh", include_str!("init/discard.sh")),
    ("scripts/hot_plug.sh", include_str!("init/hot_plug.sh")),
    ("scripts/controller.sh", include_str!("init/controller.sh")),
    ("scripts/resize.sh", include_str!("init/resize.sh")),
    (
        "scripts/host_adapter.sh",
        include_str!("init/host_adapter.sh"),
    ),
    ("scripts/load.sh", include_str!("init/load.sh")),
    (
        "scripts/controller_resets.sh",
        include_str!("init/controller_resets.sh"),
    ),
    ("scripts/nbd.sh", include_str!("init/nbd.sh")),
    ("scripts/sense.sh", include_str!("init/sense.sh")),
    ("scripts/sg3.sh", include_str!("init/sg3.sh")),
    ("scripts/sg3_media.sh", include_str!("init/sg3_media.sh")),
    ("scripts/booted.sh", include_str!("init/booted.sh")),
    ("scripts/installed.sh", include_str!("init/installed.sh")),
    ("scripts/files.sh", include_str!("init/files.sh")),
    ("scripts/rounds.sh", include_str!("init/rounds.sh")),
];

/// Bytes in `/pattern`; no file that a scenario writes is longer.
const PATTERN_LEN_BYTES: usize = 16 << 20;
/// Any constant does: the same bytes in each run make failures comparable.
const PATTERN_SEED: u64 = 0x626c_6f63_6b70_6c6e;

/// Builds the archive `name` in the cache folder and returns its path.
pub(crate) fn build(cache: &Cache, kernel: &Kernel, name: &str) -> Result<PathBuf> {
    let path = cache.folder().join(name);
    let scratch = cache.scratch()?;
    let unfinished = scratch.path().join("initramfs.cpio");
    let file = fs::File::create(&unfinished)
        .map_err(Error::io(format!("create {}", unfinished.display())))?;
    let writing = || Error::io(format!("write {}", unfinished.display()));

    let mut archive = Archive::new(BufWriter::new(file));
    for folder in ["dev", "proc", "sys", "tmp", "mnt"] {
        archive.folder(folder).map_err(writing())?;
    }
    archive
        .executable("bin/busybox", &read(&busybox()?)?)
        .map_err(writing())?;
    archive.symlink("bin/sh", "busybox").map_err(writing())?;
    for (name, script) in SCRIPTS {
        archive
            .executable(name, script.as_bytes())
            .map_err(writing())?;
    }
    let mut libraries = BTreeSet::new();
    for (name, program, package) in TOOLS {
        let program = find_program(program, package)?;
        libraries.extend(shared_libraries(&program)?);
        archive
            .executable(&format!("tools/{name}"), &read(&program)?)
            .map_err(writing())?;
    }
    for library in &libraries {
        let name = library.trim_start_matches('/');
        archive
            .executable(name, &read(Path::new(library))?)
            .map_err(writing())?;
    }
    let mut order = String::new();
    for module in &kernel.modules {
        let name = module
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        archive
            .file(&format!("modules/{name}"), &read(module)?)
            .map_err(writing())?;
        order.push_str(name);
        order.push('\n');
    }
    archive
        .file("modules/order", order.as_bytes())
        .map_err(writing())?;
    archive.file("pattern", &pattern()).map_err(writing())?;
    archive
        .finish()
        .and_then(|mut out| std::io::Write::flush(&mut out))
        .map_err(writing())?;
    fs::rename(&unfinished, &path).map_err(Error::io(format!("rename to {}", path.display())))?;
    Ok(path)
}

/// Builds the archive that has a package's programs besides what is in `base`, and returns its path.
///
/// # Errors
/// [`Error::MissingProgram`] if the package is not installed.
pub(crate) fn build_with(cache: &Cache, base: &Path, extra: ExtraPackage) -> Result<PathBuf> {
    let name = format!("initramfs-{}.cpio", extra.name());
    let path = cache.folder().join(&name);
    let scratch = cache.scratch()?;
    let unfinished = scratch.path().join(&name);
    let mut programs = Vec::new();
    for name in extra.programs() {
        programs.push((*name, find_program(name, extra.name())?));
    }
    extend(base, &programs, &unfinished)?;
    fs::rename(&unfinished, &path).map_err(Error::io(format!("rename to {}", path.display())))?;
    Ok(path)
}

/// Writes the archive at `base` to `to`, with programs and their libraries behind it; each is `/tools/NAME`.
///
/// The kernel unpacks archives one after the other; what they both have is the second's.
pub(crate) fn extend(base: &Path, programs: &[(&str, PathBuf)], to: &Path) -> Result<()> {
    fs::copy(base, to).map_err(Error::io(format!("copy to {}", to.display())))?;
    let writing = || Error::io(format!("write {}", to.display()));
    let file = fs::File::options()
        .append(true)
        .open(to)
        .map_err(writing())?;
    let mut archive = Archive::new(BufWriter::new(file));
    let mut libraries = BTreeSet::new();
    for (name, program) in programs {
        libraries.extend(shared_libraries(program)?);
        archive
            .executable(&format!("tools/{name}"), &read(program)?)
            .map_err(writing())?;
    }
    for library in &libraries {
        let name = library.trim_start_matches('/');
        archive
            .executable(name, &read(Path::new(library))?)
            .map_err(writing())?;
    }
    archive
        .finish()
        .and_then(|mut out| std::io::Write::flush(&mut out))
        .map_err(writing())
}

/// busybox without shared libraries: the guest's shell must not depend on what else we copy.
fn busybox() -> Result<PathBuf> {
    let path = find_program("busybox", "busybox-static")?;
    if shared_libraries(&path)?.is_empty() {
        Ok(path)
    } else {
        Err(Error::MissingProgram {
            program: "busybox (static)".to_owned(),
            package: "busybox-static",
        })
    }
}

/// The libraries that a program loads, and the loader itself, as absolute paths.
fn shared_libraries(program: &Path) -> Result<Vec<String>> {
    let ldd = find_program("ldd", "libc-bin")?;
    match run(Command::new(ldd).arg(program).env("LC_ALL", "C")) {
        Ok(text) => Ok(parse_ldd(&String::from_utf8_lossy(&text))),
        // What ldd says of a static program, with status 1.
        Err(Error::CommandFailed { output, .. }) if output.contains("not a dynamic executable") => {
            Ok(Vec::new())
        }
        Err(other) => Err(other),
    }
}

/// Lines are `name => /path (address)`, `/path (address)` for the loader, or a name without a file.
fn parse_ldd(text: &str) -> Vec<String> {
    text.lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
        .map(str::to_owned)
        .collect()
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

/// The 16 MiB of `/pattern`, of which guests write pieces: pseudo-random (splitmix64) and never repeating, so that misplaced data is
/// seen.
#[must_use]
pub fn pattern() -> Vec<u8> {
    let mut state = PATTERN_SEED;
    let mut bytes = Vec::with_capacity(PATTERN_LEN_BYTES);
    while bytes.len() < PATTERN_LEN_BYTES {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = state;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        bytes.extend_from_slice(&(word ^ (word >> 31)).to_le_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::parse_ldd;

    #[test]
    fn ldd_names_libraries_and_the_loader() {
        let text = "\tlinux-vdso.so.1 (0x00007eff21bbf000)\n\
                    \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007eff2196b000)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007eff21bc1000)\n";
        assert_eq!(
            parse_ldd(text),
            [
                "/lib/x86_64-linux-gnu/libc.so.6",
                "/lib64/ld-linux-x86-64.so.2"
            ]
        );
        assert!(parse_ldd("\tstatically linked\n").is_empty());
    }
}

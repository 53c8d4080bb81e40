//! Everything that a guest has before it has a disk: a shell, the file-system tools, the modules,
//! the scripts of the scenarios, and pseudo-random bytes to write.
//!
//! One archive serves every scenario; which ones run is on the kernel's command line.
//! The tools are those of this machine, copied with the libraries that `ldd` names.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufWriter, Write};
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

/// Programs that only some scenarios call: of nbd-client and sg3-utils. A guest does without what is not installed here.
const OPTIONAL_TOOLS: [&str; 21] = [
    "nbd-client",
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

/// Bytes in `/pattern`; no file that a scenario writes is longer.
const PATTERN_LEN_BYTES: usize = 16 << 20;
/// Any constant does: the same bytes in each run make failures comparable.
const PATTERN_SEED: u64 = 0x626c_6f63_6b70_6c6e;

/// The archives of a kernel.
#[derive(Debug)]
pub(crate) struct Initramfs {
    /// For QEMU.
    pub(crate) whole: PathBuf,
    /// For firmware, which reads slowly: compressed, without the pattern.
    pub(crate) small: PathBuf,
}

/// Builds the archives for a kernel in the cache folder.
pub(crate) fn build(cache: &Cache, kernel: &Kernel) -> Result<Initramfs> {
    let scratch = cache.scratch()?;
    let unfinished = scratch.path().join("initramfs.cpio");
    let file = fs::File::create(&unfinished).map_err(writing(&unfinished))?;
    let mut archive = Archive::new(BufWriter::new(file));
    for folder in ["dev", "proc", "sys", "tmp", "mnt"] {
        archive.folder(folder).map_err(writing(&unfinished))?;
    }
    let busybox = read(&busybox()?)?;
    archive
        .executable("bin/busybox", &busybox)
        .and_then(|()| archive.symlink("bin/sh", "busybox"))
        .map_err(writing(&unfinished))?;
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/init");
    for (name, script) in files(&init)? {
        let name = match &*name {
            "init.sh" => "init".to_owned(),
            _ => format!("scripts/{name}"),
        };
        let script = archive.executable(&name, &script);
        script.map_err(writing(&unfinished))?;
    }
    for (name, module) in files(&kernel.modules())? {
        let module = archive.file(&format!("modules/{name}"), &module);
        module.map_err(writing(&unfinished))?;
    }
    let mut programs = Vec::new();
    for (name, program, package) in TOOLS {
        programs.push((name, find_program(program, package)?));
    }
    for name in OPTIONAL_TOOLS {
        programs.extend(find_program(name, "").ok().map(|program| (name, program)));
    }
    add_programs(archive, &programs, &unfinished)?;
    let small = run(Command::new("gzip").arg("-1c").arg(&unfinished))?;
    let mut whole = append(&unfinished)?;
    whole
        .file("pattern", &pattern())
        .and_then(|()| whole.finish())
        .and_then(|mut out| out.flush())
        .map_err(writing(&unfinished))?;
    let path = |name: &str| kernel.modules().with_file_name(name);
    let initramfs = Initramfs {
        whole: path("initramfs.cpio"),
        small: path("initramfs.gz"),
    };
    fs::write(&initramfs.small, small).map_err(writing(&initramfs.small))?;
    fs::rename(&unfinished, &initramfs.whole).map_err(writing(&initramfs.whole))?;
    Ok(initramfs)
}

/// Another archive behind one.
fn append(path: &Path) -> Result<Archive<BufWriter<fs::File>>> {
    let file = fs::File::options().append(true).open(path);
    Ok(Archive::new(BufWriter::new(file.map_err(writing(path))?)))
}

/// Adds programs and their libraries, and ends the archive.
fn add_programs(
    mut archive: Archive<impl Write>,
    programs: &[(&str, PathBuf)],
    path: &Path,
) -> Result<()> {
    let mut libraries = BTreeSet::new();
    for (name, program) in programs {
        libraries.extend(shared_libraries(program)?);
        archive
            .executable(&format!("tools/{name}"), &read(program)?)
            .map_err(writing(path))?;
    }
    for library in &libraries {
        let name = library.trim_start_matches('/');
        archive
            .executable(name, &read(Path::new(library))?)
            .map_err(writing(path))?;
    }
    archive
        .finish()
        .and_then(|mut out| out.flush())
        .map_err(writing(path))
}

/// busybox without shared libraries: the guest's shell must not depend on what else we copy.
fn busybox() -> Result<PathBuf> {
    let path = find_program("busybox", "busybox-static")?;
    match shared_libraries(&path)?.is_empty() {
        true => Ok(path),
        false => Err(Error::new(
            "`busybox` here needs libraries: apt-get install busybox-static",
        )),
    }
}

/// The libraries that a program loads, and the loader itself, as absolute paths: lines are `name => /path (address)`, `/path (address)` for
/// the loader, or a name without a file.
fn shared_libraries(program: &Path) -> Result<Vec<String>> {
    let mut ldd = Command::new(find_program("ldd", "libc-bin")?);
    let lines = match run(ldd.arg(program).env("LC_ALL", "C")) {
        Ok(lines) => lines,
        // What ldd says of a static program, with status 1.
        Err(error) if error.to_string().contains("not a dynamic executable") => Vec::new(),
        Err(other) => return Err(other),
    };
    let lines = String::from_utf8_lossy(&lines);
    let paths = lines
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    Ok(paths.map(str::to_owned).collect())
}

/// The files of a folder in the order of their names.
fn files(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let mut files = Vec::new();
    let entries = fs::read_dir(folder).map_err(Error::io(format!("read {}", folder.display())))?;
    for entry in entries.filter_map(std::result::Result::ok) {
        let name = entry.file_name().to_string_lossy().into_owned();
        files.push((name, read(&entry.path())?));
    }
    files.sort();
    Ok(files)
}

fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

fn writing(path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
    Error::io(format!("write {}", path.display()))
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

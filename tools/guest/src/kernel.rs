//! Debian's own kernel as the guest's: the drivers that our users have, not a special build.
//!
//! It is that of this machine's release, or of a release that is named. The package is downloaded with apt (which checks
//! its signature), unpacked without installing, and reduced to the boot image and a dozen modules, which stay in the cache
//! folder. We do not build kernels and know no other distribution.

use std::fs;
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::cache::Cache;
use crate::debian::{Apt, debian_program, unpack_archives};
use crate::error::{Error, Result, find_program, run};
use crate::modules;

/// Always depends on the newest kernel of the release.
const META_PACKAGE: &str = "linux-image-amd64";
/// Changes with what is picked from the package.
const LAYOUT: u32 = 2;

/// A kernel of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelVersion {
    /// 6.1, of Debian 12.
    V6_1,
    /// 6.12, of Debian 13.
    V6_12,
}

impl KernelVersion {
    /// Its first two numbers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }

    const fn suite(self) -> &'static str {
        match self {
            Self::V6_1 => "bookworm",
            Self::V6_12 => "trixie",
        }
    }
}

/// A kernel in the cache.
#[derive(Debug)]
pub(crate) struct Kernel {
    folder: PathBuf,
}

impl Kernel {
    /// The boot image, for a boot loader.
    pub(crate) fn vmlinuz(&self) -> PathBuf {
        self.folder.join("vmlinuz")
    }

    /// What is in the boot image, for QEMU: an emulated processor takes seconds to decompress it. The image itself where it could not be
    /// decompressed.
    pub(crate) fn vmlinux(&self) -> PathBuf {
        self.folder.join("vmlinux")
    }

    /// Module files, named in the order in which they load.
    pub(crate) fn modules(&self) -> PathBuf {
        self.folder.join("modules")
    }
}

/// The kernel from the cache: that of this machine's release, or of another; the first call fetches it (about 70 MB).
pub(crate) fn kernel(cache: &Cache, version: Option<KernelVersion>) -> Result<Kernel> {
    let name = version.map_or("here", KernelVersion::name);
    let folder = cache.folder().join(format!("kernel-{name}-{LAYOUT}"));
    if !folder.is_dir() {
        if !cfg!(target_arch = "x86_64") {
            return Err(Error::new("guests here are x86-64, and use its kernel"));
        }
        let picked = match version {
            None => fetch(cache, &folder),
            Some(version) => fetch_of(cache, version, &folder),
        };
        picked?;
    }
    Ok(Kernel { folder })
}

/// Downloads the kernel of this machine's release.
fn fetch(cache: &Cache, folder: &Path) -> Result<()> {
    let depends = run(Command::new(debian_program("apt-cache")?)
        .args(["depends", META_PACKAGE])
        .env("LC_ALL", "C"))
    .map_err(|error| Error::new(format!("run `apt-get update` first: {error}")))?;
    let package = parse_depends(&String::from_utf8_lossy(&depends))?;
    let scratch = cache.scratch()?;
    run(Command::new(debian_program("apt-get")?)
        .args(["-q", "download", &package])
        .current_dir(scratch.path()))?;
    let root = scratch.path().join("root");
    unpack_archives(scratch.path(), &root)?;
    pick(&root, &scratch.path().join("picked"), folder)
}

/// Downloads the kernel of another release.
fn fetch_of(cache: &Cache, version: KernelVersion, folder: &Path) -> Result<()> {
    let apt = Apt::new(cache, &[version.suite()])?;
    let package = parse_depends(&apt.query(&["depends", META_PACKAGE])?)?;
    let root = apt.unpack_alone(&package)?;
    pick(&root, &apt.path("picked"), folder)
}

/// Finds `Depends: linux-image-6.1.0-56-amd64` in what `apt-cache depends` prints.
fn parse_depends(text: &str) -> Result<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
        .ok_or_else(|| Error::new(format!("apt knows no kernel for {META_PACKAGE}\n{text}")))
}

/// Copies what a guest needs from the unpacked package to `picked`, which then becomes `folder`.
fn pick(root: &Path, picked: &Path, folder: &Path) -> Result<()> {
    let boot = only_entry(&root.join("boot"), "vmlinuz-")?;
    // Debian moves /lib into /usr/lib; either is possible.
    let tree = [root.join("lib/modules"), root.join("usr/lib/modules")]
        .into_iter()
        .find(|candidate| candidate.is_dir())
        .ok_or_else(|| Error::new("the kernel's package has no lib/modules"))?;
    let modules = picked.join("modules");
    fs::create_dir_all(&modules).map_err(Error::io(format!("create {}", modules.display())))?;
    let write = |path: PathBuf, content: &[u8]| {
        fs::write(&path, content).map_err(Error::io(format!("write {}", path.display())))
    };
    let resolved = modules::resolve(&only_entry(&tree, "")?)?;
    for (number, module) in resolved.iter().enumerate() {
        write(
            modules.join(format!("{number:02}-{}.ko", module.name)),
            &module.object,
        )?;
    }
    let image = fs::read(&boot).map_err(Error::io(format!("read {}", boot.display())))?;
    let unpacked = decompress(&image);
    write(picked.join("vmlinux"), unpacked.as_ref().unwrap_or(&image))?;
    write(picked.join("vmlinuz"), &image)?;
    fs::rename(picked, folder).map_err(Error::io(format!("rename to {}", folder.display())))
}

/// The kernel in a boot image, as an ELF file: it is behind a header (the kernel's Documentation/arch/x86/boot.rst). `None` if it is
/// compressed otherwise than by xz, as Debian's are.
fn decompress(image: &[u8]) -> Option<Vec<u8>> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    };
    let start = (usize::from(*image.get(0x1f1)?) + 1) * 512 + number(0x248)?;
    // Behind what is compressed is its length.
    let payload = image.get(start..start + number(0x24c)?.checked_sub(4)?)?;
    let mut compressed = tempfile::tempfile().ok()?;
    compressed.write_all(payload).ok()?;
    compressed.rewind().ok()?;
    let xz = find_program("xz", "xz-utils").ok()?;
    let mut command = Command::new(xz);
    command.arg("-dc").stdin(compressed);
    let output = command.stderr(Stdio::null()).output().ok()?;
    output
        .stdout
        .starts_with(b"\x7fELF")
        .then_some(output.stdout)
}

/// The first entry of `folder` whose name begins so.
fn only_entry(folder: &Path, begin: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .map_err(Error::io(format!("read {}", folder.display())))?
        .filter_map(std::result::Result::ok)
        .find(|entry| entry.file_name().to_string_lossy().starts_with(begin))
        .map(|entry| entry.path())
        .ok_or_else(|| {
            Error::new(format!(
                "the kernel's package has no {begin}* in {}",
                folder.display()
            ))
        })
}

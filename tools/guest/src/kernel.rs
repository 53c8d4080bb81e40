//! Debian's own kernel as the guest's: the drivers that our users have, not a special build.
//!
//! It is that of this machine's release, or of a release that is named. The package is downloaded with apt (which checks
//! its signature), unpacked without installing, and reduced to the boot image and a dozen modules, which stay in the cache
//! folder. We do not build kernels and know no other distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cache::Cache;
use crate::debian::{Apt, Release};
use crate::emulator::write_versions;
use crate::error::{Error, Result, debian_program, run};
use crate::modules;

/// Always depends on the newest kernel of the release.
const META_PACKAGE: &str = "linux-image-amd64";

/// A package and its version.
const VERSIONS: &str = "versions";

/// The modules that were asked for when it was fetched.
const WANTED: &str = "wanted";

/// A kernel of a Debian release.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum KernelVersion {
    /// 6.1, of Debian 12.
    V6_1,
    /// 6.12, of Debian 13.
    V6_12,
}

impl KernelVersion {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::V6_1, Self::V6_12];

    /// Its first two numbers.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::V6_1 => "6.1",
            Self::V6_12 => "6.12",
        }
    }

    const fn release(self) -> Release {
        match self {
            Self::V6_1 => Release::Bookworm,
            Self::V6_12 => Release::Trixie,
        }
    }
}

/// A kernel in the cache.
#[derive(Debug)]
pub(crate) struct Kernel {
    /// The boot image.
    pub(crate) vmlinuz: PathBuf,
    /// Module files, in the order in which they load.
    pub(crate) modules: Vec<PathBuf>,
    /// The package's version, of a kernel of another release.
    pub(crate) versions: PathBuf,
}

/// The kernel from the cache: that of this machine's release, or of another; the first call fetches it (about 70 MB).
pub(crate) fn kernel(cache: &Cache, version: Option<KernelVersion>) -> Result<Kernel> {
    let folder = cache.folder().join(match version {
        None => "kernel".to_owned(),
        Some(version) => format!("kernel-{}", version.name()),
    });
    let wanted = modules::WANTED.join("\n");
    let is_current = fs::read_to_string(folder.join(WANTED)).is_ok_and(|list| list == wanted);
    if !is_current {
        remove_outdated(cache, &folder)?;
        match version {
            None => fetch(cache, &folder)?,
            Some(version) => fetch_of(cache, version, &folder)?,
        }
    }
    let order = folder.join("order");
    let order =
        fs::read_to_string(&order).map_err(Error::io(format!("read {}", order.display())))?;
    let modules = order
        .lines()
        .map(|name| folder.join(format!("{name}.ko")))
        .collect();
    Ok(Kernel {
        vmlinuz: folder.join("vmlinuz"),
        modules,
        versions: folder.join(VERSIONS),
    })
}

/// Removes a kernel that lacks modules which are wanted today, if there is one. It disappears at once.
fn remove_outdated(cache: &Cache, folder: &Path) -> Result<()> {
    if !folder.is_dir() {
        return Ok(());
    }
    let scratch = cache.scratch()?;
    fs::rename(folder, scratch.path().join("outdated"))
        .map_err(Error::io(format!("remove {}", folder.display())))
}

/// Downloads the kernel of this machine's release.
fn fetch(cache: &Cache, folder: &Path) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        return Err(Error::NotDebian {
            found: std::env::consts::ARCH.to_owned(),
        });
    }
    let apt_get = debian_program("apt-get")?;
    let dpkg_deb = debian_program("dpkg-deb")?;
    let package = package_name()?;

    let scratch = cache.scratch()?;
    run(Command::new(apt_get)
        .args(["-q", "download", &package])
        .current_dir(scratch.path()))?;
    let archive = find(scratch.path(), |name| name.ends_with(".deb"), &package)?;
    let root = scratch.path().join("root");
    run(Command::new(dpkg_deb).arg("-x").arg(&archive).arg(&root))?;
    let picked = scratch.path().join("picked");
    pick(&root, &package, &picked)?;
    fs::rename(&picked, folder).map_err(Error::io(format!("rename to {}", folder.display())))
}

/// Downloads the kernel of another release.
fn fetch_of(cache: &Cache, version: KernelVersion, folder: &Path) -> Result<()> {
    let apt = Apt::new(cache, version.release())?;
    let text = apt.query(&["depends", META_PACKAGE])?;
    let package = parse_depends(&text).ok_or_else(|| Error::NoKernelPackage {
        detail: text.clone(),
    })?;
    apt.unpack_alone(&package)?;
    let picked = apt.path("picked");
    pick(&apt.root(), &package, &picked)?;
    write_versions(&picked.join(VERSIONS), &apt.versions(&[&package])?)?;
    fs::rename(&picked, folder).map_err(Error::io(format!("rename to {}", folder.display())))
}

/// Copies what a guest needs from the unpacked package to the new folder `picked`.
fn pick(root: &Path, package: &str, picked: &Path) -> Result<()> {
    let release = package.trim_start_matches("linux-image-").to_owned();
    let vmlinuz = find(
        &root.join("boot"),
        |name| name.starts_with("vmlinuz-"),
        &release,
    )?;
    // Debian moves /lib into /usr/lib; either is possible.
    let tree = [root.join("lib/modules"), root.join("usr/lib/modules")]
        .into_iter()
        .find(|candidate| candidate.is_dir())
        .ok_or_else(|| Error::KernelIncomplete {
            release: release.clone(),
            what: "lib/modules".to_owned(),
        })?;
    let tree = find(&tree, |_| true, &release)?;

    fs::create_dir(picked).map_err(Error::io(format!("create {}", picked.display())))?;
    let write = |name: &str, content: &[u8]| {
        let path = picked.join(name);
        fs::write(&path, content).map_err(Error::io(format!("write {}", path.display())))
    };
    let mut order = String::new();
    for module in modules::resolve(&tree, &release)? {
        write(&format!("{}.ko", module.name), &module.object)?;
        order.push_str(&module.name);
        order.push('\n');
    }
    write("order", order.as_bytes())?;
    write(WANTED, modules::WANTED.join("\n").as_bytes())?;
    let image = fs::read(&vmlinuz).map_err(Error::io(format!("read {}", vmlinuz.display())))?;
    write("vmlinuz", &image)
}

/// The package that [`META_PACKAGE`] stands for today.
fn package_name() -> Result<String> {
    let apt_cache = debian_program("apt-cache")?;
    match run(Command::new(apt_cache)
        .args(["depends", META_PACKAGE])
        .env("LC_ALL", "C"))
    {
        Ok(text) => {
            parse_depends(&String::from_utf8_lossy(&text)).ok_or_else(|| Error::NoKernelPackage {
                detail: String::from_utf8_lossy(&text).into_owned(),
            })
        }
        Err(Error::CommandFailed { output, .. }) => Err(Error::NoKernelPackage { detail: output }),
        Err(other) => Err(other),
    }
}

/// Finds `Depends: linux-image-6.1.0-56-amd64` in what `apt-cache depends` prints.
fn parse_depends(text: &str) -> Option<String> {
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|name| name.starts_with("linux-image-"))
        .map(str::to_owned)
}

/// The first entry of `folder` whose name matches.
fn find(folder: &Path, matches: impl Fn(&str) -> bool, release: &str) -> Result<PathBuf> {
    fs::read_dir(folder)
        .map_err(Error::io(format!("read {}", folder.display())))?
        .filter_map(std::result::Result::ok)
        .find(|entry| entry.file_name().to_str().is_some_and(&matches))
        .map(|entry| entry.path())
        .ok_or_else(|| Error::KernelIncomplete {
            release: release.to_owned(),
            what: format!("fitting file in {}", folder.display()),
        })
}

#[cfg(test)]
mod tests {
    use super::parse_depends;

    #[test]
    fn the_real_package_is_found_behind_the_meta_package() {
        let text = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n";
        assert_eq!(
            parse_depends(text).as_deref(),
            Some("linux-image-6.1.0-56-amd64")
        );
        let trixie =
            "linux-image-amd64\n  Depends: linux-base\n  Depends: linux-image-6.12.9+deb13-amd64\n";
        assert_eq!(
            parse_depends(trixie).as_deref(),
            Some("linux-image-6.12.9+deb13-amd64")
        );
        assert_eq!(parse_depends("linux-image-amd64\n"), None);
    }
}

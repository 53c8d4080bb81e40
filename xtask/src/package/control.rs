//! Control files of the package for dpkg: the folder `DEBIAN`.

use std::fs;
use std::path::{Path, PathBuf};

use crate::package::tools::{files, run_in, set_mode};
use crate::package::{cannot, source};

/// The package's version is the workspace's.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Writes it below `root`, in which everything else is already.
pub(crate) fn write(root: &Path, architecture: &str, libraries: &[String]) -> Result<(), String> {
    check_changelog()?;
    let mut installed = Vec::new();
    find_files(root, &mut installed)?;
    let debian = root.join("DEBIAN");
    fs::create_dir(&debian).map_err(cannot("make DEBIAN"))?;
    let put = |name: &str, text: &str, mode: u32| {
        let path = debian.join(name);
        fs::write(&path, text).map_err(cannot(format!("write {}", path.display())))?;
        set_mode(&path, mode)
    };
    put("md5sums", &sums(root, &installed)?, 0o644)?;
    put("conffiles", "/etc/blockplane/blockplane.toml\n", 0o644)?;
    let size = installed_kib(&installed)?;
    put("control", &control(architecture, libraries, size), 0o644)?;
    for script in SCRIPTS {
        let path = source("packaging/debian").join(script);
        let text = fs::read_to_string(&path);
        let text = text.map_err(cannot(format!("read {}", path.display())))?;
        put(script, &text, 0o755)?;
    }
    set_mode(&debian, 0o755)
}

/// Checks that the changelog's first entry is for this version.
fn check_changelog() -> Result<(), String> {
    let path = source("packaging/debian/changelog");
    let text = fs::read_to_string(&path).map_err(cannot(format!("read {}", path.display())))?;
    let first = text.lines().next().unwrap_or_default();
    if first.starts_with(&format!("blockplane ({VERSION}) ")) {
        return Ok(());
    }
    Err(format!(
        "packaging/debian/changelog begins with '{first}', but this is version {VERSION}: add an entry for it"
    ))
}

fn control(architecture: &str, libraries: &[String], installed_kib: u64) -> String {
    format!(
        "\
Package: blockplane
Version: {VERSION}
Architecture: {architecture}
Maintainer: The blockplane authors <authors@blockplane.example>
Installed-Size: {installed_kib}
Depends: {}, systemd | systemd-standalone-sysusers | systemd-sysusers
Section: admin
Priority: optional
Description: disks for virtual machines, by vhost-user-blk
 A daemon that runs beside virtual machine monitors (QEMU, Cloud Hypervisor
 and others) and serves raw images and block devices to their guests as
 virtio disks. It takes the options of qemu-storage-daemon, or a
 configuration file, and is looked at and changed over QMP.
",
        libraries.join(", ")
    )
}

/// All files below a folder; folders are not installed for their own sake.
fn find_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), String> {
    for path in files(folder)? {
        if path.is_dir() {
            find_files(&path, found)?;
        } else {
            found.push(path);
        }
    }
    Ok(())
}

/// What `dpkg --verify` compares with.
fn sums(root: &Path, installed: &[PathBuf]) -> Result<String, String> {
    let relative = installed.iter().map(|path| {
        let relative = path.strip_prefix(root).unwrap_or(path);
        relative.as_os_str()
    });
    let relative: Vec<_> = relative
        .filter(|path| !path.to_string_lossy().starts_with("etc/"))
        .collect();
    run_in(root, "md5sum", &relative)
}

fn installed_kib(installed: &[PathBuf]) -> Result<u64, String> {
    let sizes = installed.iter().map(|path| {
        let metadata = fs::metadata(path);
        let metadata = metadata.map_err(cannot(format!("look at {}", path.display())))?;
        Ok(metadata.len().div_ceil(1024))
    });
    sizes.sum()
}

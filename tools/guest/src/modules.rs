//! Kernel modules that a guest needs, in the order in which they load.
//!
//! Debian's package has no `modules.dep` (its install script makes that), so we read what
//! `depmod` would: the `.modinfo` section of each module, a run of NUL-terminated `key=value`.
//! We resolve names and nothing else: no aliases, no parameters, no symbol versions.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, find_program, run};

/// What every guest loads: the transports, the drivers of disks and of a network, the file system.
/// `crc32c_generic` is asked for by ext4 through a soft dependency, which has no file name in it.
pub(crate) const WANTED: [&str; 9] = [
    "virtio_pci",
    "virtio_blk",
    "virtio_scsi",
    "sd_mod",
    "sym53c8xx",
    "virtio_net",
    "nbd",
    "crc32c_generic",
    "ext4",
];

/// A module, decompressed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Module {
    /// Its name as `lsmod` shows it.
    pub(crate) name: String,
    /// The ELF object.
    pub(crate) object: Vec<u8>,
}

/// The wanted modules and what they depend on, in the order in which they load.
///
/// `folder` is `lib/modules/<release>`.
pub(crate) fn resolve(folder: &Path, release: &str) -> Result<Vec<Module>> {
    let mut files = HashMap::new();
    index(&folder.join("kernel"), &mut files)?;
    let builtin = fs::read_to_string(folder.join("modules.builtin")).map_err(Error::io(
        format!("read {}", folder.join("modules.builtin").display()),
    ))?;
    let builtin: HashSet<String> = builtin
        .lines()
        .filter_map(|line| module_name(Path::new(line)))
        .collect();

    let mut ordered = Vec::new();
    let mut done = HashSet::new();
    for name in WANTED {
        visit(name, &files, &builtin, release, &mut done, &mut ordered)?;
    }
    Ok(ordered)
}

/// Adds what `name` depends on, then `name`.
fn visit(
    name: &str,
    files: &HashMap<String, PathBuf>,
    builtin: &HashSet<String>,
    release: &str,
    done: &mut HashSet<String>,
    ordered: &mut Vec<Module>,
) -> Result<()> {
    if builtin.contains(name) || !done.insert(name.to_owned()) {
        return Ok(());
    }
    let path = files.get(name).ok_or_else(|| Error::KernelIncomplete {
        release: release.to_owned(),
        what: format!("module {name}"),
    })?;
    let object = read(path)?;
    for dependency in dependencies(&object) {
        visit(&dependency, files, builtin, release, done, ordered)?;
    }
    ordered.push(Module {
        name: name.to_owned(),
        object,
    });
    Ok(())
}

/// Every module file below `folder`, by module name.
fn index(folder: &Path, files: &mut HashMap<String, PathBuf>) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(Error::io(format!("read {}", folder.display())))?;
    for entry in entries {
        let path = entry
            .map_err(Error::io(format!("read {}", folder.display())))?
            .path();
        if path.is_dir() {
            index(&path, files)?;
        } else if let Some(name) = module_name(&path) {
            files.insert(name, path);
        }
    }
    Ok(())
}

/// `.../virtio-rng.ko.xz` is module `virtio_rng`: the kernel writes `_` for `-`.
fn module_name(path: &Path) -> Option<String> {
    let file = path.file_name()?.to_str()?;
    let (stem, _compression) = file.split_once(".ko")?;
    Some(stem.replace('-', "_"))
}

/// The module's object, decompressed by the tool that its ending names.
fn read(path: &Path) -> Result<Vec<u8>> {
    let (program, package) = match path.extension().and_then(|ending| ending.to_str()) {
        Some("xz") => ("xz", "xz-utils"),
        Some("zst") => ("zstd", "zstd"),
        _ => return fs::read(path).map_err(Error::io(format!("read {}", path.display()))),
    };
    run(Command::new(find_program(program, package)?)
        .arg("-dc")
        .arg(path))
}

/// The names in the object's `depends=` entry.
fn dependencies(object: &[u8]) -> Vec<String> {
    object
        .split(|byte| *byte == 0)
        .find_map(|entry| entry.strip_prefix(b"depends="))
        .map(|list| {
            String::from_utf8_lossy(list)
                .split(',')
                .filter(|name| !name.is_empty())
                .map(|name| name.replace('-', "_"))
                .collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as the package has it: module `a-b` needs `c`, which needs the built-in `d`.
    fn tree(modules: &[(&str, &str)], builtin: &str) -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir_all(folder.path().join("kernel/drivers/deep")).unwrap();
        for (file, depends) in modules {
            let object = format!("\x7fELF junk\0license=GPL\0depends={depends}\0name=x\0");
            fs::write(folder.path().join("kernel/drivers/deep").join(file), object).unwrap();
        }
        fs::write(folder.path().join("modules.builtin"), builtin).unwrap();
        folder
    }

    fn all_but(left_out: &str) -> Vec<(&'static str, &'static str)> {
        [
            ("virtio-pci.ko", "virtio_ring,virtio"),
            ("virtio.ko", "virtio_ring"),
            ("virtio_ring.ko", ""),
            ("virtio_blk.ko", "virtio"),
            ("virtio_scsi.ko", "scsi-mod,virtio"),
            ("sd_mod.ko", "scsi_mod"),
            ("sym53c8xx.ko", "scsi_mod"),
            ("virtio_net.ko", "virtio"),
            ("nbd.ko", ""),
            ("crc32c_generic.ko", ""),
            ("ext4.ko", ""),
        ]
        .into_iter()
        .filter(|(file, _)| *file != left_out)
        .collect()
    }

    #[test]
    fn a_module_loads_after_everything_it_depends_on() {
        let folder = tree(&all_but(""), "kernel/drivers/scsi/scsi_mod.ko\n");
        let order: Vec<String> = resolve(folder.path(), "6.1")
            .unwrap()
            .into_iter()
            .map(|module| module.name)
            .collect();
        assert_eq!(
            order,
            [
                "virtio_ring",
                "virtio",
                "virtio_pci",
                "virtio_blk",
                "virtio_scsi",
                "sd_mod",
                "sym53c8xx",
                "virtio_net",
                "nbd",
                "crc32c_generic",
                "ext4"
            ]
        );
    }

    #[test]
    fn a_missing_module_is_named() {
        let folder = tree(
            &all_but("virtio_ring.ko"),
            "kernel/drivers/scsi/scsi_mod.ko\n",
        );
        let error = resolve(folder.path(), "6.1").unwrap_err();
        assert_eq!(
            error.to_string(),
            "the kernel package 6.1 has no module virtio_ring"
        );
    }

    #[test]
    fn compressed_modules_are_read() {
        let folder = tempfile::tempdir().unwrap();
        let plain = folder.path().join("a.ko");
        for (tool, ending) in [("xz", "xz"), ("zstd", "zst")] {
            fs::write(&plain, b"depends=\0").unwrap();
            run(Command::new(tool).args(["-q", "-k"]).arg(&plain)).unwrap();
            let compressed = folder.path().join(format!("a.ko.{ending}"));
            assert_eq!(module_name(&compressed).as_deref(), Some("a"));
            assert_eq!(read(&compressed).unwrap(), b"depends=\0");
        }
    }
}

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
pub(crate) fn resolve(folder: &Path) -> Result<Vec<Module>> {
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
        visit(name, &files, &builtin, &mut done, &mut ordered)?;
    }
    Ok(ordered)
}

/// Adds what `name` depends on, then `name`.
fn visit(
    name: &str,
    files: &HashMap<String, PathBuf>,
    builtin: &HashSet<String>,
    done: &mut HashSet<String>,
    ordered: &mut Vec<Module>,
) -> Result<()> {
    if builtin.contains(name) || !done.insert(name.to_owned()) {
        return Ok(());
    }
    let path = files
        .get(name)
        .ok_or_else(|| Error::new(format!("the kernel's package has no module {name}")))?;
    let object = read(path)?;
    for dependency in dependencies(&object) {
        visit(&dependency, files, builtin, done, ordered)?;
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

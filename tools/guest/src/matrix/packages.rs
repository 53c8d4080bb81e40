//! The packages that the cells of the matrix need of Debian's releases.

use super::cell::Cell;
use crate::cache::Cache;
use crate::emulator::{Emulator, QemuVersion, read_versions};
use crate::error::Result;
use crate::kernel::KernelVersion;
use crate::parts::parts;

/// Where a front-end or a guest comes from.
#[derive(Clone, Debug)]
pub struct Packages {
    /// Such as `QEMU 10.0`.
    pub of: String,
    /// Debian's packages and their versions.
    pub versions: Vec<(String, String)>,
}

/// The packages of the front-ends, their firmware and the kernels in these cells, each with its version. Fetches those
/// that are not in the cache.
///
/// # Errors
/// Whatever keeps them from being had.
pub fn packages(cells: &[Cell]) -> Result<Vec<Packages>> {
    let runs = |applies: &dyn Fn(&Cell) -> bool| {
        cells
            .iter()
            .any(|cell| cell.not_applicable().is_none() && applies(cell))
    };
    let mut all = Vec::new();
    for version in QemuVersion::ALL {
        if runs(&|cell| cell.qemu == version) {
            let mut versions = Emulator::of(&Cache::lock()?, version)?.versions()?;
            versions.sort();
            all.push(Packages {
                of: format!("QEMU {}", version.name()),
                versions,
            });
        }
    }
    for version in KernelVersion::ALL {
        if runs(&|cell| cell.kernel == version) {
            let versions = read_versions(&parts(Some(version))?.kernel.versions)?;
            all.push(Packages {
                of: format!("Linux {}", version.name()),
                versions,
            });
        }
    }
    Ok(all)
}

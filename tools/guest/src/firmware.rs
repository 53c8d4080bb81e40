//! Firmware of the guest's machine.

use std::fs;
use std::path::{Path, PathBuf};

use crate::emulator::Emulator;
use crate::error::{Error, Result};

/// What runs before the boot loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Firmware {
    /// A BIOS, QEMU's default.
    SeaBios,
    /// UEFI.
    Ovmf,
}

impl Firmware {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::SeaBios, Self::Ovmf];

    /// Its name in options and tables.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::SeaBios => "seabios",
            Self::Ovmf => "ovmf",
        }
    }

    /// QEMU's options for it. UEFI keeps its variables in a file of `folder`, from one boot to the next.
    pub(crate) fn arguments(self, emulator: &Emulator, folder: &Path) -> Result<Vec<String>> {
        if self == Self::SeaBios {
            return Ok(Vec::new());
        }
        let file = |name| {
            emulator
                .firmware_file(name)
                .ok_or_else(|| Error::NoPackages {
                    release: "this machine",
                    detail: format!("{name} comes only with a QEMU of a named version"),
                })
        };
        let code = file("OVMF_CODE_4M.fd")?;
        let variables = folder.join("variables.fd");
        if !variables.is_file() {
            fs::copy(file("OVMF_VARS_4M.fd")?, &variables)
                .map_err(Error::io(format!("create {}", variables.display())))?;
        }
        let drive = |unit: u8, path: &PathBuf, read_only: &str| {
            let path = path.display().to_string().replace(',', ",,");
            format!("if=pflash,format=raw,unit={unit},readonly={read_only},file={path}")
        };
        Ok(vec![
            "-drive".to_owned(),
            drive(0, &code, "on"),
            "-drive".to_owned(),
            drive(1, &variables, "off"),
        ])
    }
}

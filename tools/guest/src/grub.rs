//! GRUB as Debian packs it, made into one image that carries out fixed commands.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{Error, Result, find_program, run};

/// What both need: to read the disk, and to boot Linux.
const MODULES: [&str; 4] = ["part_msdos", "fat", "linux", "echo"];

/// GRUB for a BIOS.
pub(crate) struct Bios {
    /// The disk's first sector.
    pub(crate) boot_sector: Vec<u8>,
    /// The sectors behind it.
    pub(crate) core: Vec<u8>,
}

/// For a BIOS; it talks on the first serial line, as there is no display.
pub(crate) fn bios(scratch: &Path, commands: &str) -> Result<Bios> {
    let grub = Grub {
        format: "i386-pc",
        package: "grub-pc-bin grub-common",
        modules: &["biosdisk", "serial", "terminal"],
    };
    let terminal = "serial --unit=0 --speed=115200\nterminal_output serial\n";
    let core = grub.image(scratch, &format!("{terminal}{commands}"))?;
    Ok(Bios {
        boot_sector: read(&grub.folder().join("boot.img"))?,
        core: read(&core)?,
    })
}

/// For UEFI, which has its console on the serial line; returns the program's path.
pub(crate) fn uefi(scratch: &Path, commands: &str) -> Result<PathBuf> {
    let grub = Grub {
        format: "x86_64-efi",
        package: "grub-efi-amd64-bin grub-common",
        modules: &[],
    };
    grub.image(scratch, commands)
}

struct Grub {
    /// GRUB's name of the platform.
    format: &'static str,
    package: &'static str,
    modules: &'static [&'static str],
}

impl Grub {
    fn folder(&self) -> PathBuf {
        Path::new("/usr/lib/grub").join(self.format)
    }

    fn image(&self, scratch: &Path, commands: &str) -> Result<PathBuf> {
        let program = find_program("grub-mkimage", self.package)?;
        let folder = self.folder();
        if !folder.join("linux.mod").is_file() {
            let package = self.package;
            return Err(Error::new(format!(
                "{} is missing: apt-get install {package}",
                folder.display()
            )));
        }
        let config = scratch.join(format!("{}.cfg", self.format));
        std::fs::write(&config, commands)
            .map_err(Error::io(format!("write {}", config.display())))?;
        let image = scratch.join(self.format);
        run(Command::new(program)
            .args(["--format", self.format, "--prefix", "(hd0,msdos1)/"])
            .arg("--directory")
            .arg(&folder)
            .arg("--config")
            .arg(&config)
            .arg("--output")
            .arg(&image)
            .args(MODULES)
            .args(self.modules))?;
        Ok(image)
    }
}

fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).map_err(Error::io(format!("read {}", path.display())))
}

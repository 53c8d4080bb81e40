//! Loop devices, and folders in memory for the files behind them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

/// A folder in memory.
pub fn tmpfs_folder() -> Option<TempDir> {
    const TMPFS_MAGIC: u32 = 0x0102_1994;
    let shm = Path::new("/dev/shm");
    let magic = rustix::fs::statfs(shm).map(|found| u32::try_from(found.f_type));
    if magic != Ok(Ok(TMPFS_MAGIC)) {
        crate::report::not_run("no tmpfs at /dev/shm");
        return None;
    }
    Some(TempDir::new_in(shm).unwrap())
}

/// A loop device, taken down when dropped.
pub struct LoopDevice {
    /// The device.
    pub path: PathBuf,
    /// The file behind it.
    pub image: PathBuf,
    _folder: Option<TempDir>,
}

impl LoopDevice {
    /// A device of so many bytes with blocks of `block` bytes, on a file in memory.
    pub fn new(bytes: u64, block: u32) -> Option<Self> {
        Self::with(bytes, block, &[])
    }

    /// The same, with more arguments for losetup(8).
    pub fn with(bytes: u64, block: u32, arguments: &[&str]) -> Option<Self> {
        let folder = tmpfs_folder()?;
        let mut made = LoopDevice::on(folder.path(), bytes, block, arguments)?;
        made._folder = Some(folder);
        Some(made)
    }

    /// The same, on a file in this folder.
    pub fn on(folder: &Path, bytes: u64, block: u32, arguments: &[&str]) -> Option<Self> {
        let image = folder.join("loop.img");
        fs::File::create(&image).unwrap().set_len(bytes).unwrap();
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", &block.to_string()]);
        match losetup.args(arguments).arg(&image).output() {
            Ok(made) if made.status.success() => {
                let path = String::from_utf8(made.stdout).unwrap();
                Some(LoopDevice {
                    path: PathBuf::from(path.trim()),
                    image,
                    _folder: None,
                })
            }
            other => {
                crate::report::not_run(&format!("no loop device: {other:?}"));
                None
            }
        }
    }

    /// Flushes that the device was sent, see the kernel's `Documentation/block/stat.rst`.
    pub fn flushes(&self) -> u64 {
        self.counter(15)
    }

    /// Discards that the device was sent.
    pub fn discards(&self) -> u64 {
        self.counter(11)
    }

    fn counter(&self, index: usize) -> u64 {
        let name = self.path.file_name().unwrap();
        let stat = Path::new("/sys/block").join(name).join("stat");
        let text = fs::read_to_string(stat).unwrap();
        text.split_whitespace().nth(index).unwrap().parse().unwrap()
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("-d").arg(&self.path).status();
    }
}

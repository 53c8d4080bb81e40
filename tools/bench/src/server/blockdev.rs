//! The options `--blockdev` of a server's disks.

use std::fmt::Display;
use std::path::Path;

use super::{Disk, on_off};
use crate::aio::Aio;
use crate::storage::Backing;

/// The node `dINDEX`.
#[must_use]
pub fn blockdev(index: usize, disk: &Disk) -> String {
    let read_only = on_off(!disk.writable);
    // Several servers use the same one in turn; its content does not matter.
    let locking = if disk.writable {
        ",locking=off,discard=unmap"
    } else {
        ""
    };
    let on_host = |driver: &str, path: &Path, aio: &Option<Aio>| {
        let aio = aio.map_or_else(String::new, |aio| format!(",aio={aio}"));
        format!(
            "driver={driver},node-name=d{index},filename={},cache.direct=on{aio},read-only={read_only}{locking}",
            literal(path.display())
        )
    };
    match &disk.backing {
        Backing::Null => {
            format!("driver=null-co,node-name=d{index},size=1073741824,read-only={read_only}")
        }
        Backing::File(path, aio) => on_host("file", path, aio),
        Backing::Device(path, aio) => on_host("host_device", path, aio),
        Backing::Nbd(socket) => format!(
            "driver=nbd,node-name=d{index},server.type=unix,server.path={},read-only={read_only}",
            literal(socket.display())
        ),
        // Its exclusive lock stays on, since only one server at a time has the image. librbd's cache is off.
        Backing::Rbd(image) => {
            let options = image.driver_options().into_iter();
            let options = options.map(|(key, value)| format!("{key}={},", literal(value)));
            format!(
                "driver=rbd,node-name=d{index},{}cache.direct=on,read-only={read_only}",
                options.collect::<String>()
            )
        }
    }
}

/// In key=value options a comma is written twice.
pub(super) fn literal(text: impl Display) -> String {
    text.to_string().replace(',', ",,")
}

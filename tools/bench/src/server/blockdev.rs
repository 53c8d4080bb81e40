//! The option `--blockdev` of a server's disk.

use std::fmt::Display;
use std::path::Path;

use super::{Disk, on_off};
use crate::aio::Aio;
use crate::storage::Backing;

/// The node `dINDEX`.
pub(super) fn blockdev(index: usize, disk: &Disk) -> String {
    let read_only = on_off(!disk.writable);
    // Several servers use the same one in turn; its content does not matter.
    let locking = if disk.writable { ",locking=off" } else { "" };
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::FrontEnd;

    #[test]
    fn images_of_rbd_keep_their_lock() {
        let disk = Disk {
            backing: Backing::Rbd("rbd/disk:conf=/a,b".parse().unwrap()),
            num_queues: 1,
            writable: true,
            front_end: FrontEnd::Blk,
        };
        assert_eq!(
            blockdev(3, &disk),
            "driver=rbd,node-name=d3,pool=rbd,image=disk,conf=/a,,b,cache.direct=on,read-only=off"
        );
    }

    #[test]
    fn commas_in_paths_are_escaped() {
        let disk = Disk {
            backing: Backing::File("/a,b".into(), None),
            num_queues: 1,
            writable: false,
            front_end: FrontEnd::Blk,
        };
        assert!(blockdev(3, &disk).contains("node-name=d3,filename=/a,,b,cache"));
    }
}

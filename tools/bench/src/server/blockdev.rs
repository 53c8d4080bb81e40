//! The options `--blockdev` of a server's disks, and the throttle groups that these name.

use std::fmt::Display;
use std::path::Path;

use super::{Disk, on_off};
use crate::aio::Aio;
use crate::storage::Backing;

/// The node `dINDEX`.
pub(crate) fn blockdev(index: usize, disk: &Disk) -> String {
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

/// The node that guests see: `dINDEX`, or the last throttled one above it.
pub(super) fn top_node(index: usize, disk: &Disk) -> String {
    node(index, disk.throttle_groups.len())
}

/// A node with so many throttled ones below it.
fn node(index: usize, above: usize) -> String {
    match above {
        0 => format!("d{index}"),
        above => format!("d{index}t{above}"),
    }
}

/// The node of each throttle group of a disk, one above the other.
pub(super) fn throttle_nodes(index: usize, disk: &Disk) -> impl Iterator<Item = String> {
    let groups = disk.throttle_groups.iter().enumerate();
    groups.map(move |(below, group)| {
        format!(
            "driver=throttle,node-name={},throttle-group={},file={},read-only={}",
            node(index, below + 1),
            group.id,
            node(index, below),
            on_off(!disk.writable)
        )
    })
}

/// The options `--object` of the groups, each once.
pub(super) fn throttle_groups(disks: &[Disk]) -> Vec<String> {
    let mut objects = Vec::new();
    for group in disks.iter().flat_map(|disk| &disk.throttle_groups) {
        let object = format!("throttle-group,id={},{}", group.id, group.limits);
        if !objects.contains(&object) {
            objects.push(object);
        }
    }
    objects
}

/// In key=value options a comma is written twice.
pub(super) fn literal(text: impl Display) -> String {
    text.to_string().replace(',', ",,")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{FrontEnd, ThrottleGroup};

    #[test]
    fn disk_of_several_throttle_groups_has_a_node_for_each() {
        let group = |id, limits: &str| ThrottleGroup {
            id,
            limits: limits.to_owned(),
        };
        let disk = Disk {
            backing: Backing::Null,
            num_queues: 1,
            writable: false,
            front_end: FrontEnd::Blk,
            throttle_groups: vec![
                group("tenant", "limits.iops-total=2"),
                group("own", "limits.iops-total=1"),
            ],
        };
        assert_eq!(
            throttle_groups(&[disk.clone(), disk.clone()]),
            [
                "throttle-group,id=tenant,limits.iops-total=2",
                "throttle-group,id=own,limits.iops-total=1"
            ]
        );
        assert_eq!(
            throttle_nodes(7, &disk).collect::<Vec<_>>(),
            [
                "driver=throttle,node-name=d7t1,throttle-group=tenant,file=d7,read-only=on",
                "driver=throttle,node-name=d7t2,throttle-group=own,file=d7t1,read-only=on"
            ]
        );
        assert_eq!(top_node(7, &disk), "d7t2");
    }

    #[test]
    fn images_of_rbd_keep_their_lock() {
        let disk = Disk {
            backing: Backing::Rbd("rbd/disk:conf=/a,b".parse().unwrap()),
            num_queues: 1,
            writable: true,
            front_end: FrontEnd::Blk,
            throttle_groups: Vec::new(),
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
            throttle_groups: Vec::new(),
        };
        assert!(blockdev(3, &disk).contains("node-name=d3,filename=/a,,b,cache"));
    }
}

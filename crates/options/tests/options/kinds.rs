//! All kinds of objects that options describe.

use options::{KeySpec, reference};

/// An option, one of its kinds, and the required keys.
pub const LEAST: [(&str, &str, &str); 21] = [
    ("object", "iothread", "id=i"),
    ("object", "secret", "id=s,file=/f"),
    ("object", "throttle-group", "id=t"),
    ("object", "tls-creds-x509", "id=x,dir=/d"),
    ("object", "authz-list", "id=l"),
    ("blockdev", "file", "node-name=n,filename=/f"),
    ("blockdev", "host_device", "node-name=n,filename=/f"),
    ("blockdev", "null-co", "node-name=n"),
    ("blockdev", "raw", "node-name=n,file=below"),
    (
        "blockdev",
        "nbd",
        "node-name=n,server.type=unix,server.path=/s",
    ),
    ("blockdev", "rbd", "node-name=n,pool=p,image=i"),
    (
        "blockdev",
        "throttle",
        "node-name=n,throttle-group=g,file=below",
    ),
    ("blockdev", "blkdebug", "node-name=n,image=below"),
    ("blockdev", "snapshot-access", "node-name=n,file=below"),
    (
        "export",
        "vhost-user-blk",
        "id=e,node-name=below,addr.type=unix,addr.path=/s",
    ),
    (
        "export",
        "vhost-user-scsi",
        "id=e,node-name=below,addr.type=unix,addr.path=/s",
    ),
    (
        "export",
        "vfio-user-lsi53c895a",
        "id=e,node-name=below,addr.type=unix,addr.path=/s",
    ),
    ("nbd-server", "", "addr.type=unix,addr.path=/n"),
    ("export", "nbd", "id=e,node-name=below"),
    ("chardev", "socket", "id=c,path=/s,server=on,wait=off"),
    ("monitor", "", "chardev=m"),
];

/// The required keys of a kind, as text.
pub fn written(kind: &str, least: &str) -> String {
    match kind {
        "" => least.to_owned(),
        kind => format!("{kind},{least}"),
    }
}

/// All keys of a kind.
pub fn keys_of(option: &str, kind: &str) -> impl Iterator<Item = &'static KeySpec> {
    let groups = reference::KEYS.iter().filter(move |group| {
        group.option == option && (group.kinds.is_empty() || group.kinds.contains(&kind))
    });
    groups.flat_map(|group| group.keys)
}

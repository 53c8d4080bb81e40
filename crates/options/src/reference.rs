//! Tables of all options, keys and commands, from which manual pages, completions and help texts are generated.

pub use crate::getopt::DescribedOption;
use crate::{
    KeySpec, blockdev, check_args, export, generate_args, getopt, monitor, nbd_server, object,
    serve,
};

/// Keys that the same kinds of an option take.
#[derive(Debug, Clone, Copy)]
pub struct KeyGroup {
    /// The option that takes them, without dashes.
    pub option: &'static str,
    /// The table of a configuration file.
    pub table: &'static str,
    /// The kinds that take them; empty: every kind.
    pub kinds: &'static [&'static str],
    /// What precedes a key on the command line: `inject-error.0.` for the keys of an element of a list.
    pub prefix: &'static str,
    /// A heading.
    pub title: &'static str,
    /// The keys.
    pub keys: &'static [KeySpec],
}

/// The options without a command.
#[must_use]
pub fn top_level_options() -> Vec<DescribedOption> {
    getopt::described_options().collect()
}

/// The keys of all options, without those of elements of lists.
pub const KEYS: &[KeyGroup] = &[
    KeyGroup {
        option: "object",
        table: "iothread",
        kinds: &["iothread"],
        prefix: "",
        title: "a thread that runs disks",
        keys: object::IothreadOptions::KEYS,
    },
    KeyGroup {
        option: "object",
        table: "secret",
        kinds: &["secret"],
        prefix: "",
        title: "a secret, such as the key of a Ceph user",
        keys: object::SecretOptions::KEYS,
    },
    KeyGroup {
        option: "object",
        table: "throttle-group",
        kinds: &["throttle-group"],
        prefix: "",
        title: "limits on operations and bytes per second, for nodes of driver throttle",
        keys: object::ThrottleGroupOptions::KEYS,
    },
    KeyGroup {
        option: "object",
        table: "tls-creds-x509",
        kinds: &["tls-creds-x509"],
        prefix: "",
        title: "certificates for TLS",
        keys: object::TlsCredsOptions::KEYS,
    },
    KeyGroup {
        option: "object",
        table: "authz-list",
        kinds: &["authz-list"],
        prefix: "",
        title: "a list of clients that may use a server with TLS",
        keys: object::AuthzListKeys::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &[],
        prefix: "",
        title: "a node: every driver",
        keys: blockdev::CommonNodeOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["file", "host_device"],
        prefix: "",
        title: "drivers file (a file) and host_device (a block device)",
        keys: blockdev::FileOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["null-co"],
        prefix: "",
        title: "driver null-co (no storage at all, for measuring)",
        keys: blockdev::NullOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["raw"],
        prefix: "",
        title: "driver raw (another node, or a part of it)",
        keys: blockdev::RawOffsetAndSize::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["nbd"],
        prefix: "",
        title: "driver nbd (an export of an NBD server)",
        keys: blockdev::NbdOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["rbd"],
        prefix: "",
        title: "driver rbd (an image of a Ceph cluster)",
        keys: blockdev::RbdOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["throttle"],
        prefix: "",
        title: "driver throttle (limits of a throttle-group, in front of another node)",
        keys: blockdev::ThrottleOptions::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["blkdebug"],
        prefix: "",
        title: "driver blkdebug (faults on purpose, in front of another node)",
        keys: blockdev::BlkdebugSeedKey::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["snapshot-access"],
        prefix: "",
        title: "driver snapshot-access (a snapshot of another node)",
        keys: blockdev::SNAPSHOT_ACCESS_KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &[],
        prefix: "",
        title: "a device for a VMM: every type",
        keys: export::CommonExportOptions::KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-blk", "vhost-user-scsi", "vfio-user-lsi53c895a"],
        prefix: "",
        title: "types for a VMM (all but nbd)",
        keys: export::SOCKET_KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-blk"],
        prefix: "",
        title: "type vhost-user-blk (a virtio disk)",
        keys: export::VhostUserBlkOptions::KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-scsi"],
        prefix: "",
        title: "type vhost-user-scsi (a virtio SCSI controller)",
        keys: export::VhostUserScsiOptions::KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-scsi", "vfio-user-lsi53c895a"],
        prefix: "",
        title: "types vhost-user-scsi and vfio-user-lsi53c895a (SCSI disks)",
        keys: export::LUNS_KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-scsi", "vfio-user-lsi53c895a"],
        prefix: "",
        title: "a SCSI disk (types vhost-user-scsi, vfio-user-lsi53c895a)",
        keys: export::LunDeviceOptions::KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["nbd"],
        prefix: "",
        title: "type nbd (a disk for clients of the NBD server)",
        keys: export::NbdExportOptions::KEYS,
    },
    KeyGroup {
        option: "nbd-server",
        table: "nbd-server",
        kinds: &[],
        prefix: "",
        title: "the NBD server, for exports of type nbd",
        keys: nbd_server::NbdServerSettings::KEYS,
    },
    KeyGroup {
        option: "chardev",
        table: "chardev",
        kinds: &["socket"],
        prefix: "",
        title: "a Unix socket for a monitor",
        keys: monitor::CommonChardevOptions::KEYS,
    },
    KeyGroup {
        option: "monitor",
        table: "monitor",
        kinds: &[],
        prefix: "",
        title: "a monitor (QMP) on a chardev",
        keys: monitor::MonitorOptions::KEYS,
    },
];

/// The keys of elements of lists.
pub const LIST_ELEMENT_KEYS: &[KeyGroup] = &[
    KeyGroup {
        option: "object",
        table: "authz-list",
        kinds: &["authz-list"],
        prefix: "rules.0.",
        title: "a rule of an authz-list, an element of the list rules",
        keys: object::AuthzRuleKeys::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["rbd"],
        prefix: "server.0.",
        title: "a monitor of driver rbd, an element of the list server",
        keys: blockdev::RbdServer::KEYS,
    },
    KeyGroup {
        option: "blockdev",
        table: "blockdev",
        kinds: &["blkdebug"],
        prefix: "inject-error.0.",
        title: "a fault of driver blkdebug, an element of the list inject-error",
        keys: blockdev::InjectErrorKeys::KEYS,
    },
    KeyGroup {
        option: "export",
        table: "export",
        kinds: &["vhost-user-scsi", "vfio-user-lsi53c895a"],
        prefix: "luns.0.",
        title: "an element of the list luns; it takes the keys of a SCSI disk too",
        keys: export::LUN_KEYS,
    },
];

/// All keys as they are written on the command line, by groups.
pub fn key_groups_with_list_elements() -> impl Iterator<Item = &'static KeyGroup> {
    KEYS.iter().chain(LIST_ELEMENT_KEYS)
}

/// The grammars of the commands of this crate: `serve`, `check` and `generate`.
#[must_use]
pub fn command_grammars() -> Vec<clap::Command> {
    vec![
        serve::grammar(),
        check_args::grammar(),
        generate_args::grammar(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The names of the keys of one kind.
    fn described(option: &str, kind: &str) -> Vec<&'static str> {
        let groups = KEYS.iter().filter(|group| {
            group.option == option && (group.kinds.is_empty() || group.kinds.contains(&kind))
        });
        let keys = groups.flat_map(|group| group.keys);
        keys.map(|key| key.name).collect()
    }

    #[test]
    fn export_types_are_described_with_the_keys_that_they_take() {
        for (name, r#type) in export::TYPES {
            let keys = r#type.keys.iter().copied().flatten();
            let taken: Vec<_> = keys.map(|key| key.name).collect();
            assert_eq!(described("export", name), taken, "{name}");
        }
    }

    #[test]
    fn every_driver_and_export_type_is_described() {
        let drivers = blockdev::DRIVERS.iter().map(|(name, _)| ("blockdev", name));
        let types = export::TYPES.iter().map(|(name, _)| ("export", name));
        for (option, name) in drivers.chain(types) {
            let mut groups = KEYS.iter().filter(|group| group.option == option);
            let is_described = groups.any(|group| group.kinds.contains(name));
            assert!(is_described, "{option} {name}");
        }
    }
}

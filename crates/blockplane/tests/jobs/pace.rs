//! A backup gives way to its guest.

use serde_json::json;
use test_support::verifying::device::Device;

use crate::load::{Load, QUEUES};
use crate::process::Folder;
use crate::{MIB, backup, completed, start};

const BYTES: u64 = 128 * MIB;

/// Each request of guest and copier takes a millisecond. At full speed the copier has eight of a mebibyte at once, so that the guest gets
/// some hundred events (of twelve writes at once, each asked for and answered). Beside a guest it has two of 64 KiB.
#[test]
fn guest_gets_many_requests_carried_out_during_a_backup() {
    for (kind, device) in [
        ("vhost-user-blk", Device::Blk),
        ("vhost-user-scsi", Device::Scsi),
    ] {
        let folder = Folder::new();
        let (_program, mut client) = start(
            &folder,
            &format!(
                "--blockdev null-co,node-name=below,size={BYTES},latency-ns=1000000 \
                 --blockdev raw,node-name=disk,file=below --blockdev null-co,node-name=copy,size={BYTES} \
                 --export {kind},id=e,node-name=disk,writable=on,num-queues={QUEUES},addr.type=unix,addr.path=e.sock"
            ),
        );
        let load = Load::begin(folder.join("e.sock"), device, 2048);
        load.goes_on(500);
        let begin = load.now();
        client.done("blockdev-backup", backup("full", json!({})));
        let data = completed(&mut client);
        assert!(data.get("error").is_none(), "{data}");
        let events = load.now() - begin;
        load.end();
        assert!(events > 3000, "{kind}: {events}");
    }
}

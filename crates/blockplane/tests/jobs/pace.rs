//! A backup gives way to its guest.

use serde_json::json;
use test_support::verifying::device::Device;

use crate::load::{Load, QUEUES};
use crate::process::Folder;
use crate::{EXPORT, MIB, begin_backup, start, succeeded};

const BYTES: u64 = 128 * MIB;

/// Each request of guest and copier takes a millisecond. At full speed the copier has eight of a mebibyte at once, so that the guest gets
/// some hundred events (of twelve writes at once, each asked for and answered). Beside a guest it has two of 64 KiB.
#[test]
fn guest_gets_many_requests_carried_out_during_a_backup() {
    let folder = Folder::new();
    let line = format!(
        "--blockdev null-co,node-name=below,size={BYTES},latency-ns=1000000 --blockdev raw,node-name=disk,file=below \
         --blockdev null-co,node-name=copy,size={BYTES} {EXPORT},num-queues={QUEUES}"
    );
    let (_program, mut client) = start(&folder, &line);
    let load = Load::begin(&folder, Device::Blk, 8 * MIB);
    load.goes_on(500);
    let begin = load.now();
    begin_backup(&mut client, "full", json!({}));
    succeeded(&mut client);
    let events = load.now() - begin;
    load.end();
    assert!(events > 3000, "{events}");
}

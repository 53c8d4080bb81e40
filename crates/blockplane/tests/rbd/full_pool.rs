//! A pool whose quota is reached: writes wait as on a full disk, and go on when the quota is lifted.

use test_support::ceph::Cluster;
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::disk::{SOCKET, export_of, read};
use crate::process::Folder;
use crate::request_driver::{BLOCK, IN, OUT, RequestDriver};
use crate::{MIB, start};

/// Sets the most bytes of a pool; 0 is no limit.
fn set_quota(cluster: &Cluster, pool: &str, bytes: u64) {
    let bytes = bytes.to_string();
    cluster.ceph(["osd", "pool", "set-quota", pool, "max_bytes", &bytes]);
}

/// Whether requests of the export are parked, and why.
fn io_status(client: &mut Client) -> String {
    let exports = client.execute("query-block-exports");
    exports[0]["io-status"].as_str().unwrap().to_owned()
}

#[test]
fn requests_to_a_full_pool_are_parked_and_go_on_when_there_is_space() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    let pool = "full";
    cluster.create_pool(pool);
    cluster.create_image(&format!("{pool}/disk"), 64 * MIB);
    let folder = Folder::new();
    let line = format!(
        "--blockdev rbd,node-name=d,pool={pool},image=disk,conf={} {}",
        cluster.conf().display(),
        export_of("d", ",werror=enospc")
    );
    let (program, mut client) = start(&folder, &line);
    let mut guest = RequestDriver::connect(&folder.join(SOCKET), 1);
    // Each write needs more space than those before.
    let mut blocks = 0..64 * MIB / BLOCK as u64;
    guest.request(0, OUT, blocks.next().unwrap(), 1);
    set_quota(cluster, pool, 4096);
    eventually("a pool that is full", || {
        cluster
            .ceph(["osd", "pool", "ls", "detail"])
            .contains("full_quota")
    });
    // The OSD and the client get the cluster's map a moment later.
    let deadline = Deadline::default();
    let parked = loop {
        let block = blocks.next().expect("a write is refused");
        guest.ask(0, 0, OUT, block, 2);
        while !guest.is_answered(0, 0) && io_status(&mut client) == "ok" {
            deadline.pause("an answer");
        }
        if !guest.is_answered(0, 0) {
            break block;
        }
        deadline.pause("a write that is parked");
    };
    assert_eq!(io_status(&mut client), "nospace");
    // Reads go on.
    guest.ask(0, 1, IN, 0, 0);
    guest.watch(0, 1);
    assert_eq!(guest.data(0, 1), [1; BLOCK]);
    set_quota(cluster, pool, 0);
    eventually("the request has succeeded", || {
        client.execute("block-export-resume id=e");
        guest.is_answered(0, 0)
    });
    assert_eq!(guest.status(0, 0), 0);
    assert_eq!(read(&mut guest, parked), [2; BLOCK]);
    program.stop();
}

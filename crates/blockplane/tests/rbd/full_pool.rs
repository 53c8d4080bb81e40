//! A pool whose quota is reached: writes wait as on a full disk, or fail, and go on when the quota is lifted.

use serde_json::json;
use test_support::ceph::Cluster;
use test_support::deadline::{Deadline, eventually};

use crate::client::Client;
use crate::disk::{SOCKET, export_of};
use crate::guest::{BLOCK, Guest, IN, OUT};
use crate::process::Folder;
use crate::{IOERR, MIB, start};

/// Sets the most bytes of a pool; 0 is no limit.
fn set_quota(cluster: &Cluster, pool: &str, bytes: u64) {
    let bytes = bytes.to_string();
    cluster.ceph(["osd", "pool", "set-quota", pool, "max_bytes", &bytes]);
}

/// Whether requests of the export are parked, and why.
fn io_status(client: &mut Client) -> String {
    let exports = client.done("query-block-exports", json!({}));
    exports[0]["io-status"].as_str().unwrap().to_owned()
}

#[test]
fn requests_to_a_full_pool_are_parked_and_go_on_when_there_is_space() {
    let Some(cluster) = Cluster::shared_or_report() else {
        return;
    };
    for (pool, policy) in [("full-enospc", "enospc"), ("full-report", "report")] {
        cluster.create_pool(pool);
        cluster.create_image(&format!("{pool}/disk"), 64 * MIB);
        let folder = Folder::new();
        let conf = cluster.conf();
        let line = format!(
            "--blockdev rbd,node-name=d,pool={pool},image=disk,conf={} {}",
            conf.display(),
            export_of("d", &format!(",werror={policy}"))
        );
        let (program, mut client) = start(&folder, &line);
        let mut guest = Guest::connect(&folder.join(SOCKET), 1);
        // Each write needs more space than those before.
        let mut blocks = 0..64 * MIB / BLOCK as u64;
        guest.request(0, OUT, blocks.next().unwrap(), 1);
        set_quota(cluster, pool, 4096);
        eventually("a pool that is full", || {
            let pools = cluster.ceph(["osd", "pool", "ls", "detail"]);
            let pool = pools
                .lines()
                .find(|line| line.contains(&format!("'{pool}'")));
            pool.unwrap().contains("full_quota")
        });
        // The OSD and the client get the cluster's map a moment later.
        let deadline = Deadline::default();
        let refused = loop {
            let block = blocks
                .next()
                .expect("a write is refused before the disk is full");
            guest.ask(0, 0, OUT, block, 2);
            while !guest.is_answered(0, 0) && io_status(&mut client) == "ok" {
                deadline.pause("an answer");
            }
            if !guest.is_answered(0, 0) || guest.status(0, 0) != 0 {
                break block;
            }
            deadline.pause("a write that is refused");
        };
        // Reads go on.
        guest.ask(0, 1, IN, 0, 0);
        guest.watch(0, 1);
        assert_eq!(guest.data(0, 1), [1; BLOCK]);
        if policy == "report" {
            assert_eq!(guest.status(0, 0), IOERR);
        } else {
            assert_eq!(io_status(&mut client), "nospace");
        }
        set_quota(cluster, pool, 0);
        if policy == "report" {
            eventually("space again", || {
                guest.ask(0, 0, OUT, refused, 2);
                guest.watch(0, 0);
                guest.status(0, 0) == 0
            });
        } else {
            eventually("the request has succeeded", || {
                let resumed = client.ask("block-export-resume", json!({"id": "e"}));
                assert!(resumed.get("return").is_some(), "{resumed}");
                guest.is_answered(0, 0)
            });
            assert_eq!(guest.status(0, 0), 0);
        }
        guest.request(0, IN, refused, 0);
        assert_eq!(guest.data(0, 0), [2; BLOCK]);
        program.stop();
    }
}

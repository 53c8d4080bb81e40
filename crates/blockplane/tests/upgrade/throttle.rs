//! Throttle groups: changed limits and nodes are handed over, and requests that wait do not delay an upgrade.

use serde_json::{Value, json};
use test_support::deadline::eventually_ok;
use test_support::upgraded_daemon::Daemon;

use crate::client::Client;
use crate::process::Folder;
use crate::request_driver::{OUT, RequestDriver, SLOTS};

/// At the start there is no limit.
const LINE: &str = "--object throttle-group,id=g,limits.iops-size=4096,limits.iops-total=1000000 \
    --blockdev file,node-name=d,filename=disk.img,cache.direct=off \
    --blockdev throttle,node-name=t,throttle-group=g,file=d \
    --export vhost-user-blk,id=e,node-name=t,addr.type=unix,addr.path=s,writable=on";

fn limits(client: &mut Client, group: &str) -> Value {
    client.execute(&format!("qom-get path=/objects/{group} property=limits"))
}

/// Requests that wait, once all of the queue but the first do.
fn fill_queue(client: &mut Client, guest: &mut RequestDriver) {
    for slot in 0..SLOTS {
        guest.add(0, slot, OUT, slot as u64, 1);
    }
    guest.submit(0);
    guest.watch(0, 0);
    eventually_ok("all others wait", || {
        let stats = client.block_stats("e");
        let all_wait = stats["throttle"][0]["waiting"] == SLOTS - 1;
        all_wait.then_some(()).ok_or(stats)
    });
}

#[test]
fn changed_limits_are_handed_over_and_waiting_requests_do_not_delay_it() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let mut daemon = Daemon::start_in(folder, LINE, &[]);
    let mut client = daemon.client();
    client.execute(
        "object-add qom-type=throttle-group id=unused limits.bps-read=5 limits.bps-read-max=7
        qom-set path=/objects/g property=limits value.bps-total=1",
    );
    let mut guest = RequestDriver::connect(&daemon.folder.join("s"), 1);
    let expected = ["g", "unused"].map(|group| limits(&mut client, group));
    assert_eq!(expected[0]["iops-total"], 1_000_000);
    for _ in 0..2 {
        // In the new process the first request passes again: buckets are empty, and debts stay with the old one.
        fill_queue(&mut client, &mut guest);
        drop(client);
        daemon.upgrade();
        client = daemon.client();
        for slot in 1..SLOTS {
            guest.watch(0, slot);
            assert_eq!(guest.status(0, slot), 0);
        }
        let found = ["g", "unused"].map(|group| limits(&mut client, group));
        assert_eq!(found, expected);
        let node = client.node("t");
        assert_eq!((&node["group"], &node["bps"]), (&json!("g"), &json!(1)));
        let in_use = client.error_of("object-del id=g");
        assert!(in_use.contains("node 't' is a member"), "{in_use}");
    }
    client.execute("object-del id=unused");
    daemon.stop();
}

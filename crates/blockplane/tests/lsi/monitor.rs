//! Monitor commands for LSI exports that guests use.

use serde_json::json;
use test_support::deadline::eventually;

use crate::client::Client;
use crate::driver::{BUFFERS, transfer};
use crate::machine::Driver;
use crate::process::{Folder, Process};
use crate::transfers::{LINE, MIB, execute, images, plug, query, wait};

fn start(folder: &Folder, line: &str) -> (Process, Client) {
    images(folder);
    let monitor = "--chardev socket,id=m,path=m.sock,server=on,wait=off --monitor chardev=m";
    let program = folder.start(&format!("{line} {monitor}"), "m.sock");
    let client = Client::connect(&folder.join("m.sock"));
    (program, client)
}

fn nodes() -> &'static str {
    LINE.split(" --object").next().unwrap()
}

#[test]
fn lsi_export_is_added_and_removed_over_a_monitor() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, nodes());
    let options = json!({
        "type": "vfio-user-lsi53c895a", "id": "e", "writable": true,
        "addr": {"type": "unix", "path": folder.join("e.sock")},
        "luns": [{"node-name": "a"}, {"node-name": "b", "lun": 1}],
    });
    client.done("block-export-add", options.clone());
    let exports = client.done("query-block-exports", json!({}));
    assert_eq!(exports[0]["type"], "vfio-user-lsi53c895a");
    assert_eq!(exports[0]["socket"], json!(folder.join("e.sock")));
    for node in ["a", "b"] {
        let refused = client.fails("blockdev-del", json!({"node-name": node}));
        assert!(refused.contains("by export 'e'"), "{refused}");
    }
    let mut driver = plug(&folder, &[(0, 0), (0, 1)]);
    let id = json!({"id": "e"});
    assert_eq!(client.wait_for_event("BLOCK_EXPORT_CONNECTED"), id);
    for tag in 0..3 {
        driver.submit(&transfer(0x2a, 0, Some(tag), tag.into(), 8, BUFFERS));
    }
    wait(&mut driver, 3);
    let stats = client.done("query-blockstats", json!({}));
    assert_eq!(stats[0]["connected"], json!(true));
    assert_eq!(stats[0]["stats"]["wr_operations"], json!(3));
    assert_eq!(stats[0]["stats"]["wr_bytes"], json!(3 * 4096));
    let units = &stats[0]["luns"];
    assert_eq!(units[0]["stats"]["wr_operations"], json!(3));
    assert_eq!(units[1]["lun"], json!(1));
    assert_eq!(units[1]["stats"]["wr_operations"], json!(0));
    let refused = client.fails("block-export-del", id.clone());
    assert!(refused.contains("still in use"), "{refused}");
    client.done("block-export-del", json!({"id": "e", "mode": "hard"}));
    for event in ["BLOCK_EXPORT_DISCONNECTED", "BLOCK_EXPORT_DELETED"] {
        assert_eq!(client.wait_for_event(event), id);
    }
    assert!(driver.machine.is_hung_up());
    assert!(!folder.has("e.sock"));
    client.done("blockdev-del", json!({"node-name": "b"}));
    // And again, with what is left.
    let mut options = options;
    options["luns"].as_array_mut().unwrap().pop();
    client.done("block-export-add", options);
    plug(&folder, &[(0, 0)]);
    client.wait_for_event("BLOCK_EXPORT_DISCONNECTED");
    client.done("block-export-del", id);
    program.stop().assert_success();
}

fn capacity(driver: &mut Driver) -> u64 {
    let (status, data) = query(driver, (0, 0), &[0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0], 8);
    assert_eq!(status, 0);
    (u64::from(u32::from_be_bytes(data[..4].try_into().unwrap())) + 1) * 512
}

#[test]
fn lsi_guest_is_notified_of_a_resize() {
    let folder = Folder::new();
    let (program, mut client) = start(&folder, LINE);
    let mut driver = plug(&folder, &[(0, 0)]);
    assert_eq!(capacity(&mut driver), 4 * MIB);
    for bytes in [8 * MIB, 2 * MIB] {
        client.done("block_resize", json!({"node-name": "a", "size": bytes}));
        let done = execute(&mut driver, transfer(0x28, 0, Some(0), 0, 1, BUFFERS));
        assert_eq!(done.status, 2);
        let (_, sense) = query(&mut driver, (0, 0), &[0x03, 0, 0, 0, 18, 0], 18);
        assert_eq!((sense[2], sense[12], sense[13]), (6, 0x2a, 0x09));
        assert_eq!(capacity(&mut driver), bytes);
    }
    let last = transfer(0x28, 0, Some(0), 4096, 1, BUFFERS);
    assert_eq!(execute(&mut driver, last).status, 2, "behind the end");
    program.stop().assert_success();
}

#[test]
fn lsi_command_is_served_by_the_new_node_while_another_uses_the_old_one() {
    let folder = Folder::new();
    let an_hour = 3_600_000_000_000_u64;
    let line = format!(
        "--blockdev file,node-name=d,filename=a.img,cache.direct=off \
         --blockdev blkdebug,node-name=f,image=d,inject-error.0.iotype=write,\
inject-error.0.action=delay,inject-error.0.delay-ns={an_hour},inject-error.1.iotype=read \
         --blockdev raw,node-name=disk,file=f --object iothread,id=io \
         --export vfio-user-lsi53c895a,id=e,node-name=disk,writable=on,iothread=io,\
addr.type=unix,addr.path=e.sock"
    );
    let (program, mut client) = start(&folder, &line);
    let mut driver = plug(&folder, &[(0, 0)]);
    driver.submit(&transfer(0x2a, 0, Some(0), 0, 8, BUFFERS));
    eventually("the write is under way", || {
        client.done("query-blockstats", json!({}))[0]["queues"][0]["depth"] == 1
    });
    let without = json!({"options": [{"driver": "raw", "node-name": "disk", "file": "d"}]});
    client.send("blockdev-reopen", &without);
    eventually("a read by the new node", || {
        let read = transfer(0x28, 0, Some(1), 8, 8, BUFFERS + 4096);
        execute(&mut driver, read).status == 0
    });
    assert!(!client.is_answered());
    // Nothing waits for the write.
    drop(program);
}

#[test]
fn invalid_lsi_options_are_refused() {
    let folder = Folder::new();
    images(&folder);
    // What the controller has room for; the rest is the same for all exports of SCSI disks.
    for (luns, expected) in [
        ("luns.0.target=7", "the controller itself"),
        ("luns.0.target=16", "[0, 15]"),
        ("luns.0.lun=64", "[0, 63]"),
        ("num-queues=4", "num-queues"),
    ] {
        let line = format!(
            "{} --export vfio-user-lsi53c895a,id=e,addr.type=unix,addr.path=e.sock,luns.0.node-name=a,{luns}",
            nodes()
        );
        let ended = folder.run(&line);
        assert_eq!(ended.code, Some(1), "{luns}");
        assert!(ended.stderr.contains(expected), "{luns}: {}", ended.stderr);
    }
}

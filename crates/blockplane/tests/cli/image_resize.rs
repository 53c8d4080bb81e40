//! New sizes of an image of Ceph: those that are not adopted, and those that wait. There is no cluster.

use serde_json::json;
use test_support::deadline::eventually;
use test_support::qmp::Client;
use test_support::request_driver::commands::Data;
use test_support::threads::read_of_each_thread;

use crate::control_threads::limit_threads;
use crate::request_driver::RequestDriver;
use crate::stub_image::{Control, MIB, Served, node_size};

#[test]
fn resize_while_no_thread_can_be_started_is_reported_once_and_the_next_one_is_adopted() {
    const NOT_ADOPTED: &str = "the image's new size is not adopted";
    let Some(mut served) = Served::start("", 0) else {
        return;
    };
    limit_threads(&served.program, Some(1));
    served.resize_by_another_client(2 * MIB);
    served.wait_for_log(NOT_ADOPTED);
    assert_eq!(served.node_size("d"), MIB);
    limit_threads(&served.program, None);
    served.resize_by_another_client(3 * MIB);
    eventually("the size is adopted", || served.node_size("d") == 3 * MIB);
    let log = served.program.stop().stderr;
    assert_eq!(log.matches(NOT_ADOPTED).count(), 1, "{log}");
}

#[test]
fn resize_to_less_than_a_sector_is_refused_with_the_remedy() {
    let Some(mut served) = Served::start("", 0) else {
        return;
    };
    served.resize_by_another_client(511);
    served.wait_for_log("needs at least one sector of 512 bytes");
    served.wait_for_log("resize the image to a size");
    assert_eq!(served.node_size("d"), MIB);
    served.resize_by_another_client(2 * MIB);
    eventually("the size is adopted", || served.node_size("d") == 2 * MIB);
    served.program.stop();
}

fn has_thread(served: &Served, name: &str) -> bool {
    let threads = read_of_each_thread(served.program.pid(), "comm");
    threads.iter().any(|thread| thread.text.trim_end() == name)
}

/// A command has reserved a window above the image, and not the image itself.
#[test]
fn resize_while_a_window_is_reserved_is_adopted_after_the_command() {
    const UNIT: (u8, u8) = (0, 0);
    const QUEUE: u32 = 2;
    const TEST_UNIT_READY: [u8; 6] = [0; 6];
    const READ: [u8; 10] = [0x28, 0, 0, 0, 0, 0, 0, 0, 8, 0];
    let options = "--blockdev raw,node-name=w,file=d,offset=524288 \
                   --export vhost-user-scsi,id=s,addr.type=unix,addr.path=s,luns.0.node-name=d";
    let Some(mut served) = Served::start(options, 0) else {
        return;
    };
    let mut guest = RequestDriver::connect_scsi(&served.folder.join("s"), 1);
    // The first command reports that the unit was switched on.
    for status in [2, 0] {
        assert_eq!(guest.command(QUEUE, UNIT, &TEST_UNIT_READY), status);
    }
    let requests = served.get(Control::Requests);
    served.set(Control::HoldsRequests, 1);
    guest.begin(QUEUE, UNIT, &READ, Data::In(4096));
    served.wait_for(Control::Requests, requests + 1);
    let mut other = Client::connect(&served.folder.join("qmp"));
    let lun = json!({"id": "s", "lun": 1, "node-name": "w"});
    served.client.send("scsi-lun-add", &lun);
    // A command that came before would itself reserve the window.
    eventually("the command is at work", || has_thread(&served, "lun s"));
    let busy = "a scsi-lun-add waits for its disk";
    let refused = other.ask("block_resize", json!({"node-name": "w", "size": MIB}));
    assert!(refused.to_string().contains(busy), "{refused}");
    served.resize_by_another_client(2 * MIB);
    let adoption_waits = || has_thread(&served, "resize later");
    eventually("the adoption waits", adoption_waits);
    assert_eq!(node_size(&mut other, "d"), MIB);
    served.set(Control::HoldsRequests, 0);
    assert_eq!(served.client.answer()["return"], json!({}));
    eventually("the size is adopted", || {
        served.node_size("d") == 2 * MIB && served.node_size("w") == 3 * MIB / 2
    });
    assert_eq!(served.program.stop().stderr, "");
}

/// Has an image opened, and resizes it while one of the calls that opening makes is held.
fn resize_while_opening_is_held(holds: Control, calls: Control) {
    let Some(mut served) = Served::start("", 0) else {
        return;
    };
    served.client.execute("blockdev-del node-name=d");
    // It is answered before the image's thread has closed the image.
    served.wait_for(Control::Closed, 1);
    let before = served.get(calls);
    served.set(holds, 1);
    let node =
        json!({"driver": "rbd", "node-name": "e", "pool": "p", "image": "i", "conf": "/dev/null"});
    served.client.send("blockdev-add", &node);
    served.wait_for(calls, before + 1);
    served.resize_by_another_client(2 * MIB);
    served.set(holds, 0);
    assert_eq!(served.client.answer()["return"], json!({}));
    eventually("the size is adopted", || served.node_size("e") == 2 * MIB);
    served.program.stop();
}

#[test]
fn resize_while_the_image_is_being_opened_is_adopted() {
    resize_while_opening_is_held(Control::HoldsMetadata, Control::MetadataReads);
}

/// The size that opening has read is then older than that of librbd's notification.
#[test]
fn resize_while_the_geometry_of_the_image_is_being_read_is_adopted() {
    resize_while_opening_is_held(Control::HoldsFeatures, Control::FeatureReads);
}

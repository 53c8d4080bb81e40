//! Linux' own NBD client in a real guest, on a disk that the guest also has as its virtio disk.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use guest::{Boot, Scenario, Server, ServerOptions};
use test_support::reserved_port::ReservedPort;

const SIZE_BYTES: u64 = 64 << 20;

#[test]
fn a_guest_uses_an_export_by_its_kernels_client() {
    let folder = guest::disk_folder().unwrap();
    let port = ReservedPort::reserve();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.num_queues = 2;
    options.monitor = true;
    options.nbd_port = Some(port.address().port());
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Nbd)
        .run()
        .unwrap_or_else(|error| panic!("{error}"));
    for (fact, expected) in [
        ("nbd_bytes", "67108864"),
        ("nbd_write_cache", "write_back"),
        ("nbd_read_only", "0"),
    ] {
        assert_eq!(report.fact(fact), Some(expected), "{fact}");
    }
    let discard: u64 = report
        .fact("nbd_discard_max_bytes")
        .unwrap()
        .parse()
        .unwrap();
    assert!(discard > 0, "space is freed");
    assert_eq!(report.steps().len(), 7);
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

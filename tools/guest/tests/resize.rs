//! A disk that changes its size under a real guest.

#![allow(clippy::unwrap_used)] // the lint's exception for tests does not reach helper functions

use guest::{Boot, Scenario, Server, ServerOptions};

const SIZE_BYTES: u64 = 64 << 20;

#[test]
fn a_running_guest_sees_its_disk_grow_and_shrink() {
    let folder = guest::disk_folder().unwrap();
    let mut options = ServerOptions::new(&folder.path().join("disk.img"), SIZE_BYTES);
    options.num_queues = 2;
    options.monitor = true;
    let server = Server::start(&guest::blockplane().unwrap(), &options)
        .unwrap_or_else(|error| panic!("{error}"));
    let report = Boot::new(&server, Scenario::Resize)
        .run_asking(|question| {
            let bytes = match question {
                "grow" => 2 * SIZE_BYTES,
                "shrink" => SIZE_BYTES,
                other => panic!("{other}?"),
            };
            server
                .resize(bytes)
                .unwrap_or_else(|error| panic!("{error}"));
            let found = std::fs::metadata(&options.disk).unwrap().len();
            assert_eq!(found, bytes, "{question}");
        })
        .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.fact("grown_bytes"), Some("134217728"));
    assert_eq!(report.fact("shrunk_bytes"), Some("67108864"));
    server.stop().unwrap_or_else(|error| panic!("{error}"));
}

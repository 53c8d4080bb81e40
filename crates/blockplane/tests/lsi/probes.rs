//! Tests of tracepoints: requests of an adapter.

use test_support::tracer::Tracer;

use crate::driver::{BUFFERS, transfer};
use crate::process::Folder;
use crate::transfers::{LINE, execute, images, plug};

#[test]
fn probes_fire_once_for_each_lsi_request() {
    let probes = [
        "kick",
        "request_start",
        "request_submit",
        "request_complete",
        "request_answer",
        "scsi_command",
        "scsi_status",
        "notify",
    ];
    let folder = Folder::new();
    images(&folder);
    // A name that no other test's has.
    let line = LINE.replace("id=e,", "id=traced-lsi,");
    let program = folder.start(&line, "e.sock");
    let mut driver = plug(&folder, &[(0, 0), (3, 2)]);
    let Some(tracer) = Tracer::attach(&probes, &["traced-lsi"]) else {
        return;
    };
    let read = transfer(0x28, 0, Some(1), 16, 8, BUFFERS);
    assert_eq!(execute(&mut driver, read).status, 0);
    let mut write = transfer(0x2a, 3, Some(2), 3, 1, BUFFERS);
    write.lun = 2;
    assert_eq!(execute(&mut driver, write).status, 0);
    // Beyond the end: no disk hears of it.
    let refused = transfer(0x28, 0, Some(3), 8192, 1, BUFFERS);
    assert_eq!(execute(&mut driver, refused).status, 2);
    drop(driver);
    program.stop();

    let hits = tracer.hits("traced-lsi");
    // Queue, name, kind; sector and bytes, or status and latency.
    let [asked, read, wanted, written] = &hits[..] else {
        panic!("{hits:#?}");
    };
    for (begin, end, kind, place) in [(asked, read, 0, [16, 4096]), (wanted, written, 1, [3, 512])]
    {
        let name = begin.arguments[1];
        assert_eq!(begin.probe, "request_submit");
        assert_eq!(begin.arguments, [0, name, kind, place[0], place[1]]);
        assert_eq!(end.probe, "request_complete");
        assert_eq!(end.arguments[..4], [0, name, kind, 0]);
        assert!(end.arguments[4] > 0, "it took its time: {end:?}");
    }
}

//! A backup gives way to its guest. How it does is tested in the crate `copier`.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::process::Folder;
use crate::request_driver::{IN, RequestDriver};
use crate::{EXPORT, begin_backup, start, succeeded};

/// 5 ms in which guests' requests end that have waited for the copier, and a sample of 20 ms. Without a rest it takes less.
const REST: Duration = Duration::from_millis(25);

#[test]
fn backup_of_a_disk_that_a_guest_uses_begins_with_a_rest() {
    let folder = Folder::new();
    let line = format!(
        "--blockdev null-co,node-name=disk,size=1M --blockdev null-co,node-name=copy,size=1M {EXPORT}"
    );
    let (program, mut client) = start(&folder, &line);
    let mut guest = RequestDriver::connect(&folder.join("e.sock"), 1);
    guest.request(0, IN, 0, 0);
    let begin = Instant::now();
    begin_backup(&mut client, "full", json!({}));
    succeeded(&mut client);
    assert!(begin.elapsed() >= REST);
    program.stop();
}

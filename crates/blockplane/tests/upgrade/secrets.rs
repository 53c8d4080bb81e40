//! Secrets: the new process has their contents without reading files again, and no process has them as its arguments.

use std::fs;

use serde_json::json;
use test_support::upgraded_daemon::Daemon;

use crate::process::Folder;

/// A key as Ceph writes it.
const KEY: &str = "AQAA8VNlBQAAABAAMDEyMzQ1Njc4OWFiY2RlZg==";

#[test]
fn secrets_survive_upgrades_with_the_contents_that_their_files_had() {
    let folder = Folder::new();
    fs::write(folder.join("key"), KEY).unwrap();
    let mut daemon = Daemon::start_in(folder, "--object secret,id=from-file,file=key", &[]);
    let mut client = daemon.client();
    let add = json!({"qom-type": "secret", "id": "given", "data": KEY});
    client.done("object-add", add);
    drop(client);
    fs::remove_file(daemon.folder.join("key")).unwrap();
    for _ in 0..2 {
        let pid = daemon.upgrade();
        let arguments = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap();
        assert!(!String::from_utf8_lossy(&arguments).contains(KEY));
        let mut client = daemon.client();
        for id in ["from-file", "given"] {
            // Only a secret with this content is refused like this.
            let add = format!("blockdev-add driver=rbd node-name=n pool=p image=i key-secret={id}");
            let refused = client.error_of(&add);
            assert!(refused.contains("is a key of Ceph in base64"), "{refused}");
        }
        let file = client.execute("qom-get path=/objects/from-file property=file");
        assert_eq!(file, "key");
    }
    daemon.stop();
}

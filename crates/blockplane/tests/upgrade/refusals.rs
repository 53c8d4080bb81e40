//! Tests of live upgrades that are refused.

use test_support::upgraded_daemon::Daemon;

use crate::process::{Folder, program};

#[test]
fn upgrade_names_objects_that_cannot_be_handed_over() {
    let rules =
        "--blockdev null-co,node-name=d,size=1M --blockdev blkdebug,node-name=rules,image=d";
    let mut daemon = Daemon::start_in(Folder::new(), rules, &[]);
    let said = daemon.fails_to_upgrade();
    assert!(said.contains("node 'rules' is a blkdebug filter"), "{said}");
    assert!(said.contains("restart instead"), "{said}");
    daemon.client().execute("blockdev-del node-name=rules");
    daemon.upgrade();
    daemon.stop();
}

#[test]
fn upgrade_to_another_binary_requires_no_sandbox() {
    let line = format!("upgrade qmp --binary {}", program().display());
    let confined = Daemon::with_image("num-queues=1", "");
    let said = confined.folder.run(&line);
    said.assert_fails_naming(&["sandbox", "--sandbox off"]);
    confined.stop();
    let open = Daemon::with_image("num-queues=1", "--sandbox off");
    let before = open.pid();
    open.folder.run(&line).assert_success();
    assert_ne!(open.pid(), before);
    open.stop();
}

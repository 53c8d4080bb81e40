//! What cannot be handed over.

use serde_json::json;

use crate::daemon::Daemon;
use crate::process::Folder;

#[test]
fn what_has_a_state_of_its_own_is_refused_by_name() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let lsi = "--blockdev file,node-name=d,filename=disk.img,cache.direct=off \
        --export vfio-user-lsi53c895a,id=adapter,addr.type=unix,addr.path=s,luns.0.node-name=d";
    let mut daemon = Daemon::start_in(folder, lsi, &[]);
    let said = daemon.fails_to_upgrade();
    assert!(
        said.contains("export 'adapter' is a vfio-user-lsi53c895a"),
        "{said}"
    );
    assert!(said.contains("restart instead"), "{said}");
    let mut client = daemon.client();
    client.done("block-export-del", json!({"id": "adapter"}));
    client.event("BLOCK_EXPORT_DELETED", "adapter");
    drop(client);
    daemon.upgrade();
    daemon.stop();
}

#[test]
fn another_program_is_for_daemons_without_a_sandbox() {
    let program = env!("CARGO_BIN_EXE_blockplane");
    let line = format!("upgrade qmp --binary {program}");
    let confined = Daemon::with_image(Folder::new(), "num-queues=1", "");
    let said = confined.folder.run(&line);
    said.failed_naming(&["sandbox", "--sandbox off"]);
    confined.stop();
    let open = Daemon::with_image(Folder::new(), "num-queues=1", "--sandbox off");
    let before = open.pid();
    open.folder.run(&line).succeeded();
    assert_ne!(open.pid(), before);
    open.stop();
}

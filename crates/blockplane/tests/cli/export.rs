//! Exports of a daemon without a subcommand, as scripts of qemu-storage-daemon start them.

use crate::process::Folder;
use crate::{capacity, front_end, is_read_only};

/// Scripts expect a storage daemon to print nothing. As in qemu-storage-daemon, exports are read-only by default.
#[test]
fn daemon_prints_nothing_without_errors_and_exports_are_read_only_unless_writable() {
    let folder = Folder::new();
    folder.image("disk.img", 1 << 20);
    let nodes = "--object iothread,id=io0 \
         --blockdev driver=file,node-name=f,filename=disk.img \
         --blockdev driver=raw,node-name=d,file=f";
    let export = "vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=io0";
    for writable in [false, true] {
        let option = if writable { ",writable=on" } else { "" };
        let server = folder.start(&format!("{nodes} --export {export}{option}"), "s");
        assert_eq!(capacity(&folder, "s"), 1 << 20);
        assert_eq!(is_read_only(&folder, "s"), !writable);
        assert_eq!(server.stop().assert_success(), "");
        assert_eq!(folder.names(), ["disk.img"]);
    }
}

/// As libvhost-user does. QEMU's own test of this export waits for it, and after a reconnection it
/// replaces a call that got lost with the connection before.
#[test]
fn started_queue_signals_its_front_end() {
    let folder = Folder::new();
    let server = folder.start("serve null-co: --socket s", "s");
    front_end(&folder, "s", 1).wait_for_call(0);
    server.stop();
}

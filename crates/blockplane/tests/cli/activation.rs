//! Sockets that a service manager passes by name.

use std::os::unix::net::UnixListener;

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process, words};

const NODE: &str = "--blockdev null-co,node-name=d,size=1M";
const EXPORT: &str = "--export vhost-user-blk,id=e,node-name=d,addr.type=fd,addr.str";

/// The program with the folder's socket `s` as descriptors 3 and 4, and with `variables` that describe them.
fn activated(folder: &Folder, variables: &str, line: &str) -> Process {
    let socket = UnixListener::bind(folder.join("s")).unwrap();
    let script = format!(r#"{variables} exec "$0" "$@" 3<&0 4<&0 0</dev/null"#);
    let mut command = folder.command_after(&script, words(&format!("{NODE} {line}")));
    command.stdin(std::os::fd::OwnedFd::from(socket));
    Process::spawn(command)
}

const TWO: &str = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=qmp:vhost";

#[test]
fn front_ends_connect_to_a_socket_with_a_name() {
    let folder = Folder::new();
    let process = activated(&folder, TWO, &format!("{EXPORT}=vhost"));
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    process.stop();
    assert!(folder.has("s"), "it belongs to who made it");
}

#[test]
fn a_monitor_listens_on_a_socket_with_a_name() {
    let folder = Folder::new();
    let line = "--chardev socket,id=c,fd=qmp,server=on --monitor c";
    let mut process = activated(&folder, TWO, line);
    let stream = process.connection(&folder.join("s"));
    let mut greeting = [0; 7];
    std::io::Read::read_exact(&mut &stream, &mut greeting).expect("the greeting");
    assert_eq!(&greeting, b"{\"QMP\":");
    process.stop();
}

#[test]
fn unknown_socket_name_is_refused_with_the_known_names() {
    let refused = |variables: &str, fd: &str, words: &[&str]| {
        let process = activated(&Folder::new(), variables, &format!("{EXPORT}={fd}"));
        process.ended().assert_fails_naming(words);
    };
    refused(TWO, "disk", &["'disk'", "qmp, vhost"]);
    refused("", "vhost", &["'vhost'", "FileDescriptorName=vhost"]);
    // Descriptors for another process are ignored.
    let others = "LISTEN_PID=1 LISTEN_FDS=2 LISTEN_FDNAMES=qmp:vhost";
    refused(others, "vhost", &["'vhost'", "no named sockets"]);
    let twins = "LISTEN_PID=$$ LISTEN_FDS=2 LISTEN_FDNAMES=a:a";
    refused(twins, "a", &["several", "'a'", "FileDescriptorName="]);
    refused("LISTEN_PID=$$ LISTEN_FDS=x", "a", &["LISTEN_FDS", "'x'"]);
}

#[test]
fn inherited_socket_with_two_names_has_one_use() {
    let folder = Folder::new();
    let line = format!("{EXPORT}=vhost --chardev socket,id=c,fd=4,server=on,wait=off");
    let process = activated(&folder, TWO, &line);
    process
        .ended()
        .assert_fails_naming(&["descriptor 4", "already in use"]);
}

#[test]
fn inherited_socket_is_used_by_descriptor_number() {
    let folder = Folder::new();
    let process = activated(&folder, TWO, &format!("{EXPORT}=3"));
    assert_eq!(FrontEnd::connect(&folder.join("s")).num_queues(), 1);
    process.stop();
}

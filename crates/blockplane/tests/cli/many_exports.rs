//! A hundred exports in one process.

use std::fs;
use std::os::unix::net::UnixStream;

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process};

const EXPORTS: u32 = 100;
const QUEUES: u32 = 32;

/// The options for all nodes and exports.
fn arguments(folder: &Folder) -> Vec<String> {
    let mut arguments = vec!["--pidfile".to_owned(), "pid".to_owned()];
    for i in 0..EXPORTS {
        let socket = folder.join(&format!("s{i}"));
        arguments.push("--blockdev".into());
        arguments.push(format!(
            "null-co,node-name=d{i},size={}",
            u64::from(i + 1) << 20
        ));
        arguments.push("--export".into());
        arguments.push(format!(
            "vhost-user-blk,id=e{i},node-name=d{i},addr.type=unix,addr.path={},num-queues={QUEUES},\
             writable=on",
            socket.display()
        ));
    }
    arguments
}

/// Each queue has descriptors of its own: far more than the usual soft limit.
#[test]
fn hundred_exports_of_32_queues_start_serve_and_stop() {
    let folder = Folder::new();
    let script = r#"ulimit -Sn 256; exec "$0" "$@""#;
    let mut server = Process::spawn(folder.command_after(script, arguments(&folder)));
    server.wait_until("all is started", || folder.has("pid"));
    let front_ends: Vec<FrontEnd> = (0..EXPORTS)
        .map(|i| FrontEnd::connect(&folder.join(&format!("s{i}"))))
        .collect();
    for (sectors, front_end) in (2048..).step_by(2048).zip(&front_ends) {
        assert_eq!(front_end.capacity(), sectors);
        assert_eq!(front_end.num_queues(), u64::from(QUEUES));
        front_end.start_queues(QUEUES);
    }
    let open = fs::read_dir(format!("/proc/{}/fd", server.pid()))
        .unwrap()
        .count();
    assert!(
        open > usize::try_from(2 * EXPORTS * QUEUES).unwrap(),
        "{open} descriptors"
    );
    server.stop().assert_success();
    for front_end in &front_ends {
        front_end.wait_for_hang_up();
    }
    assert_eq!(folder.names(), [""; 0]);
}

#[test]
fn soft_limit_of_descriptors_is_raised_to_the_hard_limit() {
    let folder = Folder::new();
    let script = r#"ulimit -Sn 64; exec "$0" "$@""#;
    let args = ["serve", "null-co:", "--socket", "s"];
    let mut server = Process::spawn(folder.command_after(script, args));
    server.wait_until("it accepts", || {
        UnixStream::connect(folder.join("s")).is_ok()
    });
    let limits = fs::read_to_string(format!("/proc/{}/limits", server.pid())).unwrap();
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .unwrap();
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [soft, hard] = [fields[3], fields[4]];
    assert_eq!(soft, hard, "{line}");
    assert_ne!(soft, "64");
    server.stop();
}

//! Many clients at once, one of which never reads; and one that does not read for a while, and the events that it gets then.

use std::io::Write;
use std::thread;
use std::time::Duration;

use rustix::process::Pid;
use serde_json::json;
use test_support::sockets::connect;
use test_support::threads::read_of_each_thread;

use crate::client::Client;
use crate::process::{self, Folder, Process};
use crate::{EXPORT_OF_UNDISTURBED_GUEST, MIB, MONITOR, start_undisturbed_guest, start_with_disk};

const CLIENTS: usize = 100;
/// `qmp::limits::MAX_CLIENTS`
const MOST_CLIENTS: usize = 128;
/// More than sockets hold.
const MOST_OF_SOCKETS: usize = 1 << 20;

#[test]
fn hundred_clients_are_answered_although_one_never_reads() {
    let (folder, program, _client) = start_with_disk(EXPORT_OF_UNDISTURBED_GUEST);
    let guest = start_undisturbed_guest(&folder);
    let mut silent = connect(&folder.join("qmp"));
    silent.set_nonblocking(true).unwrap();
    // Until nothing more of it is read: its answers are what is bounded.
    let asks = br#"{"execute":"qmp_capabilities"}{"execute":"query-qmp-schema"}"#;
    silent.write_all(asks).unwrap();
    let asks = br#"{"execute":"query-commands"}{"execute":"query-block"}"#.repeat(100);
    let (mut patience, mut taken) = (100, 0);
    while patience > 0 {
        match silent.write(&asks) {
            Ok(bytes) => (patience, taken) = (100, taken + bytes),
            Err(_) => {
                thread::sleep(Duration::from_millis(1));
                patience -= 1;
            }
        }
        assert!(taken < MOST_OF_SOCKETS, "it is read for ever");
    }
    let memory = program.anonymous_memory_kib();
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|_| Client::connect(&folder.join("qmp")))
        .collect();
    thread::scope(|scope| {
        for clients in clients.chunks_mut(CLIENTS / 4) {
            scope.spawn(move || {
                for _ in 0..20 {
                    let queries = ["query-blockstats", "query-iothreads", "query-version"];
                    for client in &mut *clients {
                        for query in queries {
                            client.send(query, &json!({}));
                        }
                    }
                    for client in &mut *clients {
                        for _ in queries {
                            let answer = client.answer();
                            assert!(answer.get("return").is_some(), "{answer}");
                        }
                    }
                }
            });
        }
        (0..10).for_each(|_| guest.goes_on("queries of many clients"));
    });
    guest.goes_on("their answers");
    let grown = program.anonymous_memory_kib().saturating_sub(memory);
    assert!(grown < 32 << 10, "{grown} KiB more");
    guest.stop();
    program.stop();
}

/// By name.
fn niceness(pid: Pid) -> Vec<(String, i32)> {
    let threads = read_of_each_thread(pid, "stat").into_iter();
    threads
        .map(|thread| {
            // proc_pid_stat(5): the name is in parentheses, the niceness the 19th field.
            let (begin, rest) = thread.text.rsplit_once(") ").unwrap();
            let name = begin.split_once('(').unwrap().1.to_owned();
            (name, rest.split(' ').nth(16).unwrap().parse().unwrap())
        })
        .collect()
}

/// Neither do those inherit it that a monitor's client has made.
#[test]
fn only_monitor_threads_have_lower_priority() {
    let folder = Folder::new();
    folder.image("disk", MIB);
    let line = format!("{} {MONITOR} --metrics unix:m", EXPORT_OF_UNDISTURBED_GUEST);
    let niced = r#"exec nice -n 2 "$0" "$@""#;
    let mut program = Process::spawn(folder.command_after(niced, process::words(&line)));
    let mut client = Client::of(program.connection(&folder.join("qmp")));
    client.execute("object-add qom-type=iothread id=late");
    let guest = start_undisturbed_guest(&folder);
    guest.goes_on("its start");
    let found = niceness(program.pid());
    let own = found.iter().find(|(name, _)| name == "IO late").unwrap().1;
    // It is inherited, whatever ours is.
    let ours = niceness(rustix::process::getpid());
    assert_eq!(own, (ours[0].1 + 2).min(19), "{found:?}");
    let is_answering = |name: &str| ["monitors", "metrics"].contains(&name);
    for (name, nice) in &found {
        let wanted = if is_answering(name) { own + 10 } else { own };
        assert_eq!(*nice, wanted.min(19), "{name}: {found:?}");
    }
    let answering = found.iter().filter(|(name, _)| is_answering(name));
    assert_eq!(answering.count(), 2, "{found:?}");
    guest.stop();
    program.stop();
}

/// A client above the limit waits, and the log gives the reason.
#[test]
fn log_reports_the_client_limit_once() {
    let (folder, mut program, client) = start_with_disk("");
    let mut clients: Vec<Client> = (1..MOST_CLIENTS)
        .map(|_| Client::connect(&folder.join("qmp")))
        .collect();
    let log = program.stderr_file();
    let full = move || {
        process::text(&log)
            .matches("as many clients as they accept")
            .count()
    };
    program.wait_until("the log says it", || full() == 1);
    // One goes, one comes: it is full again, and that was said just now.
    clients.push(client);
    clients.remove(0);
    Client::connect(&folder.join("qmp")).execute("query-version");
    assert_eq!(full(), 1);
    drop(clients);
    program.stop();
}

/// Their events are more than a socket holds, and far less than the 4 MiB that are kept for a client.
const EXPORTS: usize = 2000;

#[test]
fn slow_client_receives_every_event_in_order() {
    let (folder, program, mut witness) = start_with_disk("--blockdev null-co,node-name=d");
    let mut slow = Client::connect(&folder.join("qmp"));
    let server = json!({"addr": {"type": "unix", "data": {"path": "nbd"}}});
    witness.done("nbd-server-start", server);
    for export in 0..EXPORTS {
        let id = format!("e{export}");
        let export = json!({"type": "nbd", "id": id, "node-name": "d"});
        witness.done("block-export-add", export);
        witness.done("block-export-del", json!({"id": id}));
        witness.event("BLOCK_EXPORT_DELETED", &id);
    }
    // Its answer comes behind all of them: an event that is missing is found at once.
    slow.execute("query-version");
    let events = slow.take_events();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["event"], "BLOCK_EXPORT_DELETED");
        assert_eq!(event["data"], json!({"id": format!("e{number}")}));
    }
    assert_eq!(events.len(), EXPORTS, "events are missing");
    program.stop();
}

//! CPU affinity of the program's threads, as the kernel reports it.

use std::collections::BTreeMap;
use std::fs;

use rustix::process::Pid;
use test_support::threads::{read_of_each_thread, status_field};

use crate::process::Folder;

/// The CPUs that each thread of a process may run on, by the thread's name, in the kernel's notation.
fn cpus_by_thread(pid: Pid) -> BTreeMap<String, String> {
    read_of_each_thread(pid, "status")
        .iter()
        .map(|thread| {
            (
                status_field(&thread.text, "Name"),
                status_field(&thread.text, "Cpus_allowed_list"),
            )
        })
        .collect()
}

/// The CPUs that this test, and a program that it starts, may use.
fn usual() -> String {
    status_field(
        &fs::read_to_string("/proc/self/status").unwrap(),
        "Cpus_allowed_list",
    )
}

/// The first and the last CPU of a list.
fn ends(list: &str) -> [String; 2] {
    let mut numbers = list.split([',', '-']);
    let first = numbers.next().unwrap().to_owned();
    let last = numbers.next_back().unwrap_or(&first).to_owned();
    [first, last]
}

/// Only iothreads are bound: their workers, and the rest of the program, run anywhere.
#[test]
fn cpu_affinity_binds_iothreads_but_not_workers() {
    let folder = Folder::new();
    let usual = usual();
    let [first, last] = ends(&usual);
    let line = format!(
        "--object iothread,id=a,cpu-affinity={first},thread-pool-min=1 \
         --object iothread,id=b,cpu-affinity={last},thread-pool-min=1 \
         --object iothread,id=free \
         --blockdev null-co,node-name=d \
         --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,num-queues=2,\
         iothread.0=a,iothread.1=b"
    );
    let mut server = folder.start(&line, "s");
    let threads = [
        ("IO a", &first),
        ("IO b", &last),
        ("IO free", &usual),
        ("worker a", &usual),
        ("worker b", &usual),
        ("vhost-user", &usual),
        ("blockplane", &usual),
    ];
    // A thread names itself, which may be after the socket is there.
    let (pid, mut cpus) = (server.pid(), BTreeMap::new());
    server.wait_until("its threads have their names", || {
        cpus = cpus_by_thread(pid);
        threads.iter().all(|(thread, _)| cpus.contains_key(*thread))
    });
    for (thread, wanted) in threads {
        assert_eq!(cpus.get(thread), Some(wanted), "{thread} of {cpus:?}");
    }
    server.stop();
}

#[test]
fn serve_binds_and_reports_each_iothread_or_all() {
    let folder = Folder::new();
    let [first, last] = ends(&usual());
    let each = [&first, &last];
    for (cpus, wanted) in [
        (format!("--cpu-affinity {first}"), [&first, &first]),
        (
            format!("--cpu-affinity {first} --cpu-affinity {last}"),
            each,
        ),
    ] {
        let server = folder.start(
            &format!("serve null-co: --socket s --iothreads 2 {cpus}"),
            "s",
        );
        let found = cpus_by_thread(server.pid());
        assert_eq!(found.get("IO io0"), Some(wanted[0]), "{found:?}");
        assert_eq!(found.get("IO io1"), Some(wanted[1]), "{found:?}");
        let log = server.stop().stderr;
        for (thread, cpus) in ["io0", "io1"].iter().zip(wanted) {
            assert!(
                log.lines().any(|line| line.contains("bound to CPUs")
                    && line.contains(thread)
                    && line.contains(&format!("cpus={cpus}"))),
                "no {thread} on {cpus} in: {log}"
            );
        }
    }
}

#[test]
fn unavailable_cpu_is_refused_with_the_available_ones() {
    let folder = Folder::new();
    let [first, last] = ends(&usual());
    for line in [
        format!("--object iothread,id=io0,cpu-affinity.0={first},cpu-affinity.1=1023"),
        format!("serve disk.img --size 1M --cpu-affinity {first},1023"),
    ] {
        let ended = folder.run(&line);
        ended.assert_fails_naming(&["iothread io0", "cpu-affinity", "CPU 1023", &first, &last]);
        assert_eq!(folder.names(), [""; 0], "{line}");
    }
}

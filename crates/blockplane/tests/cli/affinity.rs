//! CPU affinity of the program's threads, as the kernel reports it.

use std::collections::BTreeMap;

use crate::process::{Folder, Process};
use crate::sandbox::{inherited, of_threads};

/// The CPUs that this test, and a program that it starts, may use, in the kernel's notation.
fn usual() -> String {
    inherited("Cpus_allowed_list")
}

/// The first and the last CPU of a list.
fn ends(list: &str) -> [String; 2] {
    let mut numbers = list.split([',', '-']);
    let first = numbers.next().unwrap().to_owned();
    let last = numbers.next_back().unwrap_or(&first).to_owned();
    [first, last]
}

/// Asserts on which CPUs the threads of these names may run.
#[track_caller]
fn assert_cpus(server: &mut Process, wanted: &[(&str, &String)]) {
    let (pid, mut found) = (server.pid(), BTreeMap::new());
    // A thread names itself, which may be after the socket is there.
    server.wait_until("its threads have their names", || {
        found = of_threads(pid, "Cpus_allowed_list").into_iter().collect();
        wanted.iter().all(|(thread, _)| found.contains_key(*thread))
    });
    for (thread, cpus) in wanted {
        assert_eq!(found.get(*thread), Some(*cpus), "{thread} of {found:?}");
    }
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
    let wanted = [
        ("IO a", &first),
        ("IO b", &last),
        ("IO free", &usual),
        ("worker a", &usual),
        ("worker b", &usual),
        ("vhost-user", &usual),
        ("blockplane", &usual),
    ];
    assert_cpus(&mut server, &wanted);
    server.stop();
}

#[test]
fn serve_binds_and_reports_each_iothread_or_all() {
    let folder = Folder::new();
    let [first, last] = ends(&usual());
    for (options, [a, b]) in [
        (format!("--cpu-affinity {first}"), [&first, &first]),
        (
            format!("--cpu-affinity {first} --cpu-affinity {last}"),
            [&first, &last],
        ),
    ] {
        let line = format!("serve null-co: --socket s --iothreads 2 {options}");
        let mut server = folder.start(&line, "s");
        assert_cpus(&mut server, &[("IO io0", a), ("IO io1", b)]);
        let log = server.stop().stderr;
        for (thread, cpus) in [("io0", a), ("io1", b)] {
            let words = ["bound to CPUs", thread, &format!("cpus={cpus}")];
            let mut lines = log.lines();
            let is_reported = lines.any(|line| words.iter().all(|word| line.contains(word)));
            assert!(is_reported, "no {thread} on {cpus} in: {log}");
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
        let words = ["iothread io0", "cpu-affinity", "CPU 1023", &first, &last];
        folder.run(&line).assert_fails_naming(&words);
        assert_eq!(folder.names(), [""; 0], "{line}");
    }
}

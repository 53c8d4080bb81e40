//! Iothreads that are added and removed, and settings that change while the program works: seen in the kernel, and with a load on it.

use std::fs;

use rustix::process::Pid;
use serde_json::{Value, json};
use test_support::threads::{read_of_each_thread, status_field};

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::{MONITOR, start_with_disk};

#[track_caller]
fn set(client: &mut Client, path: &str, property: &str, value: &Value) {
    let line = format!("qom-set path={path} property={property} value={value}");
    assert_eq!(client.execute(&line), json!({}));
}

/// A line of the kernel's about each thread of this name.
fn threads(pid: Pid, name: &str, line: &str) -> Vec<String> {
    read_of_each_thread(pid, "status")
        .iter()
        .filter(|thread| status_field(&thread.text, "Name") == name)
        .map(|thread| status_field(&thread.text, line))
        .collect()
}

#[test]
fn iothread_is_added_queried_tuned_and_removed() {
    let line = "--object iothread,id=a,poll-max-ns=7 --blockdev null-co,node-name=d \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a";
    let (_folder, program, mut client) = start_with_disk(line);
    let new = "object-add qom-type=iothread id=b aio-max-batch=5 cpu-affinity=0";
    client.execute(new);
    client.assert_errors(&format!(
        "{new} => attempt to add duplicate property 'b' to object (type 'container')
         object-del id=a => object 'a' is in use, can not be deleted: export 'e' runs on it"
    ));
    let iothreads = client.execute("query-iothreads");
    assert_eq!(iothreads[0]["poll-max-ns"], 7);
    assert_eq!(iothreads[1]["aio-max-batch"], 5);
    assert_eq!(iothreads[1]["cpu-affinity"], json!([0]));
    for iothread in iothreads.as_array().unwrap() {
        let (pid, id) = (program.pid(), &iothread["thread-id"]);
        let name = fs::read_to_string(format!("/proc/{pid}/task/{id}/comm")).unwrap();
        assert_eq!(name, format!("IO {}\n", iothread["id"].as_str().unwrap()));
    }
    client.execute("object-del id=b");
    assert_eq!(client.error_of("object-del id=b"), "object 'b' not found");
    assert_eq!(client.execute("query-iothreads")[1], Value::Null);

    let listed = client.execute("qom-list path=/objects/a");
    let of_type = client.execute("qom-list-properties typename=iothread");
    assert_eq!(listed, of_type);
    for (property, value) in [
        ("poll-max-ns", json!(5)),
        ("poll-grow", json!(3)),
        ("poll-shrink", json!(2)),
        ("poll-cpu-max", json!(50)),
        ("aio-max-batch", json!(16)),
        ("aio-max-events", json!(7)),
        ("thread-pool-max", json!(9)),
        ("thread-pool-min", json!(1)),
        ("cpu-affinity", json!([0])),
    ] {
        set(&mut client, "/objects/a", property, &value);
        let get = format!("qom-get path=/objects/a property={property}");
        assert_eq!(client.execute(&get), value);
        assert_eq!(client.execute("query-iothreads")[0][property], value);
    }
    client.assert_errors(
        "qom-set path=/objects/a property=poll-max-ns value=-5 => poll-max-ns value must be in range [0, 9223372036854775807]
         qom-set path=a property=poll-cpu-max value=101 => poll-cpu-max value must be in range [0, 100]
         qom-set path=a property=type value=x => Property 'iothread.type' is not writable
         qom-set path=a property=aio-max-events value=0 => aio-max-events value must be in range [1, 65536]
         qom-set path=a property=thread-pool-min value=10 => 'thread-pool-min' (10) is above 'thread-pool-max' (9); raise the latter
         qom-set path=/objects property=a value=1 => Property 'container.a' is not writable
         qom-set path=a property=nope value=1 => Property 'iothread.nope' not found
         qom-set path=/objects/nope property=x value=1 => Device '/objects/nope' not found",
    );
    let poll_max = client.execute("qom-get path=/objects/a property=poll-max-ns");
    assert_eq!(poll_max, 5, "unchanged");
    client.execute(
        "block-export-del id=e
         object-del id=a",
    );
    program.stop();
}

#[test]
fn workers_and_cpu_affinity_are_set_at_run_time() {
    let (_folder, mut program, mut client) = start_with_disk("--object iothread,id=a");
    let pid = program.pid();
    let count = || threads(pid, "worker a", "Name").len();
    assert_eq!(count(), 0);
    set(&mut client, "/objects/a", "thread-pool-min", &json!(3));
    // A thread that is there has its name a moment later.
    program.wait_until("has three workers", || count() == 3);

    let cpus = || threads(pid, "IO a", "Cpus_allowed_list");
    let before = cpus();
    set(&mut client, "/objects/a", "cpu-affinity", &json!("0"));
    assert_eq!(cpus(), ["0"]);
    let refused = client.error_of("qom-set path=a property=cpu-affinity value=1023");
    assert!(refused.contains("CPU 1023 cannot be used"), "{refused}");
    assert_eq!(cpus(), ["0"]);
    let set_cpus = client.execute("qom-get path=a property=cpu-affinity");
    assert_eq!(set_cpus, json!([0]));
    // Its workers are not bound, also those that start now.
    set(&mut client, "/objects/a", "thread-pool-min", &json!(4));
    let workers = || threads(pid, "worker a", "Cpus_allowed_list");
    let unbound = vec![before[0].clone(); 4];
    program.wait_until("has four workers that are not bound", || {
        workers() == unbound
    });
    set(&mut client, "/objects/a", "cpu-affinity", &json!([]));
    assert_eq!(cpus(), before);
    program.stop();
}

#[test]
fn default_iothread_is_shared_and_tunable() {
    let export = "--export vhost-user-blk,node-name=d,addr.type=unix";
    let exports = format!(
        "--blockdev null-co,node-name=d {export},id=e,addr.path=e {export},id=f,addr.path=f"
    );
    let main = "--object iothread,id=main,poll-max-ns=7";
    // One that has its name takes its place.
    for (line, poll_max) in [(exports.clone(), 200_000), (format!("{main} {exports}"), 7)] {
        let (_folder, program, mut client) = start_with_disk(&line);
        let iothreads = client.execute("query-iothreads");
        assert_eq!(iothreads.as_array().unwrap().len(), 1);
        assert_eq!(iothreads[0]["id"], "main");
        assert_eq!(iothreads[0]["poll-max-ns"], poll_max);
        set(&mut client, "/objects/main", "poll-max-ns", &json!(1));
        let iothreads = client.execute("query-iothreads");
        assert_eq!(iothreads[0]["poll-max-ns"], 1);
        client.execute("block-export-del id=e");
        let used = client.error_of("object-del id=main");
        assert!(used.ends_with("export 'f' runs on it"), "{used}");
        client.execute(
            "block-export-del id=f
             object-del id=main",
        );
        program.stop();
    }
    // Too late.
    let ended = Folder::new().run(&format!("{exports} {main}"));
    ended.assert_fails_naming(&["--object", "'main'", "before them"]);
}

#[test]
fn properties_of_exports_are_listed_read_and_set() {
    let line = "--blockdev null-co,node-name=d --blockdev null-co,node-name=s \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e,num-queues=3 \
                --export vhost-user-scsi,id=v,luns.0.node-name=s,luns.0.target=2,addr.type=unix,addr.path=v";
    let (_folder, program, mut client) = start_with_disk(line);
    let exports = client.execute("qom-list path=/exports");
    for (index, id, kind) in [(1, "e", "vhost-user-blk"), (2, "v", "vhost-user-scsi")] {
        let child = json!({"name": id, "type": format!("child<{kind}>")});
        assert_eq!(exports[index], child);
        let listed = client.execute(&format!("qom-list path=/exports/{id}"));
        let of_type = client.execute(&format!("qom-list-properties typename={kind}"));
        assert_eq!(listed, of_type);
        let found = client.execute(&format!("qom-get path=/exports/{id} property=type"));
        assert_eq!(found, kind);
    }
    let luns = client.execute("qom-get path=/exports/v property=luns");
    assert_eq!(
        [&luns[0]["node-name"], &luns[0]["target"]],
        [&json!("s"), &json!(2)]
    );
    for (property, before, after) in [
        ("request-merging", json!(true), json!(false)),
        ("max-merge-requests", json!(32), json!(7)),
        ("max-merge-bytes", json!(1 << 20), json!(65536)),
    ] {
        let get = format!("qom-get path=/exports/e property={property}");
        assert_eq!(client.execute(&get), before);
        set(&mut client, "/exports/e", property, &after);
        assert_eq!(client.execute(&get), after);
    }
    client.assert_errors(
        "qom-set path=/exports/e property=max-merge-requests value=65 => max-merge-requests value must be in range [0, 64]
         qom-set path=/exports/e property=request-merging value=1 => Invalid parameter type for 'request-merging', expected: boolean
         qom-set path=/exports/e property=num-queues value=1 => Property 'vhost-user-blk.num-queues' is not writable
         qom-set path=/exports/v property=num-queues value=3 => Property 'vhost-user-scsi.num-queues' is not writable
         qom-set path=/exports/nope property=request-merging value=true => Device '/exports/nope' not found",
    );

    // Values that are not set have the type of the property.
    client.execute("scsi-lun-del id=v target=2 lun=0");
    for path in ["/exports/e", "/exports/v", "/objects/main"] {
        let properties = client.execute(&format!("qom-list path={path}"));
        for property in properties.as_array().unwrap() {
            let name = property["name"].as_str().unwrap();
            let value = client.execute(&format!("qom-get path={path} property={name}"));
            let has_type = match property["type"].as_str().unwrap() {
                "bool" => value.is_boolean(),
                "int" => value.is_u64(),
                "string" => value.is_string(),
                _ => value.is_array(),
            };
            assert!(has_type, "{path}: {property}: {value}");
        }
    }
    let serial = client.execute("qom-get path=/exports/e property=serial");
    let luns = client.execute("qom-get path=/exports/v property=luns");
    assert_eq!([serial, luns], [json!(""), json!([])]);
    program.stop();
}

/// A number that the iothread logs at its end.
fn logged(log: &str, name: &str) -> u64 {
    let (_, after) = log.split_once(&format!(" {name}=")).expect(log);
    let digits: String = after.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap()
}

/// A client that checks all that it reads, with a deep queue, while one thing after the other is changed.
#[test]
fn tuning_under_full_load_keeps_data_intact() {
    for aio in ["native", "io_uring", "threads"] {
        let folder = Folder::new();
        folder.image("disk", 16 << 20);
        let direct = if aio == "threads" { "off" } else { "on" };
        let line = format!(
            "{MONITOR} --object iothread,id=a \
             --blockdev file,node-name=d,filename=disk,aio={aio},cache.direct={direct} \
             --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=a,\
             writable=on,num-queues=2"
        );
        let mut command = folder.command(words(&line));
        command.env("BLOCKPLANE_LOG", "debug");
        let mut program = Process::spawn(command);
        program.wait_until_accepting(&folder.join("s"));
        let mut client = Client::connect(&folder.join("qmp"));
        set(&mut client, "/objects/a", "aio-max-batch", &json!(3));
        let load =
            "run s --pattern randrw --depth 128 --queues 2 --time 1s --verify --destroy-data";
        let mut round = 0;
        let ended = std::thread::scope(|scope| {
            let load = scope.spawn(|| folder.measure(load));
            while !load.is_finished() {
                round += 1;
                for (property, value) in [
                    ("poll-max-ns", json!([0, 1_000, 1_000_000][round % 3])),
                    ("poll-grow", json!(round % 4)),
                    ("poll-shrink", json!(round % 3)),
                    ("poll-cpu-max", json!([100, 0, 10][round % 3])),
                    ("aio-max-batch", json!(1 + round % 3)),
                    ("aio-max-events", json!(1 + round % 100)),
                    ("thread-pool-max", json!(4 + round % 5)),
                    ("thread-pool-min", json!(round % 4)),
                    (
                        "cpu-affinity",
                        json!(if round % 2 == 0 { vec![] } else { vec![0] }),
                    ),
                ] {
                    set(&mut client, "/objects/a", property, &value);
                    let iothreads = client.execute("query-iothreads");
                    assert_eq!(iothreads[0][property], value, "{property}");
                }
                let merging = [
                    ("request-merging", json!(round % 2 == 0)),
                    ("max-merge-requests", json!(round % 65)),
                ];
                for (property, value) in merging {
                    set(&mut client, "/exports/e", property, &value);
                }
            }
            load.join().unwrap()
        });
        assert_eq!(ended.code, Some(0), "{aio}: {ended:?}");
        assert!(round > 0, "{aio}: nothing was changed");
        let log = program.stop().stderr;
        assert!(!log.contains("ERROR"), "{log}");
        if aio != "threads" {
            let largest = logged(&log, "largest_batch");
            assert!((1..=3).contains(&largest), "{aio}: {log}");
        }
    }
}

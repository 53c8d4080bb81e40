//! Settings that change while the program works: seen in the kernel, and with a load on it.

use rustix::process::Pid;
use serde_json::{Value, json};
use test_support::threads::{read_of_each_thread, status_field};

use crate::client::Client;
use crate::process::{Folder, Process, words};
use crate::{MONITOR, start};

#[track_caller]
fn set(client: &mut Client, path: &str, property: &str, value: Value) {
    let arguments = json!({"path": path, "property": property, "value": value});
    assert_eq!(client.done("qom-set", arguments), json!({}));
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
fn workers_and_cpu_affinity_are_set_at_run_time() {
    let folder = Folder::new();
    let (mut program, mut client) = start(&folder, "--object iothread,id=a");
    let pid = program.pid();
    let count = || threads(pid, "worker a", "Name").len();
    assert_eq!(count(), 0);
    set(&mut client, "/objects/a", "thread-pool-min", json!(3));
    // A thread that is there has its name a moment later.
    program.wait_until("has three workers", || count() == 3);

    let cpus = || threads(pid, "IO a", "Cpus_allowed_list");
    let before = cpus();
    set(&mut client, "/objects/a", "cpu-affinity", json!("0"));
    assert_eq!(cpus(), ["0"]);
    let wrong = json!({"path": "a", "property": "cpu-affinity", "value": 1023});
    let refused = client.fails("qom-set", wrong);
    assert!(refused.contains("CPU 1023 cannot be used"), "{refused}");
    assert_eq!(cpus(), ["0"]);
    let property = json!({"path": "a", "property": "cpu-affinity"});
    assert_eq!(client.done("qom-get", property), json!([0]));
    // Its workers are not bound, also those that start now.
    set(&mut client, "/objects/a", "thread-pool-min", json!(4));
    let workers = || threads(pid, "worker a", "Cpus_allowed_list");
    let unbound = vec![before[0].clone(); 4];
    program.wait_until("has four workers that are not bound", || {
        workers() == unbound
    });
    set(&mut client, "/objects/a", "cpu-affinity", json!([]));
    assert_eq!(cpus(), before);
    program.stop();
}

#[test]
fn default_iothread_is_shared_and_tunable() {
    let folder = Folder::new();
    let export = "--export vhost-user-blk,node-name=d,addr.type=unix";
    let line = format!(
        "--blockdev null-co,node-name=d {export},id=e,addr.path=e {export},id=f,addr.path=f"
    );
    let (program, mut client) = start(&folder, &line);
    let iothreads = client.done("query-iothreads", json!({}));
    assert_eq!(iothreads.as_array().unwrap().len(), 1);
    assert_eq!(iothreads[0]["id"], "main");
    set(&mut client, "/objects/main", "poll-max-ns", json!(1));
    assert_eq!(
        client.done("query-iothreads", json!({}))[0]["poll-max-ns"],
        1
    );
    client.done("block-export-del", json!({"id": "e"}));
    let used = client.fails("object-del", json!({"id": "main"}));
    assert!(used.ends_with("export 'f' runs on it"), "{used}");
    client.done("block-export-del", json!({"id": "f"}));
    client.done("object-del", json!({"id": "main"}));
    program.stop();
}

#[test]
fn iothread_named_main_becomes_the_default() {
    let folder = Folder::new();
    let main = "--object iothread,id=main,poll-max-ns=7";
    let export = "--blockdev null-co,node-name=d \
                  --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e";
    let (program, mut client) = start(&folder, &format!("{main} {export}"));
    let iothreads = client.done("query-iothreads", json!({}));
    assert_eq!(iothreads.as_array().unwrap().len(), 1);
    assert_eq!(iothreads[0]["poll-max-ns"], 7);
    program.stop();
    // Too late.
    let ended = folder.run(&format!("{export} {main}"));
    ended.assert_fails_naming(&["--object", "'main'", "before them"]);
}

#[test]
fn values_of_unset_properties_have_the_type_of_the_property() {
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d --blockdev null-co,node-name=s \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e \
                --export vhost-user-scsi,id=v,node-name=s,addr.type=unix,addr.path=v";
    let (program, mut client) = start(&folder, line);
    client.done("scsi-lun-del", json!({"id": "v", "lun": 0}));
    let mut serial_and_luns = Vec::new();
    for path in ["/exports/e", "/exports/v", "/objects/main"] {
        let properties = client.done("qom-list", json!({"path": path}));
        for property in properties.as_array().unwrap() {
            let name = property["name"].as_str().unwrap();
            let value = client.done("qom-get", json!({"path": path, "property": name}));
            let has_type = match property["type"].as_str().unwrap() {
                "bool" => value.is_boolean(),
                "int" => value.is_u64(),
                "string" => value.is_string(),
                _ => value.is_array(),
            };
            assert!(has_type, "{path}: {property}: {value}");
            if ["serial", "luns"].contains(&name) {
                serial_and_luns.push(value);
            }
        }
    }
    assert_eq!(serial_and_luns, [json!(""), json!([])]);
    program.stop();
}

#[test]
fn request_merging_of_an_export_is_read_and_set() {
    let folder = Folder::new();
    let line = "--blockdev null-co,node-name=d \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=e,num-queues=3";
    let (program, mut client) = start(&folder, line);
    let at = |property: &str| json!({"path": "/exports/e", "property": property});
    for (property, before, after) in [
        ("request-merging", json!(true), json!(false)),
        ("max-merge-requests", json!(32), json!(7)),
        ("max-merge-bytes", json!(1 << 20), json!(65536)),
    ] {
        assert_eq!(client.done("qom-get", at(property)), before);
        set(&mut client, "/exports/e", property, after.clone());
        assert_eq!(client.done("qom-get", at(property)), after);
    }
    for (path, property, value, reason) in [
        (
            "/exports/e",
            "max-merge-requests",
            json!(65),
            "max-merge-requests value must be in range [0, 64]",
        ),
        (
            "/exports/e",
            "request-merging",
            json!(1),
            "Invalid parameter type for 'request-merging', expected: boolean",
        ),
        (
            "/exports/e",
            "num-queues",
            json!(1),
            "Property 'vhost-user-blk.num-queues' is not writable",
        ),
        (
            "/exports/nope",
            "request-merging",
            json!(true),
            "Device '/exports/nope' not found",
        ),
    ] {
        let set = json!({"path": path, "property": property, "value": value});
        assert_eq!(client.fails("qom-set", set), reason);
    }
    let list = client.done("qom-list", json!({"path": "/exports"}));
    assert_eq!(
        list[1],
        json!({"name": "e", "type": "child<vhost-user-blk>"})
    );
    assert_eq!(
        client.done("qom-list", json!({"path": "/exports/e"})),
        client.done("qom-list-properties", json!({"typename": "vhost-user-blk"}))
    );
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
        set(&mut client, "/objects/a", "aio-max-batch", json!(3));
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
                    set(&mut client, "/objects/a", property, value.clone());
                    let iothreads = client.done("query-iothreads", json!({}));
                    assert_eq!(iothreads[0][property], value, "{property}");
                }
                set(
                    &mut client,
                    "/exports/e",
                    "request-merging",
                    json!(round % 2 == 0),
                );
                set(
                    &mut client,
                    "/exports/e",
                    "max-merge-requests",
                    json!(round % 65),
                );
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

//! Tests of QEMU's human monitor commands. The texts are those of QEMU 7.2 for the same objects.

use serde_json::json;

use crate::client::Client;
use crate::start_with_disk;

fn ask(client: &mut Client, line: &str) -> String {
    let answer = client.done("human-monitor-command", json!({"command-line": line}));
    answer.as_str().unwrap().to_owned()
}

#[test]
fn hmp_prints_qemus_texts_help_and_errors() {
    let line = "--object iothread,id=io0,poll-max-ns=1000 --blockdev null-co,node-name=m,size=65536 \
                --blockdev file,node-name=d,filename=disk,cache.direct=off,read-only=on \
                --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=io0";
    let (_folder, program, mut client) = start_with_disk(line);
    let thread_id = client.execute("query-iothreads")[0]["thread-id"].clone();
    let null = "m: json:{\"driver\": \"null-co\", \"size\": 65536} (null-co)\r\n    \
                Cache mode:       writeback\r\n";
    let file = "disk (file, read-only)\r\n";
    let cache = "    Cache mode:       writeback\r\n";
    let export = format!("e (d): {file}    Attached to:      /exports/e\r\n{cache}");
    for (line, answer) in [
        (
            "info iothreads",
            format!(
                "io0:\r\n  thread_id={thread_id}\r\n  poll-max-ns=1000\r\n  poll-grow=0\r\n  \
                 poll-shrink=0\r\n  aio-max-batch=0\r\n"
            ),
        ),
        (" info  block -n", format!("d: {file}{cache}\r\n{null}")),
        ("info block", export.clone()),
        ("info block e", export),
        (
            "info block -v m",
            format!(
                "{null}\r\nImages:\r\nimage: json:{{\"driver\": \"null-co\", \"size\": 65536}}\r\n\
                 file format: null-co\r\nvirtual size: 64 KiB (65536 bytes)\r\ndisk size: 0 B\r\n"
            ),
        ),
        ("info block nope", String::new()),
        (
            "info version",
            concat!(env!("CARGO_PKG_VERSION"), "blockplane\r\n").to_owned(),
        ),
        (
            "info chardev",
            "c: filename=unix:qmp,server=on\r\n".to_owned(),
        ),
    ] {
        assert_eq!(ask(&mut client, line), answer, "{line}");
    }

    for (line, answer) in [
        ("", ""),
        ("nope foo", "unknown command: 'nope'\r\n"),
        ("info nope", "unknown command: 'info nope'\r\n"),
        ("help nope", "unknown command: 'nope'\r\n"),
        ("help help", "help|? [cmd] -- show the help\r\n"),
        (
            "help info iothreads",
            "info iothreads  -- show iothreads\r\n",
        ),
        (
            "info version x",
            "version: extraneous characters at the end of line\r\nTry \"help info version\" for more information\r\n",
        ),
        (
            "info block -x",
            "block: unsupported option -x\r\nTry \"help info block\" for more information\r\n",
        ),
    ] {
        assert_eq!(ask(&mut client, line), answer, "{line}");
    }
    // All that is listed is known.
    let listed = ask(&mut client, "info");
    assert_eq!(listed, ask(&mut client, "help info"));
    for line in listed.lines() {
        let name: Vec<&str> = line.split_whitespace().take(2).collect();
        let answer = ask(&mut client, &name.join(" "));
        assert!(!answer.contains("unknown"), "{line}");
    }
    assert_eq!(ask(&mut client, "help").lines().count(), 2);
    assert_eq!(ask(&mut client, "?"), ask(&mut client, "help"));
    program.stop();
}

#[test]
fn hmp_info_block_prints_the_limits_of_a_throttled_device() {
    let line = "--object throttle-group,id=tenant,limits.bps-write=1M,limits.iops-total=100,limits.iops-total-max=200,limits.iops-size=4k \
                --object throttle-group,id=unlimited --blockdev null-co,node-name=n \
                --blockdev throttle,node-name=inner,throttle-group=tenant,file=n \
                --blockdev throttle,node-name=outer,throttle-group=unlimited,file=inner \
                --export vhost-user-blk,id=e,node-name=outer,addr.type=unix,addr.path=s";
    let (_folder, program, mut client) = start_with_disk(line);
    let limits = |text: &str| {
        let lines = text.lines().filter(|line| line.contains("throttling"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let tenant = "    I/O throttling:   bps=0 bps_rd=0 bps_wr=1048576 bps_max=0 bps_rd_max=0 bps_wr_max=0 iops=100 iops_rd=0 \
                  iops_wr=0 iops_max=200 iops_rd_max=0 iops_wr_max=0 iops_size=4096 group=tenant";
    assert_eq!(limits(&ask(&mut client, "info block")), [tenant]);
    assert_eq!(limits(&ask(&mut client, "info block inner")), [tenant]);
    assert!(limits(&ask(&mut client, "info block n")).is_empty());

    client.execute("qom-set path=/objects/unlimited property=limits value.bps-total=5");
    let both = limits(&ask(&mut client, "info block e"));
    assert!(both[0].ends_with("group=unlimited"), "{both:?}");
    assert_eq!(both[1..], [tenant]);
    program.stop();
}

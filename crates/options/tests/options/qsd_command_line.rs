//! Options of qemu-storage-daemon, as scripts that call it use them.
#![allow(
    clippy::needless_update,
    reason = "an option that is added has its default in these"
)]

use std::path::PathBuf;

use options::{
    AioMode, BlockdevOptions, CommonExportOptions, CommonNodeOptions, Confinement,
    DaemonSettingsAndDirectives, DetectZeroes, Directive, Discard, Driver, ExportKind,
    ExportOptions, FileOptions, Invocation, IothreadOptions, Locking, NodeRef, NullOptions,
    ObjectOptions, OnError, Problem, RawOffsetAndSize, Sandbox, SandboxOptions, SocketAddr,
    VhostUserBlkOptions, parse,
};

fn daemon(args: &[&str]) -> DaemonSettingsAndDirectives {
    match parse(args.iter().map(Into::into)).unwrap() {
        Invocation::Daemon(daemon) => daemon,
        other => panic!("not a daemon: {other:?}"),
    }
}

fn error(args: &[&str]) -> String {
    match parse(args.iter().map(Into::into)) {
        Err(error) => error.to_string(),
        Ok(invocation) => panic!("{args:?} was accepted: {invocation:?}"),
    }
}

fn node(options: &str) -> BlockdevOptions {
    match daemon(&["--blockdev", options]).directives.remove(0) {
        Directive::Blockdev(node) => node,
        other => panic!("not a node: {other:?}"),
    }
}

fn node_error(options: &str) -> String {
    error(&["--blockdev", options])
}

fn iothread(options: &str) -> IothreadOptions {
    match daemon(&["--object", options]).directives.remove(0) {
        Directive::Object(ObjectOptions::Iothread(iothread)) => iothread,
        other => panic!("not an iothread: {other:?}"),
    }
}

/// A node and two iothreads for exports to refer to.
const BASE: [&str; 6] = [
    "--blockdev",
    "null-co,node-name=n",
    "--object",
    "iothread,id=a",
    "--object",
    "iothread,id=b",
];

fn export(rest: &str) -> ExportOptions {
    let text = format!("vhost-user-blk,id=e,node-name=n{rest}");
    match daemon(&[&BASE[..], &["--export", &text]].concat())
        .directives
        .pop()
    {
        Some(Directive::Export(export)) => export,
        other => panic!("not an export: {other:?}"),
    }
}

fn export_error(rest: &str) -> String {
    let text = format!("vhost-user-blk,id=e,node-name=n,{rest}");
    error(&[&BASE[..], &["--export", &text]].concat())
}

const UNIX: &str = ",addr.type=unix,addr.path=/x";

#[test]
fn directives_keep_the_order_of_the_command_line() {
    let daemon = daemon(&[
        "--daemonize",
        "--object",
        "iothread,id=io0",
        "--pidfile=/run/x.pid",
        "--blockdev",
        "file,node-name=f,filename=/a,,b,cache.direct=on",
        "--blockdev=raw,node-name=r,file=f",
        "--export",
        "vhost-user-blk,id=e,node-name=r,addr.type=unix,addr.path=/x.sock,writable=on,num-queues=4,iothread=io0",
    ]);
    assert!(daemon.daemonize);
    assert_eq!(daemon.pidfile, Some(PathBuf::from("/run/x.pid")));
    let file = BlockdevOptions {
        node_name: "f".to_owned(),
        settings: CommonNodeOptions {
            read_only: false,
            auto_read_only: false,
            discard: Discard::Ignore,
            cache_direct: Some(true),
            cache_no_flush: false,
            active: true,
            force_share: false,
            detect_zeroes: DetectZeroes::Off,
        },
        driver: Driver::File(FileOptions {
            filename: PathBuf::from("/a,b"),
            aio: None,
            locking: Locking::Auto,
            aio_max_batch: 0,
            bitmap_file: None,
        }),
    };
    let raw = BlockdevOptions {
        node_name: "r".to_owned(),
        settings: CommonNodeOptions {
            cache_direct: None,
            ..file.settings.clone()
        },
        driver: Driver::Raw {
            file: NodeRef::Name("f".to_owned()),
            part: RawOffsetAndSize {
                offset: 0,
                size: None,
            },
        },
    };
    let export = ExportOptions {
        id: "e".to_owned(),
        node_name: "r".to_owned(),
        iothreads: vec!["io0".to_owned()],
        settings: CommonExportOptions {
            writable: true,
            writethrough: false,
            fixed_iothread: false,
            allow_inactive: false,
        },
        kind: ExportKind::VhostUserBlk {
            addr: SocketAddr::Unix {
                path: PathBuf::from("/x.sock"),
            },
            disk: VhostUserBlkOptions {
                num_queues: 4,
                queue_size: 1024,
                logical_block_size: 512,
                serial: None,
                request_merging: true,
                max_merge_requests: 32,
                max_merge_bytes: 1 << 20,
                packed: false,
                rerror: OnError::Report,
                werror: OnError::Report,
                request_timeout: 30,
                fixed_buffers: false,
            },
        },
    };
    assert_eq!(
        daemon.directives,
        [
            Directive::Object(ObjectOptions::Iothread(IothreadOptions::new("io0"))),
            Directive::Blockdev(file),
            Directive::Blockdev(raw),
            Directive::Export(export),
        ]
    );
}

#[test]
fn help_version_and_bad_options_come_before_everything_else() {
    for args in [
        &["-h"][..],
        &["--help"],
        &["--he"],
        &["--blockdev", "nonsense", "stray", "-h"],
        &["-hV"],
        &[],
    ] {
        let Ok(Invocation::Help(text)) = parse(args.iter().map(Into::into)) else {
            panic!("{args:?}")
        };
        assert!(
            text.contains("blockplane serve") && text.contains("--blockdev"),
            "both faces"
        );
    }
    for args in [
        &["-V"][..],
        &["--version"],
        &["--object", "nonsense", "-Vh"],
    ] {
        let Ok(Invocation::Version(text)) = parse(args.iter().map(Into::into)) else {
            panic!("{args:?}")
        };
        assert_eq!(
            text,
            format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"))
        );
    }
    assert!(
        error(&["--blockdev", "nonsense", "--frobnicate"])
            .starts_with("--frobnicate: unrecognized option")
    );
}

#[test]
fn the_help_lists_every_key_that_is_accepted() {
    let Ok(Invocation::Help(text)) = parse(["--help".into()].into_iter()) else {
        panic!()
    };
    for known in [
        error(&["--object", "iothread,id=a,zz=1"]),
        node_error("file,zz=1"),
        node_error("raw,zz=1"),
        node_error("null-co,zz=1"),
        export_error("zz=1"),
    ] {
        let (_, keys) = known.split_once("Known: ").unwrap();
        for key in keys.split(", ") {
            assert!(
                text.contains(&format!("  {key}=")),
                "{key} is not in the help"
            );
        }
    }
}

#[test]
fn help_texts_have_80_columns() {
    for line in [
        "--help",
        "help serve",
        "help check",
        "help generate",
        "--object iothread,help",
        "--blockdev file,help",
        "--blockdev raw,help",
        "--export vhost-user-blk,help",
        "--chardev socket,help",
    ] {
        let words = line.split(' ').map(Into::into);
        let Ok(Invocation::Help(text)) = parse(words) else {
            panic!("{line}")
        };
        for shown in text.lines() {
            assert!(shown.chars().count() <= 80, "{line}: {shown}");
        }
    }
}

#[test]
fn help_inside_an_option_lists_kinds_or_keys() {
    for (args, wanted) in [
        (["--object", "help"], "iothread"),
        (["--object", "iothread,help"], "poll-max-ns=NS"),
        (["--blockdev", "help"], "host_device"),
        (["--blockdev", "driver=raw,?"], "offset=SIZE"),
        (["--export", "help"], "vhost-user-blk"),
        (["--export", "vhost-user-blk,help"], "num-queues=N"),
    ] {
        let Ok(Invocation::Help(text)) = parse(args.iter().map(Into::into)) else {
            panic!("{args:?}")
        };
        assert!(text.contains(wanted), "{args:?}: {text}");
    }
    assert!(node_error("qcow2,help").contains("'driver' cannot be 'qcow2'"));
}

#[test]
fn iothread_options_are_read() {
    let all = iothread(
        "iothread,id=a.b-c_1,poll-max-ns=0x10,poll-grow=2,poll-shrink=3,poll-cpu-max=8,aio-max-batch=4,aio-max-events=5,\
         thread-pool-min=6,thread-pool-max=7,cpu-affinity=4,,0-2",
    );
    let expected = IothreadOptions {
        id: "a.b-c_1".to_owned(),
        poll_max_ns: 16,
        poll_grow: 2,
        poll_shrink: 3,
        poll_cpu_max: 8,
        aio_max_batch: 4,
        aio_max_events: 5,
        thread_pool_min: 6,
        thread_pool_max: 7,
        cpu_affinity: vec![0, 1, 2, 4],
        ..IothreadOptions::defaults()
    };
    assert_eq!(all, expected);
    let defaults = iothread("iothread,id=a");
    assert_eq!(
        (
            defaults.poll_max_ns,
            defaults.aio_max_events,
            defaults.thread_pool_max,
            defaults.poll_cpu_max
        ),
        (200_000, 1024, 64, 100)
    );
    assert!(defaults.cpu_affinity.is_empty());
}

#[test]
fn an_iothread_has_no_experimental_options() {
    for option in ["x-late-notify=on", "x-first-batch=0", "x-anything=1"] {
        let error = error(&["--object", &format!("iothread,id=a,{option}")]);
        assert!(error.contains("unknown option"), "{error}");
    }
    for args in [vec!["--help"], vec!["--object", "iothread,help"]] {
        let Ok(Invocation::Help(text)) = parse(args.iter().map(Into::into)) else {
            panic!("{args:?}")
        };
        assert!(!text.contains("  x-"), "{text}");
    }
}

#[test]
fn cpus_of_an_iothread_are_sets_or_lists() {
    for (text, cpus) in [
        ("iothread,id=a,cpu-affinity=3", &[3][..]),
        ("iothread,id=a,cpu-affinity=1-2,,0", &[0, 1, 2]),
        (
            "iothread,id=a,cpu-affinity.0=4,cpu-affinity.1=0-1",
            &[0, 1, 4],
        ),
        (
            "{'qom-type':'iothread','id':'a','cpu-affinity':[1,0,'3-4']}",
            &[0, 1, 3, 4],
        ),
        (
            "{'qom-type':'iothread','id':'a','cpu-affinity':'0,2'}",
            &[0, 2],
        ),
        ("{'qom-type':'iothread','id':'a','cpu-affinity':[]}", &[]),
    ] {
        assert_eq!(iothread(text).cpu_affinity, cpus, "{text}");
    }
    let error = |text: &str| error(&["--object", text]);
    assert_eq!(
        error("iothread,id=a,cpu-affinity=2-1"),
        "--object: 'cpu-affinity' cannot be '2-1': expected numbers of CPUs below 1024 and ranges of them, such as 0-3"
    );
    assert!(
        error("iothread,id=a,cpu-affinity.0=1,cpu-affinity.1=1024")
            .contains("'cpu-affinity.1' cannot be '1024'")
    );
    assert!(error("iothread,id=a,cpu-affinity=").contains("'cpu-affinity' cannot be ''"));
    // A single comma ends the value.
    assert!(error("iothread,id=a,cpu-affinity=0,2").contains("',,'"));
    assert!(error("iothread,id=a,cpu_affinity=0").contains("did you mean 'cpu-affinity'?"));
}

#[test]
fn wrong_iothread_options_are_refused() {
    let error = |text: &str| error(&["--object", text]);
    assert_eq!(
        error("iothread"),
        "--object: 'id' is missing: write id=NAME, such as id=iothread0"
    );
    assert_eq!(
        error("iothread,id=a,poll-max-ns=-1"),
        "--object: 'poll-max-ns' value must be in range [0, 9223372036854775807], not -1"
    );
    assert!(
        error("iothread,id=a,poll-max-ns=1k")
            .contains("'poll-max-ns' cannot be '1k': expected a whole number")
    );
    for (key, bad, range) in [
        (
            "poll-max-ns",
            "9223372036854775808",
            "0, 9223372036854775807",
        ),
        ("poll-grow", "-1", "0, 9223372036854775807"),
        ("poll-shrink", "-1", "0, 9223372036854775807"),
        ("poll-cpu-max", "101", "0, 100"),
        ("poll-cpu-max", "-1", "0, 100"),
        ("aio-max-batch", "5000000000", "0, 4294967295"),
        ("aio-max-events", "0", "1, 65536"),
        ("aio-max-events", "65537", "1, 65536"),
        ("thread-pool-min", "4097", "0, 4096"),
        ("thread-pool-max", "0", "1, 4096"),
        ("thread-pool-max", "4097", "1, 4096"),
    ] {
        assert_eq!(
            error(&format!("iothread,id=a,{key}={bad}")),
            format!("--object: '{key}' value must be in range [{range}], not {bad}")
        );
    }
    assert!(
        error("iothread,id=a,thread-pool-min=65")
            .contains("'thread-pool-min' (65) is above 'thread-pool-max' (64)")
    );
    assert!(error("iothread,id=1a").contains("'id' cannot be '1a': expected a letter"));
    assert!(error("iothread,id=a,poll-max-sn=1").contains("did you mean 'poll-max-ns'?"));
    assert!(
        error("iothread,id=a,poll-weight=1")
            .contains("'poll-weight' is not supported by blockplane yet")
    );
    assert!(
        error("tls-creds-psk,id=a")
            .contains("'qom-type=tls-creds-psk' is not supported by blockplane yet")
    );
    assert!(error("iothraed,id=a").contains("did you mean 'iothread'? Known: iothread"));
    assert!(error("id=a").contains("'qom-type' is missing: one of iothread"));
}

#[test]
fn common_options_of_nodes_are_read() {
    let plain = node("null-co,node-name=n");
    assert_eq!(
        plain.driver,
        Driver::NullCo(NullOptions {
            size: 1 << 30,
            read_zeroes: false,
            latency_ns: 0,
            ..NullOptions::defaults()
        })
    );
    assert_eq!(
        plain.settings,
        CommonNodeOptions {
            read_only: false,
            auto_read_only: false,
            discard: Discard::Ignore,
            cache_direct: None,
            cache_no_flush: false,
            active: true,
            force_share: false,
            detect_zeroes: DetectZeroes::Off,
        }
    );
    let full = node(
        "driver=null-co,node-name=n,read-only=y,auto-read-only=true,discard=unmap,cache.direct=no,cache.no-flush=yes,\
         detect-zeroes=unmap,force-share=on,size=1.5G,read-zeroes=on,latency-ns=7",
    );
    assert_eq!(
        full.driver,
        Driver::NullCo(NullOptions {
            size: 3 << 29,
            read_zeroes: true,
            latency_ns: 7,
            ..NullOptions::defaults()
        })
    );
    assert_eq!(
        full.settings,
        CommonNodeOptions {
            read_only: true,
            auto_read_only: true,
            discard: Discard::Unmap,
            cache_direct: Some(false),
            cache_no_flush: true,
            active: true,
            force_share: true,
            detect_zeroes: DetectZeroes::Unmap,
        }
    );
    assert_eq!(
        node("null-co,node-name=n,discard=on").settings.discard,
        Discard::Unmap
    );
    assert_eq!(
        node("null-co,node-name=n,discard=off").settings.discard,
        Discard::Ignore
    );
}

#[test]
fn a_repeated_key_replaces_the_earlier_one() {
    assert!(
        node("null-co,node-name=n,read-only=off,read-only=on")
            .settings
            .read_only
    );
}

#[test]
fn file_options_are_read() {
    let Driver::File(file) =
        node("file,node-name=n,filename=/d,aio=threads,locking=off,aio-max-batch=9").driver
    else {
        panic!()
    };
    assert_eq!(
        (file.aio, file.locking, file.aio_max_batch),
        (Some(AioMode::Threads), Locking::Off, 9)
    );
    let aio = |text: &str| match node(text).driver {
        Driver::File(file) | Driver::HostDevice(file) => file.aio,
        other => panic!("{other:?}"),
    };
    for (keys, expected) in [
        ("", None),
        (",cache.direct=off", None),
        (",aio=threads", Some(AioMode::Threads)),
        (",aio=native", Some(AioMode::Native)),
        (",cache.direct=on,aio=native", Some(AioMode::Native)),
        (",aio=io_uring", Some(AioMode::IoUring)),
        (",cache.direct=off,aio=io_uring", Some(AioMode::IoUring)),
    ] {
        for driver in ["file", "host_device"] {
            let text = format!("{driver},node-name=n,filename=/d{keys}");
            assert_eq!(aio(&text), expected, "{text}");
        }
    }
    assert_eq!(
        node("host_device,node-name=n,filename=/d").driver.name(),
        "host_device"
    );
}

#[test]
fn wrong_node_options_are_refused() {
    assert_eq!(
        node_error("null-co"),
        "--blockdev: 'node-name' is missing: write node-name=NAME, such as node-name=disk0"
    );
    assert_eq!(
        node_error("file,node-name=a"),
        "--blockdev: 'filename' is missing: write filename=PATH"
    );
    assert!(node_error("file,node-name=a,filename=").contains("expected a path"));
    assert!(
        node_error("{\"driver\":\"file\",\"node-name\":\"a\",\"filename\":\"a\\u0000\"}")
            .contains("expected a path")
    );
    assert!(
        node_error("node-name=a")
            .contains("'driver' is missing: one of file, host_device, null-co, raw")
    );
    assert!(node_error("").contains("'driver' is missing"));
    assert!(
        node_error("qcow2,node-name=a")
            .contains("'driver=qcow2' is not supported by blockplane yet; supported: file, host_device, null-co, raw, ")
    );
    assert!(node_error("host-device,node-name=a").contains("did you mean 'host_device'?"));
    assert!(
        node_error("file,node-name=a,filename=x,cache.direct=off,aio=native")
            .contains("'aio=native' contradicts 'cache.direct=off'")
    );
    assert!(
        node_error("file,node-name=a,filename=x,cache.direct=maybe")
            .contains("expected 'on' or 'off'")
    );
    assert!(
        node_error("file,node-name=a,filename=x,cache=none")
            .contains("'cache' cannot be 'none': expected a group, such as cache.direct=")
    );
    assert!(
        node_error("file,node-name=a,filename=x,cache.dierct=on")
            .contains("unknown option 'cache.dierct'; did you mean 'cache.direct'?")
    );
    assert!(
        node_error("file,node-name=a,filename=x,filename.y=x")
            .contains("'filename' has a value of its own")
    );
    assert!(
        node_error("file,node-name=a,filename.y=x")
            .contains("'filename' cannot be '{…}': expected a string")
    );
    assert!(node_error("null-co,node-name=a,filename=x").contains("unknown option 'filename'"));
    assert!(
        node_error("null-co,node-name=a,detect-zeroes=unmap").contains(
            "setting 'detect-zeroes' to unmap is not allowed without setting 'discard' to unmap"
        )
    );
    assert!(node_error("null-co,node-name=a,detect-zeroes=x").contains("Known: off, on, unmap"));
    for read_only in ["", ",read-only=off", ",auto-read-only=on"] {
        assert!(
            node_error(&format!("null-co,node-name=a,force-share=on{read_only}"))
                .contains("'force-share=on' can only be used with read-only images")
        );
    }
    assert!(node_error("null-co,node-name=a,size=x").contains("expected a size in bytes"));
    assert!(
        node_error("null-co,node-name=a,size=8E")
            .contains("'size' value must be in range [0, 9223372036854775807], not 8E")
    );
    assert!(node_error(&format!("null-co,node-name={}", "a".repeat(32))).contains("at most 31"));
    assert!(node_error("null-co,node-name=#block0").contains("expected a letter"));
    assert!(
        node_error("null-co,node_name=a")
            .contains("unknown option 'node_name'; did you mean 'node-name'?"),
        "not: missing"
    );
}

#[test]
fn a_node_below_an_active_one_is_active() {
    let file = ",file.driver=file,file.filename=/a";
    for (said, expected) in [
        ("", [true, true]),
        (",active=off", [false, false]),
        (",active=off,file.active=on", [false, true]),
    ] {
        let raw = node(&format!("raw,node-name=r{said}{file}"));
        let Some((_, NodeRef::Inline(file))) = raw.driver.child_with_key() else {
            panic!("{raw:?}")
        };
        assert_eq!([raw.settings.active, file.settings.active], expected);
    }
    let error = node_error(&format!("raw,node-name=r{file},file.active=off"));
    assert!(error.contains("'file.active=off' contradicts"), "{error}");
}

#[test]
fn raw_takes_a_node_written_inside() {
    let raw = node(
        "raw,node-name=r,offset=1M,size=2M,cache.direct=on,read-only=on,cache.no-flush=on,\
         file.driver=file,file.filename=/d,file.read-only=off",
    );
    let Driver::Raw {
        file: NodeRef::Inline(file),
        part: RawOffsetAndSize { offset, size },
    } = &raw.driver
    else {
        panic!("{raw:?}")
    };
    assert_eq!((*offset, *size), (1 << 20, Some(2 << 20)));
    assert_eq!(file.settings.cache_direct, Some(true), "inherited");
    assert!(file.settings.cache_no_flush, "inherited");
    assert!(file.settings.active && raw.settings.active);
    assert!(!file.settings.read_only, "its own");
    assert_eq!(
        file.settings.discard,
        Discard::Unmap,
        "the parent has decided already"
    );
    assert_eq!(file.settings.cache_direct, Some(true), "inherited");
    assert_eq!(
        (raw.settings.discard, file.node_name.as_str()),
        (Discard::Ignore, "#block0")
    );
    let Driver::Raw { file: named, .. } =
        node("raw,node-name=r,file.driver=null-co,file.node-name=below").driver
    else {
        panic!()
    };
    assert_eq!(named.node_name(), "below");
}

#[test]
fn unnamed_nodes_get_different_names() {
    let daemon = daemon(&[
        "--blockdev",
        "raw,node-name=a,file.driver=raw,file.file.driver=null-co",
        "--blockdev",
        "raw,node-name=b,file.driver=null-co",
    ]);
    let text = format!("{daemon:?}");
    for name in ["#block0", "#block1", "#block2"] {
        assert_eq!(text.matches(name).count(), 1, "{name} in {text}");
    }
}

#[test]
fn wrong_raw_options_are_refused() {
    assert!(node_error("raw,node-name=r").contains("'file' is missing: write file=NODE-NAME"));
    assert!(
        node_error("raw,node-name=r,file=zz")
            .contains("'file' names the node 'zz', which no option before this one defines (none")
    );
    assert!(node_error("raw,node-name=r,file.driver=file").contains("'file.filename' is missing"));
    assert!(
        node_error("raw,node-name=r,file.driver=file,file.filenam=x")
            .contains("did you mean 'file.filename'?")
    );
    assert!(
        node_error("raw,node-name=r,file.driver=vmdk")
            .contains("'file.driver=vmdk' is not supported")
    );
    assert!(
        node_error("raw,node-name=r,file.driver=raw,file.file=zz")
            .contains("'file.file' names the node 'zz'")
    );
    assert!(
        node_error(
            "raw,node-name=r,file.driver=file,file.filename=x,file.aio=native,cache.direct=off"
        )
        .contains("'file.aio=native' contradicts 'file.cache.direct=off'")
    );
    assert!(
        node_error("raw,node-name=r,file.driver=null-co,size=513")
            .contains("expected a multiple of 512 bytes")
    );
    assert!(
        node_error("raw,node-name=r,file.driver=null-co,offset=7E,size=7E")
            .contains("together go beyond 2^63")
    );
    assert!(
        node_error("raw,node-name=r,file.driver=null-co,file.node-name=r")
            .contains("there is already a node 'r'")
    );
    assert!(
        node_error("raw,node-name=r,file.0=x")
            .contains("expected a node-name or a node's own keys")
    );
}

#[test]
fn export_options_are_read() {
    let defaults = export(UNIX);
    assert!(defaults.settings == CommonExportOptions::defaults() && defaults.iothreads.is_empty());
    let full = export(&format!(
        "{UNIX},writable=on,writethrough=on,iothread.1=a,iothread.0=b,fixed-iothread=on,num-queues=256,queue-size=64,\
         logical-block-size=4k,serial=a b,request-merging=off,max-merge-requests=1,\
         max-merge-bytes=64k,packed=on,fixed-buffers=on,rerror=stop,werror=enospc,request-timeout=0,allow-inactive=on"
    ));
    assert!(full.settings.writable && full.settings.writethrough && full.settings.fixed_iothread);
    assert_eq!(full.iothreads, ["b", "a"]);
    let expected = VhostUserBlkOptions {
        num_queues: 256,
        queue_size: 64,
        logical_block_size: 4096,
        serial: Some("a b".to_owned()),
        request_merging: false,
        max_merge_requests: 1,
        max_merge_bytes: 65536,
        packed: true,
        rerror: OnError::Stop,
        werror: OnError::NoSpace,
        request_timeout: 0,
        fixed_buffers: true,
    };
    assert!(matches!(full.kind, ExportKind::VhostUserBlk { disk, .. } if disk == expected));
    assert_eq!(
        export(",addr.type=fd,addr.str=3").kind.socket(),
        Some(&SocketAddr::Fd { fd: 3 })
    );
}

/// An export with four queues.
const FOUR: &str = ",addr.type=unix,addr.path=/x,num-queues=4";

fn json_export(mapping: &str) -> Vec<String> {
    let text = format!(
        "{{'type':'vhost-user-blk','id':'e','node-name':'n','addr':{{'type':'unix','path':'/x'}},\
         'num-queues':4,{mapping}}}"
    );
    match daemon(&[&BASE[..], &["--export", &text]].concat())
        .directives
        .pop()
    {
        Some(Directive::Export(export)) => export.iothreads,
        other => panic!("not an export: {other:?}"),
    }
}

#[test]
fn iothreads_of_queues_are_read_in_all_notations() {
    for (text, iothreads) in [
        ("iothread=a", &["a"][..]),
        ("iothread.0=b,iothread.1=a", &["b", "a"]),
        (
            "iothread-vq-mapping.0.iothread=b,iothread-vq-mapping.1.iothread=a",
            &["b", "a"],
        ),
        (
            "iothread-vq-mapping.0.iothread=b,iothread-vq-mapping.0.vqs.0=3,iothread-vq-mapping.0.vqs.1=0,\
             iothread-vq-mapping.1.iothread=a,iothread-vq-mapping.1.vqs.0=1,iothread-vq-mapping.1.vqs.1=2",
            &["b", "a", "a", "b"],
        ),
    ] {
        assert_eq!(
            export(&format!("{FOUR},{text}")).iothreads,
            iothreads,
            "{text}"
        );
    }
    assert_eq!(json_export("'iothread':'a'"), ["a"]);
    assert_eq!(json_export("'iothread':['b','a']"), ["b", "a"]);
    assert_eq!(
        json_export("'iothread-vq-mapping':[{'iothread':'b'},{'iothread':'a'}]"),
        ["b", "a"]
    );
    assert_eq!(
        json_export(
            "'iothread-vq-mapping':[{'iothread':'a','vqs':[2]},{'iothread':'b','vqs':[0,1,3]}]"
        ),
        ["b", "b", "a", "b"]
    );
}

#[test]
fn wrong_iothread_mappings_are_refused() {
    // Each `I` stands for the key with its dot.
    for (text, wanted) in [
        (
            "iothread=a,I0.iothread=b",
            "'iothread' and 'iothread-vq-mapping' contradict each other; use one of them",
        ),
        (
            "I0.iothread=zz",
            "'iothread-vq-mapping.0.iothread' names the iothread 'zz', which no option before this one defines (defined so far: a, b)",
        ),
        (
            "I0.iothread=a,I1.iothread=a",
            "'iothread-vq-mapping.1.iothread' names iothread 'a' a second time; put all of its queues into one entry",
        ),
        (
            "I0.vqs.0=1",
            "'iothread-vq-mapping.0.iothread' is missing: write the id of an iothread",
        ),
        (
            "I0.iothread=a,I0.vqs.0=4",
            "'iothread-vq-mapping.0.vqs.0' cannot be '4': expected a queue from 0 to 3 ('num-queues' is 4)",
        ),
        (
            "I0.iothread=a,I0.vqs.0=-1",
            "'iothread-vq-mapping.0.vqs.0' cannot be '-1': expected a queue from 0 to 3",
        ),
        (
            "I0.iothread=a,I0.vqs.0=x",
            "'iothread-vq-mapping.0.vqs.0' cannot be 'x': expected a whole number",
        ),
        (
            "I0.iothread=a,I0.vqs=0",
            "'iothread-vq-mapping.0.vqs' cannot be '0': expected a list of queues, such as iothread-vq-mapping.0.vqs.0=0",
        ),
        (
            "I0.iothread=a,I0.vqs.0=0,I1.iothread=b",
            "'iothread-vq-mapping.1' has no 'vqs' and others have; either all entries have 'vqs' or none has",
        ),
        (
            "I0.iothread=a,I0.vqs.0=0,I0.vqs.1=1,I1.iothread=b,I1.vqs.0=1",
            "'iothread-vq-mapping.1.vqs.0' gives queue 1 to iothread 'b', but it was given to 'a' already",
        ),
        (
            "I0.iothread=a,I0.vqs.0=0,I0.vqs.1=1,I1.iothread=b,I1.vqs.0=3",
            "'iothread-vq-mapping' leaves out queue 2; with 'vqs', each of the 4 queues ('num-queues') is given to one iothread",
        ),
        (
            "I0.iothread=a,I0.vq.0=0",
            "unknown option 'iothread-vq-mapping.0.vq'; did you mean 'iothread-vq-mapping.0.vqs'?",
        ),
        (
            "iothread-vq-mapping=a",
            "'iothread-vq-mapping' cannot be 'a': expected a list of entries such as iothread-vq-mapping.0.iothread=ID",
        ),
        ("I0=a", "'iothread-vq-mapping.0' cannot be 'a'"),
        (
            "iothread-vq-maping.0.iothread=a",
            "did you mean 'iothread-vq-mapping'?",
        ),
        // Lists are not written with commas.
        ("iothread=a,b", "expected '=' and a value after 'b'"),
        ("iothread=a,,b", "names the iothread 'a,b'"),
    ] {
        let text = text.replace('I', "iothread-vq-mapping.");
        let error = export_error(&format!("{}{}", &FOUR[1..], format_args!(",{text}")));
        assert!(error.contains(wanted), "{text}: {error}");
    }
    for (json, wanted) in [
        (
            "'iothread':[]",
            "'iothread' cannot be '[…]': expected at least one",
        ),
        (
            "'iothread-vq-mapping':[]",
            "'iothread-vq-mapping' cannot be '[…]': expected a list of entries",
        ),
        (
            "'iothread-vq-mapping':[{'iothread':'a','vqs':[]}]",
            "'iothread-vq-mapping.0.vqs' cannot be '[…]': expected a list of queues",
        ),
        (
            "'iothread-vq-mapping':[{'iothread':'a','vqs':['0']}]",
            "expected a whole number without quotes",
        ),
    ] {
        let text = format!(
            "{{'type':'vhost-user-blk','id':'e','node-name':'n','addr':{{'type':'unix','path':'/x'}},{json}}}"
        );
        let error = error(&[&BASE[..], &["--export", &text]].concat());
        assert!(error.contains(wanted), "{json}: {error}");
    }
}

#[test]
fn wrong_export_options_are_refused() {
    let unix_and = |rest: &str| export_error(&format!("{}{rest}", &UNIX[1..]));
    assert!(export_error("writeable=on").starts_with(
        "--export: unknown option 'writeable'; did you mean 'writable'? Known: type, id, "
    ));
    assert!(
        export_error("").contains("'addr.type' is missing: write addr.type=unix,addr.path=PATH")
    );
    assert!(export_error("addr.path=/x").contains("'addr.type' is missing"));
    assert!(export_error("addr.type=unix").contains("'addr.path' is missing"));
    assert!(export_error("addr.type=fd").contains("'addr.str' is missing"));
    assert!(
        export_error("addr.type=fd,addr.path=/x")
            .contains("'addr.path' does not belong to 'addr.type=fd'")
    );
    assert!(unix_and(",addr.str=3").contains("'addr.str' does not belong to 'addr.type=unix'"));
    assert!(
        export_error("addr.type=inet,addr.host=h,addr.port=1")
            .contains("unknown option 'addr.host'")
    );
    assert!(
        export_error("addr.type=inet")
            .contains("'addr.type=inet' is not supported by blockplane yet")
    );
    assert!(unix_and(",addr.abstract=on").contains("'addr.abstract' is not supported"));
    for fd in ["5x", "-1", "2147483648", ""] {
        assert!(
            export_error(&format!("addr.type=fd,addr.str={fd}"))
                .contains("expected the number of an inherited"),
            "{fd}"
        );
    }
    let long = format!("addr.type=unix,addr.path=/{}", "x".repeat(107));
    assert!(export_error(&long).contains("1 to 107 bytes"));
    for bad in ["0", "257", "70000", "-1"] {
        let wanted = format!("'num-queues' value must be in range [1, 256], not {bad}");
        assert!(unix_and(&format!(",num-queues={bad}")).contains(&wanted));
    }
    for bad in ["0", "1", "3", "2048"] {
        assert!(
            unix_and(&format!(",queue-size={bad}"))
                .contains("expected a power of two from 2 to 1024"),
            "{bad}"
        );
    }
    for bad in ["0", "256", "513", "64k"] {
        assert!(
            unix_and(&format!(",logical-block-size={bad}"))
                .contains("expected a power of two from 512 to 32768")
        );
    }
    assert!(unix_and(",serial=123456789012345678901").contains("1 to 20 characters"));
    assert!(unix_and(",serial=").contains("1 to 20 characters"));
    assert!(unix_and(",iothread=zz").contains("'iothread' names the iothread 'zz', which no option before this one defines (defined so far: a, b)"));
    assert!(unix_and(",iothread.0=a,iothread.1=zz").contains("'iothread.1' names"));
    assert!(unix_and(",iothread.0=a,iothread.1=a").contains("a second time"));
    assert!(
        error(&[
            "--export",
            "vfio-user-lsi53c895a,id=e,node-name=n,allow-inactive=on"
        ])
        .contains("'vfio-user-lsi53c895a' do not support inactive nodes")
    );
    assert!(
        error(&["--export", "fuse,id=e"]).contains(
            "'type=fuse' is not supported by blockplane yet; supported: vhost-user-blk, "
        )
    );
    assert!(error(&["--export", "vhost-user-blk,node-name=n"]).contains("'id' is missing"));
    assert!(error(&["--export", "vhost-user-blk,id=e"]).contains("'node-name' is missing"));
}

#[test]
fn references_are_to_earlier_options_only() {
    let node = ["--blockdev", "null-co,node-name=n"];
    let export = [
        "--export",
        "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=/x,iothread=i",
    ];
    let object = ["--object", "iothread,id=i"];
    daemon(&[node, object, export].concat());
    assert!(
        error(&[object, export, node].concat())
            .contains("names the node 'n', which no option before this one")
    );
    assert!(
        error(&[node, export, object].concat())
            .contains("names the iothread 'i', which no option before this one")
    );
    let raw = ["--blockdev", "raw,node-name=r,file=n"];
    daemon(&[node, raw].concat());
    assert!(error(&[raw, node].concat()).contains("'file' names the node 'n'"));
}

#[test]
fn names_are_unique() {
    let node = ["--blockdev", "null-co,node-name=n"];
    let object = ["--object", "iothread,id=n"];
    let export = [
        "--export",
        "vhost-user-blk,id=n,node-name=n,addr.type=unix,addr.path=/x",
    ];
    let moved = [
        "--export",
        "vhost-user-blk,id=n,node-name=n,addr.type=unix,addr.path=/y",
    ];
    let same_socket = [
        "--export",
        "vhost-user-blk,id=m,node-name=n,addr.type=unix,addr.path=/x",
    ];
    daemon(&[node, object, export].concat()); // three kinds, one name
    assert_eq!(
        error(&[node, node].concat()),
        "--blockdev (number 2): there is already a node 'n'; choose another 'node-name'"
    );
    assert!(
        error(&[object, object].concat())
            .contains("there is already an object 'n'; choose another 'id'")
    );
    assert!(error(&[node, export, moved].concat()).contains("there is already an export 'n'"));
    assert!(
        error(&[node, export, same_socket].concat())
            .contains("export 'n' already listens on socket '/x'")
    );
    let fd = |id| format!("vhost-user-blk,id={id},node-name=n,addr.type=fd,addr.str=3");
    assert!(
        error(&[&node[..], &["--export", &fd("e"), "--export", &fd("f")]].concat())
            .contains("file descriptor 3")
    );
}

#[test]
fn a_read_only_node_is_not_exported_for_writing() {
    let export = [
        "--export",
        "vhost-user-blk,id=e,node-name=n,addr.type=unix,addr.path=/x,writable=on",
    ];
    for node in [
        "null-co,node-name=n,read-only=on",
        "raw,node-name=n,read-only=on,file.driver=null-co",
        "raw,node-name=n,file.driver=null-co,file.read-only=on",
    ] {
        assert!(
            error(&[&["--blockdev", node], &export[..]].concat())
                .contains("node 'n', which is read-only"),
            "{node}"
        );
    }
    let below = [
        "--blockdev",
        "null-co,node-name=below,read-only=on",
        "--blockdev",
        "raw,node-name=n,file=below",
    ];
    assert!(error(&[&below[..], &export[..]].concat()).contains("node 'n', which is read-only"));
    daemon(&[
        "--blockdev",
        "null-co,node-name=n,auto-read-only=on",
        export[0],
        export[1],
    ]);
}

#[test]
fn unsupported_features_are_named() {
    let text = error(&["--trace", "x"]);
    let expected = "--trace: --trace is not supported by blockplane yet; leave it out";
    assert!(text.contains(expected), "{text}");
}

#[test]
fn stray_arguments_are_refused() {
    assert_eq!(
        error(&["disk.img"]),
        "unexpected argument 'disk.img'; did you mean 'blockplane serve disk.img'? See blockplane --help"
    );
    assert!(error(&["--daemonize", "disk.img"]).contains("unexpected argument 'disk.img'"));
    assert!(error(&["--", "--blockdev"]).contains("unexpected argument '--blockdev'"));
    assert!(error(&["help", "me"]).contains("did you mean 'blockplane help serve'?"));
    assert!(error(&["--pidfile="]).contains("a value is missing"));
}

#[test]
fn json_values_have_types() {
    let text = r#"{"driver":"null-co","node-name":"a","size":1048576,"read-only":true,"cache":{"direct":true}}"#;
    let node = node(text);
    assert!(node.settings.read_only && node.settings.cache_direct == Some(true));
    let null = |rest: &str| node_error(&format!("{{'driver':'null-co','node-name':'a',{rest}}}"));
    assert!(null("'size':'1G'").contains("expected a whole number without quotes"));
    assert!(null("'size':1.5").contains("expected a whole number without quotes"));
    assert!(
        null("'size':-1")
            .contains("'size' value must be in range [0, 9223372036854775807], not -1")
    );
    assert!(null("'read-only':'on'").contains("expected true or false"));
    assert!(null("'read-only':1").contains("expected true or false"));
    assert!(
        null("'cache.direct':true").contains("unknown option 'cache.direct'"),
        "dots do not nest in JSON"
    );
    assert!(null("'cache':true").contains("expected a group"));
    assert!(null("'node-name':'b'").contains("appears twice"));
    assert!(node_error("{'driver':7}").contains("'driver' cannot be '7': expected a string"));
    assert!(export_error("x=1").contains("unknown option 'x'"));
    assert!(node_error("{").contains("malformed JSON at byte 1: the text ends"));
}

#[test]
fn errors_have_fields_for_programs() {
    let error = parse(
        ["--blockdev", "null-co,node-name=a,size=-1"]
            .iter()
            .map(Into::into),
    )
    .unwrap_err();
    assert_eq!(error.option, "--blockdev");
    let max = i64::MAX.unsigned_abs();
    assert_eq!(
        error.problem,
        Problem::OutOfRange {
            key: "size".to_owned(),
            value: "-1".to_owned(),
            min: 0,
            max
        }
    );
}

#[test]
fn values_that_are_not_utf_8_are_refused() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = std::ffi::OsString::from_vec(b"null-co,node-name=\xff".to_vec());
    let error = parse(["--blockdev".into(), bytes].into_iter())
        .unwrap_err()
        .to_string();
    assert!(error.contains("not valid UTF-8"), "{error}");
    let path = std::ffi::OsString::from_vec(b"/run/\xff".to_vec());
    let Ok(Invocation::Daemon(daemon)) = parse(["--pidfile".into(), path.clone()].into_iter())
    else {
        panic!()
    };
    assert_eq!(daemon.pidfile, Some(path.into()));
}

#[test]
fn sandbox_and_user_are_read() {
    let of = |args: &[&str]| daemon(args).confinement;
    assert_eq!(of(&["--pidfile=p"]), Confinement::default());
    for (word, sandbox) in [
        ("on", Sandbox::On),
        ("off", Sandbox::Off),
        ("strict", Sandbox::Strict),
    ] {
        for (suffix, allows_rbd, allows_nbd) in [
            ("", false, false),
            (",rbd=allow", true, false),
            (",nbd=allow", false, true),
            (",nbd=allow,rbd=allow", true, true),
        ] {
            let expected = SandboxOptions {
                degree: sandbox,
                allows_rbd,
                allows_nbd,
            };
            let value = format!("{word}{suffix}");
            assert_eq!(of(&["--sandbox", &value]).sandbox, expected);
        }
    }
    let last = of(&["--sandbox=off,rbd=allow", "--sandbox=on"]).sandbox;
    assert_eq!(last, SandboxOptions::default());
    for wrong in ["rbd=allow", "on,rbd=deny", "on,rbd=allow,"] {
        assert!(error(&["--sandbox", wrong]).contains("or on,rbd=allow"));
    }
    let user = Some("disks".to_owned());
    assert_eq!(of(&["--user=1", "--user", "disks"]).user, user);
    let wrong = error(&["--sandbox", "yes"]);
    assert!(wrong.contains("expected on, off or strict"), "{wrong}");
    assert!(error(&["--user="]).contains("expected a user's name"));
    // Abbreviations of qemu-storage-daemon's options keep their meaning.
    assert!(error(&["--sand", "on"]).contains("--sand"));
}

#[test]
fn metrics_have_one_address() {
    let addr = daemon(&["--metrics", "unix:/run/m"]).metrics.unwrap();
    assert_eq!(addr.to_string(), "unix:/run/m");
    assert!(error(&["--metrics", "9465"]).contains("expected unix:PATH"));
    let twice = error(&["--metrics=fd:3", "--metrics=fd:4"]);
    assert!(twice.contains("--metrics: is given twice"), "{twice}");
    let args = ["--chardev", "socket,id=c,path=q,server=on", "--m", "c"];
    let directives = daemon(&args).directives;
    assert!(
        matches!(directives[1], Directive::Monitor(_)),
        "abbreviations stay those of qemu-storage-daemon"
    );
}

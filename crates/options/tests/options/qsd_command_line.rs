//! Options of qemu-storage-daemon, as scripts that call it use them. Refused ones are in `golden/command-lines.txt`.
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
fn options_may_be_json() {
    let text = r#"{"driver":"null-co","node-name":"a","size":1048576,"read-only":true,"cache":{"direct":true}}"#;
    let node = node(text);
    assert!(node.settings.read_only && node.settings.cache_direct == Some(true));
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
    let user = Some("disks".to_owned());
    assert_eq!(of(&["--user=1", "--user", "disks"]).user, user);
}

#[test]
fn metrics_have_an_address() {
    let addr = daemon(&["--metrics", "unix:/run/m"]).metrics.unwrap();
    assert_eq!(addr.to_string(), "unix:/run/m");
    let args = ["--chardev", "socket,id=c,path=q,server=on", "--m", "c"];
    let directives = daemon(&args).directives;
    assert!(
        matches!(directives[1], Directive::Monitor(_)),
        "abbreviations stay those of qemu-storage-daemon"
    );
}

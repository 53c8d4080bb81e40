//! All that is described is read again as it was.
//!
//! Options are written without `..`: a new one gets a value here, which has to be another than the default, and sees the
//! test fail until it is described.

use options::{BlockdevOptions, Directive, Invocation, NullOptions, ObjectOptions, RawOptions};

use super::super::fields::assert_all_differ;
use super::*;

/// What is read from a command line.
fn read(words: &[String]) -> Vec<Directive> {
    match options::parse(words.iter().map(Into::into)) {
        Ok(Invocation::Daemon(daemon)) => daemon.directives,
        Ok(other) => panic!("{other:?}"),
        Err(error) => panic!("{error}: {words:?}"),
    }
}

/// One by one: all of them together are too long to be read.
#[track_caller]
fn assert_read(found: &[Directive], expected: &[Directive]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found, expected);
    }
    assert_eq!(found.len(), expected.len());
}

/// What a short command line says, with a default for everything else.
fn plain() -> Vec<Directive> {
    let line = "--object iothread,id=plain \
        --blockdev file,node-name=plain,filename=plain \
        --blockdev null-co,node-name=null \
        --blockdev raw,node-name=raw,file=plain \
        --export vhost-user-blk,id=blk,node-name=plain,addr.type=unix,addr.path=blk \
        --export vhost-user-scsi,id=scsi,node-name=raw,addr.type=unix,addr.path=scsi \
        --chardev socket,id=plain,path=plain \
        --monitor plain";
    let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
    read(&words)
}

macro_rules! plain {
    ($pattern:pat $(if $guard:expr)? => $found:expr) => {
        plain()
            .into_iter()
            .find_map(|directive| match directive {
                $pattern $(if $guard)? => Some($found),
                _ => None,
            })
            .unwrap()
    };
}

/// The same words as [`options`] makes.
fn words<'a>(of: impl IntoIterator<Item = (&'a str, Value)>) -> Vec<String> {
    let words = of
        .into_iter()
        .flat_map(|(option, json)| [option.to_owned(), json.to_string()]);
    words.collect()
}

fn changed_iothread(id: &str) -> IothreadOptions {
    IothreadOptions {
        id: id.to_owned(),
        poll_max_ns: 1,
        poll_grow: 2,
        poll_shrink: 3,
        poll_cpu_max: 4,
        aio_max_batch: 5,
        aio_max_events: 6,
        thread_pool_min: 7,
        thread_pool_max: 8,
        cpu_affinity: vec![0, 9, 10],
    }
}

#[test]
fn iothreads_are_read_as_they_were() {
    let changed = changed_iothread("changed");
    let plain = plain!(Directive::Object(ObjectOptions::Iothread(plain)) => plain);
    assert_all_differ(&changed, &plain);
    for options in [changed, plain] {
        let found = read(&words([("--object", iothread(&options))]));
        let expected = Directive::Object(ObjectOptions::Iothread(options));
        assert_read(&found, &[expected]);
    }
}

fn changed_file() -> FileOptions {
    FileOptions {
        filename: "changed".into(),
        aio: Some(AioMode::Threads),
        locking: Locking::On,
        aio_max_batch: 5,
    }
}

/// A node with a driver, all of whose options are others than usual.
fn changed_node(node_name: &str, driver: Driver) -> BlockdevOptions {
    BlockdevOptions {
        node_name: node_name.to_owned(),
        read_only: true,
        auto_read_only: true,
        discard: Discard::Unmap,
        cache_direct: Some(true),
        cache_no_flush: true,
        active: false,
        driver,
    }
}

#[test]
fn nodes_are_read_as_they_were() {
    let node_of = |name: &str| plain!(Directive::Blockdev(node) if node.node_name == name => node);
    let (file, null, raw) = (node_of("plain"), node_of("null"), node_of("raw"));
    let changed_null = NullOptions {
        size: 1 << 20,
        read_zeroes: true,
        latency_ns: 7,
    };
    let changed_raw = RawOptions {
        file: NodeRef::Inline(Box::new(changed_node(
            "inside",
            Driver::HostDevice(changed_file()),
        ))),
        offset: 4096,
        size: Some(8192),
    };
    let (Driver::File(plain_file), Driver::NullCo(plain_null), Driver::Raw(plain_raw)) =
        (&file.driver, &null.driver, &raw.driver)
    else {
        panic!("{file:?}, {null:?}, {raw:?}");
    };
    assert_all_differ(&changed_file(), plain_file);
    assert_all_differ(&changed_null, plain_null);
    assert_all_differ(&changed_raw, plain_raw);
    let changed = changed_node("changed", Driver::NullCo(changed_null));
    assert_all_differ(&changed, &file);
    let mut all = vec![
        file,
        null,
        raw,
        changed_node("file", Driver::File(changed_file())),
        changed_node("raw-inline", Driver::Raw(changed_raw)),
        changed,
    ];
    for (name, aio) in [("native", AioMode::Native), ("ring", AioMode::IoUring)] {
        let other = FileOptions {
            aio: Some(aio),
            locking: Locking::Off,
            ..changed_file()
        };
        all.push(changed_node(name, Driver::HostDevice(other)));
    }
    all.push(BlockdevOptions {
        cache_direct: Some(false),
        ..changed_node("cached", Driver::File(changed_file()))
    });
    let described = all
        .iter()
        .map(|options| ("--blockdev", node(options, &[]).unwrap()));
    let found = read(&words(described));
    let expected: Vec<_> = all.into_iter().map(Directive::Blockdev).collect();
    assert_read(&found, &expected);
}

fn changed_blk() -> VhostUserBlkOptions {
    VhostUserBlkOptions {
        addr: SocketAddr::Fd { fd: 7 },
        num_queues: 2,
        queue_size: 4,
        logical_block_size: 4096,
        serial: Some("5".to_owned()),
        request_merging: false,
        max_merge_requests: 6,
        max_merge_bytes: 7,
        packed: true,
        rerror: OnError::Stop,
        werror: OnError::NoSpace,
        request_timeout: 8,
        fixed_buffers: true,
    }
}

fn changed_lun(node_name: &str) -> LunOptions {
    LunOptions {
        node_name: node_name.to_owned(),
        target: 1,
        lun: 2,
        serial: Some("3".to_owned()),
        device: LunDevice {
            vendor: Some("4".to_owned()),
            product: Some("5".to_owned()),
            version: Some("6".to_owned()),
            wwn: Some(0x5000_0000_0000_0007),
            device_id: Some("8".to_owned()),
            rotation_rate: 7200,
            pr_file: Some("9".into()),
        },
        logical_block_size: 512 << 3,
        writable: true,
    }
}

#[test]
fn exports_are_read_as_they_were() {
    let mut all = Vec::new();
    for directive in plain() {
        if let Directive::Export(export) = directive {
            all.push(export);
        }
    }
    let changed = ExportOptions {
        id: "changed".to_owned(),
        node_name: "null".to_owned(),
        writable: true,
        writethrough: true,
        iothreads: vec!["b".to_owned(), "a".to_owned()],
        fixed_iothread: true,
        kind: ExportKind::VhostUserBlk(changed_blk()),
    };
    let controller = VhostUserScsiOptions {
        scsi: ScsiOptions {
            addr: SocketAddr::FdName {
                name: "changed".to_owned(),
            },
            luns: vec![changed_lun("null")],
        },
        num_queues: 2,
        queue_size: 4,
        packed: true,
    };
    let [plain_blk, plain_scsi] = &all[..] else {
        panic!("{all:?}");
    };
    let (ExportKind::VhostUserBlk(blk), ExportKind::VhostUserScsi(scsi)) =
        (&plain_blk.kind, &plain_scsi.kind)
    else {
        panic!("{all:?}");
    };
    assert_all_differ(&changed, plain_blk);
    assert_all_differ(&changed_blk(), blk);
    assert_all_differ(&controller, scsi);
    assert_all_differ(&controller.scsi, &scsi.scsi);
    assert_all_differ(&controller.scsi.luns[0], &scsi.scsi.luns[0]);
    assert_all_differ(&controller.scsi.luns[0].device, &scsi.scsi.luns[0].device);

    // What is made of a mapping of queues names iothreads more than once.
    let mapped = VhostUserBlkOptions {
        addr: SocketAddr::Unix {
            path: "mapped".into(),
        },
        num_queues: 3,
        rerror: OnError::Ignore,
        werror: OnError::Stop,
        ..changed_blk()
    };
    let mapped = ExportOptions {
        id: "mapped".to_owned(),
        iothreads: ["a", "b", "a"].map(str::to_owned).into(),
        kind: ExportKind::VhostUserBlk(mapped),
        ..changed.clone()
    };
    let ignoring = VhostUserBlkOptions {
        addr: SocketAddr::Fd { fd: 8 },
        werror: OnError::Ignore,
        ..changed_blk()
    };
    let ignoring = ExportOptions {
        id: "ignoring".to_owned(),
        kind: ExportKind::VhostUserBlk(ignoring),
        ..changed.clone()
    };
    let adapter = ScsiOptions {
        addr: SocketAddr::Fd { fd: 9 },
        luns: vec![changed_lun("null")],
    };
    let adapter = ExportOptions {
        id: "adapter".to_owned(),
        iothreads: vec!["b".to_owned()],
        writable: false,
        kind: ExportKind::VfioUserLsi53c895a(adapter),
        ..changed.clone()
    };
    // Unlike its unit.
    let controller = ExportOptions {
        id: "controller".to_owned(),
        writable: false,
        kind: ExportKind::VhostUserScsi(controller),
        ..changed.clone()
    };
    all.extend([changed, mapped, ignoring, controller, adapter]);
    let nodes = plain().into_iter().filter_map(|directive| match directive {
        Directive::Blockdev(options) => Some(node(&options, &[]).unwrap()),
        _ => None,
    });
    let iothreads = ["a", "b"].map(|id| ("--object", iothread(&changed_iothread(id))));
    let nodes: Vec<_> = nodes.map(|node| ("--blockdev", node)).collect();
    let described = all
        .iter()
        .map(|options| ("--export", export(options).unwrap()));
    let words = words(iothreads.into_iter().chain(nodes).chain(described));
    let mut found = read(&words);
    found.retain(|directive| matches!(directive, Directive::Export(_)));
    let expected: Vec<_> = all.into_iter().map(Directive::Export).collect();
    assert_read(&found, &expected);
}

#[test]
fn monitors_are_read_as_they_were() {
    let changed = ChardevOptions {
        id: "changed".to_owned(),
        addr: SocketAddr::FdName {
            name: "changed".to_owned(),
        },
        server: true,
        users: Some(vec![0, 7]),
        wait: true,
    };
    let plain_chardev = plain!(Directive::Chardev(chardev) => chardev);
    assert_all_differ(&changed, &plain_chardev);
    // The client that was waited for has come.
    let handed_over = ChardevOptions {
        wait: false,
        ..changed.clone()
    };
    let monitor = MonitorOptions {
        chardev: "changed".to_owned(),
        pretty: true,
    };
    assert_all_differ(&monitor, &plain!(Directive::Monitor(monitor) => monitor));
    let objects =
        [&changed, &plain_chardev].map(|options| ("--chardev", chardev(options).unwrap()));
    let monitors = [("--monitor", describe_monitor(&monitor))];
    let found = read(&words(objects.into_iter().chain(monitors)));
    let expected = [
        Directive::Chardev(handed_over),
        Directive::Chardev(plain_chardev),
        Directive::Monitor(monitor),
    ];
    assert_read(&found, &expected);
}

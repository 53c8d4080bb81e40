//! `blockplane serve`. Refused command lines are in `golden/command-lines.txt`.

use std::ffi::OsString;
use std::path::PathBuf;

use options::{
    AioMode, Confinement, Discard, Invocation, Locking, LogFormat, LogLevel, MetricsAddr, Sandbox,
    SandboxOptions, ServeDevice, ServeDisk, ServeSettings, SocketAddr, parse,
};

fn run(args: &[&str]) -> Result<Invocation, String> {
    parse(std::iter::once("serve".into()).chain(args.iter().map(Into::into)))
        .map_err(|error| error.to_string())
}

fn serve(args: &[&str]) -> ServeSettings {
    match run(args).unwrap() {
        Invocation::Serve(serve) => serve,
        other => panic!("{other:?}"),
    }
}

#[test]
fn defaults_are_applied() {
    let expected = ServeSettings {
        disks: vec![ServeDisk::Path(PathBuf::from("/d/disk.img"))],
        device: ServeDevice::VirtioBlk,
        size: None,
        socket: None,
        monitor: None,
        num_queues: 64,
        queue_size: 1024,
        read_only: false,
        serials: Vec::new(),
        cache_direct: true,
        aio: None,
        write_through: false,
        logical_block_size: None,
        iothreads: 1,
        aio_max_batch: 0,
        aio_max_events: 1024,
        cpu_affinity: Vec::new(),
        poll_max_ns: 200_000,
        poll_cpu_max: 100,
        request_merging: true,
        packed: false,
        locking: Locking::Auto,
        discard: Discard::Unmap,
        pidfile: None,
        metrics: None,
        limits: None,
        confinement: Confinement::default(),
        log_level: LogLevel::Info,
        log_format: None,
    };
    assert_eq!(serve(&["/d/disk.img"]), expected);
}

#[test]
fn every_option_is_read() {
    let serve = serve(&[
        "null-co:",
        "--device=virtio-blk",
        "--size",
        "1.5G",
        "--socket",
        "/s",
        "--num-queues=8",
        "--queue-size",
        "256",
        "--read-only",
        "--serial",
        "abc",
        "--cache-direct",
        "off",
        "--aio",
        "io_uring",
        "--write-through",
        "--logical-block-size",
        "4K",
        "--iothreads",
        "8",
        "--aio-max-batch",
        "5",
        "--aio-max-events",
        "0x10",
        "--cpu-affinity",
        "2-3,0",
        "--poll-max-ns",
        "0",
        "--poll-cpu-max",
        "50",
        "--request-merging=no",
        "--packed",
        "--locking",
        "off",
        "--discard",
        "ignore",
        "--monitor",
        "/m",
        "--pidfile",
        "/p",
        "--metrics=unix:/f",
        "--sandbox=strict,rbd=allow",
        "--user=disks",
        "-vv",
        "--log-format=json",
    ]);
    let expected = ServeSettings {
        disks: vec![ServeDisk::NullCo],
        device: ServeDevice::VirtioBlk,
        size: Some(3 << 29),
        socket: Some(PathBuf::from("/s")),
        monitor: Some(PathBuf::from("/m")),
        num_queues: 8,
        queue_size: 256,
        read_only: true,
        serials: vec!["abc".to_owned()],
        cache_direct: false,
        aio: Some(AioMode::IoUring),
        write_through: true,
        logical_block_size: Some(4096),
        iothreads: 8,
        aio_max_batch: 5,
        aio_max_events: 16,
        cpu_affinity: vec![vec![0, 2, 3]; 8],
        poll_max_ns: 0,
        poll_cpu_max: 50,
        request_merging: false,
        packed: true,
        locking: Locking::Off,
        discard: Discard::Ignore,
        pidfile: Some(PathBuf::from("/p")),
        metrics: Some(MetricsAddr::Socket(SocketAddr::Unix {
            path: PathBuf::from("/f"),
        })),
        limits: None,
        confinement: Confinement {
            sandbox: SandboxOptions {
                degree: Sandbox::Strict,
                allows_rbd: true,
                allows_nbd: false,
            },
            user: Some("disks".to_owned()),
        },
        log_level: LogLevel::Trace,
        log_format: Some(LogFormat::Json),
    };
    assert_eq!(serve, expected);
}

#[test]
fn the_default_socket_is_named_after_the_disk() {
    assert_eq!(
        serve(&["/dev/vg0/guest"]).socket_path_or_default(),
        PathBuf::from("guest.sock")
    );
    assert_eq!(
        serve(&["null-co:"]).socket_path_or_default(),
        PathBuf::from("null-co.sock")
    );
    assert_eq!(
        serve(&["d", "-s", "/x/y"]).socket_path_or_default(),
        PathBuf::from("/x/y")
    );
}

#[test]
fn log_levels_follow_verbose_and_quiet() {
    assert_eq!(serve(&["d", "-q"]).log_level, LogLevel::Error);
    assert_eq!(serve(&["d", "-v"]).log_level, LogLevel::Debug);
}

#[test]
fn each_iothread_has_cpus_of_its_own() {
    let cpus = ["--cpu-affinity", "0", "--cpu-affinity", "1-2"];
    assert_eq!(
        serve(&[&["d", "--iothreads=2"][..], &cpus].concat()).cpu_affinity,
        [vec![0], vec![1, 2]]
    );
}

#[test]
fn disks_are_paths_or_null_co() {
    assert_eq!(serve(&["null-co://"]).disks, [ServeDisk::NullCo]);
    assert_eq!(
        serve(&["./null-co:"]).disks,
        [ServeDisk::Path(PathBuf::from("./null-co:"))]
    );
}

#[test]
fn help_has_examples_and_defaults() {
    for args in [&["--help"][..], &["-h"], &["d", "--help"]] {
        let Ok(Invocation::Help(text)) = run(args) else {
            panic!("{args:?}")
        };
        for wanted in [
            "Usage: blockplane serve [OPTIONS] <DISK>",
            "--aio-max-events",
            "[default: 1024]",
            "nanoseconds",
        ] {
            assert!(text.contains(wanted), "{args:?}: {wanted}");
        }
    }
    let Ok(Invocation::Help(long)) = parse(["help", "serve"].iter().map(Into::into)) else {
        panic!()
    };
    assert!(long.contains("Examples:"));
    assert_eq!(run(&["--help"]), Ok(Invocation::Help(long)));
}

/// Examples in help texts have to be accepted.
#[test]
fn examples_of_both_help_texts_parse() {
    let mut seen = 0;
    for help in [&["--help"][..], &["serve", "--help"]] {
        let Ok(Invocation::Help(text)) = parse(help.iter().map(Into::into)) else {
            panic!()
        };
        let joined = text.replace(",\\\n", ",").replace("\\\n", " ");
        for line in joined
            .lines()
            .filter_map(|line| line.trim().strip_prefix("blockplane "))
        {
            if line.contains("DISK")
                || line.contains("FILE")
                || line.contains("[OPTIONS]")
                || line.contains(&['\u{2026}'][..])
            {
                continue;
            }
            if line.starts_with("0.") {
                continue; // the version in the first line
            }
            parse(line.split_whitespace().map(Into::into))
                .unwrap_or_else(|error| panic!("{line}: {error}"));
            seen += 1;
        }
    }
    assert_eq!(seen, 10, "examples were found");
}

#[test]
fn commands_for_a_running_daemon_are_not_parsed() {
    for command in ["qmp", "info", "top", "upgrade"] {
        let words = [command, "socket", "--x"].map(OsString::from);
        let Ok(Invocation::Operator(all)) = parse(words.clone().into_iter()) else {
            panic!("{command} is a command");
        };
        assert_eq!(all, words);
        let help = parse(["help", command].map(Into::into).into_iter());
        let expected = vec![command.into(), "--help".into()];
        assert_eq!(help, Ok(Invocation::Operator(expected)));
    }
}

#[test]
fn log_levels_have_standard_names() {
    for (name, level) in [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Error),
        ("Warning", LogLevel::Error),
        ("INFO", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ] {
        assert_eq!(LogLevel::from_name(name), Some(level), "{name}");
    }
    assert_eq!(LogLevel::from_name("loud"), None);
}

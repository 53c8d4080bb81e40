//! Configuration files: `--config`, `serve --config` and `check`.

use std::fs;

use serde_json::{Value, json};

use crate::process::{Folder, Process, ProcessOutput};
use crate::{capacity, is_read_only, num_queues};

const EXAMPLE: &str = include_str!("../../../../docs/blockplane.toml");

const ONE_DISK: &str = "\
[export.e]
node-name = \"d\"
addr = { type = \"unix\", path = \"s\" }
writable = true
[blockdev.d]
driver = \"file\"
filename = \"disk.img\"
";

fn folder(text: &str) -> Folder {
    let folder = Folder::new();
    fs::write(folder.join("f.toml"), text).unwrap();
    folder
}

#[track_caller]
fn assert_contains_all(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
}

/// Asserts that a configuration is refused with these words. Problems that `check` finds are without the program's name, for editors;
/// their words begin with the name of the file.
#[track_caller]
fn assert_refused(folder: &Folder, line: &str, words: &[&str]) {
    let ended = folder.run(line);
    assert_eq!((ended.code, &*ended.stdout), (Some(1), ""), "{ended:?}");
    let is_for_editors = line.starts_with("check") && words[0].starts_with("f.toml:");
    let begins_with_file = ended.stderr.starts_with("f.toml: ");
    let is_named = ended.stderr.contains("blockplane: ");
    let expected = (is_for_editors, !is_for_editors);
    assert_eq!((begins_with_file, is_named), expected, "{ended:?}");
    assert_contains_all(&ended.stderr, words);
}

/// The answer of `check --json`.
#[track_caller]
fn json(checked: &ProcessOutput) -> Value {
    assert_eq!(checked.stderr, "");
    serde_json::from_str(&checked.stdout).unwrap()
}

#[test]
fn example_configuration_of_the_documentation_runs() {
    let text = EXAMPLE
        .replace("/run/blockplane/", "")
        .replace("/var/lib/blockplane/", "");
    let folder = folder(&text);
    folder.image("disk0.img", 64 << 20);
    let server = folder.start("--config f.toml", "web.sock");
    assert_eq!(capacity(&folder, "web.sock"), 32 << 20);
    assert_eq!(num_queues(&folder, "web.sock"), 4);
    assert!(!is_read_only(&folder, "web.sock"));
    assert!(folder.has("measure.sock") && folder.has("qmp.sock"));
    assert_eq!(server.stop().assert_success(), "");
    assert_eq!(folder.names(), ["disk0.img", "f.toml", "nothing.pr"]);
}

#[test]
fn serve_announces_the_configured_disks_and_options_replace_what_the_file_has() {
    let folder = folder(ONE_DISK);
    folder.image("disk.img", 2 << 20);
    let mut server = folder.start("serve --config f.toml --pidfile p", "s");
    server.wait_until("pidfile", || folder.has("p"));
    let words = ["f.toml", "export", "disk.img", "read-write", "Ctrl-C"];
    assert_contains_all(&server.stop().stdout, &words);
    let line = "serve --config f.toml -q";
    let server = folder.start(line, "s");
    assert_eq!(server.stop().assert_success(), "");
    let line = "--config f.toml --blockdev null-co,node-name=d,size=1M";
    let server = folder.start(line, "s");
    assert_eq!(capacity(&folder, "s"), 1 << 20);
    server.stop();
}

#[test]
fn invalid_configuration_creates_nothing() {
    let wrong = "sise = 1\n[expert.e]\n[export.f]\nnode-name = \"e\"\n";
    let folder = folder(&format!("{ONE_DISK}{wrong}"));
    folder.image("disk.img", 1 << 20);
    for line in [
        "--config f.toml --pidfile p",
        "serve --config f.toml --pidfile p",
        "check f.toml",
    ] {
        let expected = [
            "f.toml: 4 problems",
            "f.toml:8:1: unknown option 'sise'. Known: driver, ",
            "  8 | sise = 1\n    | ^^^^",
            "f.toml:9:2: unknown table 'expert'",
            "f.toml:10:9: 'addr.type' is missing",
            "f.toml:11:13: 'node-name' names the node 'e'",
        ];
        assert_refused(&folder, line, &expected);
    }
    let checked = folder.run("check --json f.toml");
    assert_eq!(checked.code, Some(1));
    let json = json(&checked);
    assert_eq!(json["right"], false);
    let problem = &json["problems"][1];
    assert_eq!(problem["line"], 9);
    assert_eq!(problem["column"], 2);
    assert_eq!(folder.names(), ["disk.img", "f.toml"]);
}

/// None of these is read without end, or waited for.
#[test]
fn unreadable_configuration_is_named() {
    let folder = Folder::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("pipe", folder.join("link-to-pipe")).unwrap();
    fs::write(folder.join("f.toml"), b"a = 1\nb = \"\xff\"\n").unwrap();
    let cannot = "cannot read the configuration";
    for (file, words) in [
        ("absent.toml", &["absent.toml", "No such file"][..]),
        ("/dev/zero", &[cannot, "/dev/zero", "larger than 16 MiB"]),
        (".", &[cannot, "directory"]),
        ("pipe", &[cannot, "pipe", "is a named pipe"]),
        ("link-to-pipe", &[cannot, "link-to-pipe", "is a named pipe"]),
        ("f.toml", &["f.toml:2:6: not UTF-8"]),
    ] {
        for command in ["check", "--config", "serve --config"] {
            assert_refused(&folder, &format!("{command} {file}"), words);
        }
    }
    let json = json(&folder.run("check --json f.toml"));
    assert_eq!(json["problems"][0]["line"], 2);
}

/// What `check` prints of a file of each kind of object, and hints at.
#[test]
fn check_shows_what_would_run_and_hints_at_what_is_unused() {
    let folder = folder(
        r#"
        metrics.listen = "unix:m"
        iothread.idle = {}
        secret.used = { file = "absent", format = "base64" }
        secret.idle-secret = { data = "topsecret" }
        throttle-group.tenant = { limits = { iops-total = 2000, bps-write = "1M" } }
        throttle-group.idle-group = {}
        chardev.lonely = { path = "l", server = true }
        chardev.c = { path = "q", server = true, wait = false }
        monitor.c = {}
        blockdev.disk = { driver = "file", filename = "disk.img" }
        blockdev.ceph = { driver = "rbd", pool = "vms", image = "disk", snapshot = "s", key-secret = "used", conf = "absent.conf" }
        blockdev.slow = { driver = "throttle", throttle-group = "tenant", file = { driver = "null-co", size = "1M" } }
        blockdev.idle-node = { driver = "null-co" }
        export.d = { node-name = "disk", writable = true, addr = { type = "unix", path = "d" } }
        export.c = { node-name = "ceph", addr = { type = "unix", path = "c" } }
        export.luns = { type = "vhost-user-scsi", addr = { type = "unix", path = "s" }, luns = [{ node-name = "slow" }] }
        "#,
    );
    let checked = folder.run("check f.toml");
    let text = checked.assert_success();
    let shown = [
        "f.toml: valid",
        "disk.img",
        "read-write",
        "rbd:vms/disk@s",
        "read-only",
        "in the options",
        "iops-total=2000,bps-write=1048576",
        "throttle",
        "metrics",
        "unix:m",
    ];
    assert_contains_all(text, &shown);
    assert!(!text.contains("topsecret"), "{text}");
    let hints = |text: &str| {
        let hints = text
            .lines()
            .filter_map(|line| line.trim().strip_prefix("hint: "));
        let mut hints: Vec<String> = hints.map(str::to_owned).collect();
        hints.sort();
        hints
    };
    let unused = |hint: &String| hint.contains(" used by no");
    let found = hints(text);
    assert!(found.iter().all(unused), "{found:?}");
    let idle = [
        "chardev 'lonely'",
        "iothread 'idle'",
        "node 'idle-node'",
        "secret 'idle-secret'",
        "throttle-group 'idle-group'",
    ];
    assert_eq!(found.len(), idle.len(), "{found:?}");
    for (hint, idle) in found.iter().zip(idle) {
        assert!(hint.starts_with(idle), "{hint}");
    }
    assert_eq!(folder.names(), ["f.toml"], "nothing is touched");
    // With --open, files are looked at.
    let opened = folder.run("check --open f.toml");
    let expected = [
        "hint: node 'disk': disk.img cannot be examined",
        "hint: secret 'used': absent cannot be read",
        "hint: node 'ceph': absent.conf cannot be read",
    ];
    assert_contains_all(opened.assert_success(), &expected);
    folder.image("disk.img", 1 << 20);
    let opened = folder.run("check --open f.toml");
    assert!(
        !opened.assert_success().contains("node 'disk':"),
        "{opened:?}"
    );
    let json = json(&folder.run("check --json f.toml"));
    for (pointer, value) in [
        ("/right", json!(true)),
        ("/exports/0/socket", json!("d")),
        ("/nodes/0/storage", json!("disk.img")),
        ("/monitors/1", Value::Null),
        ("/monitors/0/monitor", json!("c")),
        ("/unused-chardevs/0/socket", json!("l")),
        ("/metrics/0/metrics", json!("unix:m")),
        (
            "/hints/4",
            json!("chardev 'lonely' is used by no monitor; add [monitor.lonely]"),
        ),
    ] {
        let found = json.pointer(pointer).unwrap_or(&Value::Null);
        assert_eq!(*found, value, "{pointer} of {json}");
    }
}

/// No job runs at the start.
#[test]
fn check_refuses_a_snapshot_in_the_words_of_the_start() {
    let snapshot = "[blockdev.snapshot]\ndriver = \"snapshot-access\"\nfile = \"d\"\n";
    let inside = "[blockdev.window]\ndriver = \"raw\"\nfile = { driver = \"snapshot-access\", file = \"d\" }\n";
    for node in [snapshot, inside] {
        let folder = folder(&format!("{ONE_DISK}{node}"));
        folder.image("disk.img", 1 << 20);
        let refused = "node 'd' has no running backup with sync=none";
        assert_refused(&folder, "--config f.toml", &[refused]);
        let expected = format!("f.toml: one problem\n{refused}");
        assert_refused(&folder, "check f.toml", &[&expected]);
        let json = json(&folder.run("check --json f.toml"));
        assert_eq!(json["right"], false);
        let message = json["problems"][0]["message"].as_str().unwrap();
        assert!(message.contains(refused), "{message}");
    }
}

/// The child in the background reads the file; the command reports its errors.
#[test]
fn daemonize_works_with_a_configuration_file() {
    let folder = folder(ONE_DISK);
    let line = "--config f.toml --daemonize --pidfile pid";
    assert_refused(&folder, line, &["disk.img"]);
    folder.image("disk.img", 1 << 20);
    let daemon = crate::daemonize::Daemon::adopt(&folder, || {
        assert_eq!(folder.run(line).assert_success(), "");
    });
    assert_eq!(capacity(&folder, "s"), 1 << 20);
    daemon.stop();
}

#[test]
fn check_finds_two_names_of_one_image() {
    let second = "[export.f]\nnode-name = \"d2\"\naddr = { type = \"unix\", path = \"t\" }\n\
        [blockdev.d2]\ndriver = \"file\"\nfilename = \"link.img\"\n";
    let folder = folder(&format!("{ONE_DISK}{second}"));
    folder.image("disk.img", 1 << 20);
    std::os::unix::fs::symlink("disk.img", folder.join("link.img")).unwrap();
    let checked = folder.run("check f.toml");
    assert!(!checked.assert_success().contains("hint"), "{checked:?}");
    let opened = folder.run("check --open f.toml");
    let expected = "hint: node 'd2': link.img is the image of node 'd' by another name";
    assert!(opened.assert_success().contains(expected), "{opened:?}");
}

#[test]
fn configuration_is_read_from_standard_input() {
    let folder = folder(ONE_DISK);
    let from = |file: &str, line: &str| {
        let mut command = folder.command(line.split_whitespace());
        command.stdin(fs::File::open(folder.join(file)).unwrap());
        Process::spawn(command)
    };
    let checked = from("f.toml", "check -").ended();
    let text = checked.assert_success();
    assert!(text.starts_with("<stdin>: valid"), "{text}");
    folder.image("disk.img", 1 << 20);
    for line in ["--config -", "serve -q --config -"] {
        let mut server = from("f.toml", line);
        server.wait_until_accepting(&folder.join("s"));
        server.stop();
    }
    fs::write(folder.join("wrong"), "[expert.e]\n").unwrap();
    let checked = from("wrong", "check -").ended();
    assert_contains_all(&checked.stderr, &["<stdin>:1:2: unknown table"]);
}

/// In a path within an error of the operating system, in the heading of problems, and in what `check` prints.
#[test]
fn control_characters_of_file_names_never_reach_the_terminal() {
    const NAME: &str = "a\u{1b}[2J\u{7}\nb";
    const SHOWN: &str = r"a\u{1b}[2J\u{7}\nb";
    let folder = Folder::new();
    for text in [None, Some("a = 1\nb = 2\n"), Some("")] {
        if let Some(text) = text {
            fs::write(folder.join(NAME), text).unwrap();
        }
        let ended = Process::spawn(folder.command(["check", NAME])).ended();
        let shown = ended.stdout + &ended.stderr;
        assert!(shown.contains(SHOWN), "{shown}");
        let is_control = |char: char| char.is_control() && char != '\n';
        assert!(!shown.contains(is_control), "{shown:?}");
    }
}

//! Configuration files: `--config`, `serve --config` and `check`.

use std::fs;

use crate::front_end::{FrontEnd, READ_ONLY};
use crate::process::{Folder, Process};

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

#[test]
fn example_configuration_of_the_documentation_runs() {
    let text = EXAMPLE
        .replace("/run/blockplane/", "")
        .replace("/var/lib/blockplane/", "");
    let folder = folder(&text);
    folder.image("disk0.img", 64 << 20);
    let server = folder.start("--config f.toml", "web.sock");
    let front_end = FrontEnd::connect(&folder.join("web.sock"));
    assert_eq!(front_end.capacity(), (32 << 20) / 512);
    assert_eq!(front_end.num_queues(), 4);
    assert_eq!(front_end.features() & READ_ONLY, 0);
    assert!(folder.has("measure.sock") && folder.has("qmp.sock"));
    drop(front_end);
    assert_eq!(server.stop().assert_success(), "");
    assert_eq!(folder.names(), ["disk0.img", "f.toml", "nothing.pr"]);
}

#[test]
fn an_option_replaces_what_has_its_name_in_the_file() {
    let folder = folder(ONE_DISK);
    let line = "--config f.toml --blockdev null-co,node-name=d,size=1M";
    let server = folder.start(line, "s");
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    server.stop();
}

#[test]
fn invalid_configuration_creates_nothing() {
    let folder = folder(&format!(
        "{ONE_DISK}sise = 1\n[export.f]\nnode-name = \"e\"\n"
    ));
    folder.image("disk.img", 1 << 20);
    for line in [
        "--config f.toml --pidfile p",
        "serve --config f.toml --pidfile p",
    ] {
        let ended = folder.run(line);
        let expected = [
            "f.toml: 3 problems",
            "f.toml:8:1: unknown option 'sise'. Known: driver, ",
            "  8 | sise = 1\n    | ^^^^",
            "f.toml:9:9: 'addr.type' is missing",
            "f.toml:10:13: 'node-name' names the node 'e'",
        ];
        ended.assert_fails_naming(&expected);
    }
    assert_eq!(folder.names(), ["disk.img", "f.toml"]);
}

#[test]
fn unreadable_configuration_is_named() {
    let folder = Folder::new();
    for line in [
        "--config absent.toml",
        "serve --config absent.toml",
        "check absent.toml",
    ] {
        folder
            .run(line)
            .assert_fails_naming(&["absent.toml", "No such file"]);
    }
}

#[test]
fn serve_announces_the_configured_disks() {
    let folder = folder(ONE_DISK);
    folder.image("disk.img", 1 << 20);
    let mut server = folder.start("serve --config f.toml --pidfile p", "s");
    server.wait_until("pidfile", || folder.has("p"));
    let ended = server.stop();
    for word in ["f.toml", "export", "disk.img", "read-write", "Ctrl-C"] {
        assert!(
            ended.stdout.contains(word),
            "no '{word}' in: {}",
            ended.stdout
        );
    }
    let server = folder.start("serve --config f.toml -q", "s");
    assert_eq!(server.stop().assert_success(), "");
}

#[test]
fn check_counts_each_lun_as_a_use_of_its_node() {
    let folder = folder(
        r#"
        blockdev.a = { driver = "null-co" }
        blockdev.b = { driver = "null-co" }
        blockdev.c = { driver = "null-co" }
        export.e = { type = "vhost-user-scsi", addr = { type = "unix", path = "s" }, luns = [{ node-name = "a" }, { node-name = "b" }] }
        "#,
    );
    let checked = folder.run("check f.toml");
    let hints: Vec<&str> = checked
        .assert_success()
        .lines()
        .filter(|line| line.contains("hint"))
        .collect();
    assert_eq!(hints, ["  hint: node 'c' is used by nothing in this file"]);
}

#[test]
fn check_shows_images_of_ceph_and_secrets() {
    let folder = folder(
        r#"
        secret.used = { file = "absent", format = "base64" }
        secret.idle = { data = "topsecret" }
        blockdev.d = { driver = "rbd", pool = "vms", image = "disk", snapshot = "s", key-secret = "used", conf = "absent.conf" }
        export.e = { node-name = "d", addr = { type = "unix", path = "s" } }
        "#,
    );
    let checked = folder.run("check --open f.toml");
    let text = checked.assert_success();
    for word in [
        "rbd:vms/disk@s",
        "read-only",
        "hint: secret 'idle' is used by no node",
        "hint: secret 'used': absent cannot be read",
        "hint: node 'd': absent.conf cannot be read",
        "in the options",
    ] {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
    assert!(!text.contains("secret 'used' is used by no"), "{text}");
    assert!(!text.contains("topsecret"), "{text}");
}

#[test]
fn throttle_groups_of_a_file_are_shown_by_check_and_run() {
    let text = r#"
        [throttle-group.tenant]
        limits = { iops-total = 2000, bps-write = "1M" }
        [throttle-group.idle]
        [blockdev.d]
        driver = "throttle"
        throttle-group = "tenant"
        file = { driver = "null-co", size = "1M" }
        [export.e]
        node-name = "d"
        addr = { type = "unix", path = "s" }
    "#;
    let folder = folder(text);
    let checked = folder.run("check f.toml");
    let text = checked.assert_success();
    for word in [
        "iops-total=2000,bps-write=1048576",
        "throttle",
        "hint: throttle-group 'idle' is used by no node",
    ] {
        assert!(text.contains(word), "no '{word}' in: {text}");
    }
    assert!(!text.contains("'tenant' is used by no"), "{text}");
    let server = folder.start("--config f.toml", "s");
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    server.stop();
}

#[test]
fn check_shows_what_would_run_and_touches_nothing() {
    let folder = folder(&format!("{ONE_DISK}[iothread.idle]\n"));
    let checked = folder.run("check f.toml");
    for word in [
        "f.toml: valid",
        "disk.img",
        "read-write",
        "hint: iothread 'idle' is used by nothing",
    ] {
        assert!(
            checked.assert_success().contains(word),
            "no '{word}' in: {}",
            checked.stdout
        );
    }
    assert_eq!(folder.names(), ["f.toml"]);
    let opened = folder.run("check --open f.toml");
    assert!(
        opened
            .assert_success()
            .contains("hint: node 'd': disk.img cannot be examined"),
        "{opened:?}"
    );
    folder.image("disk.img", 1 << 20);
    let opened = folder.run("check --open f.toml");
    assert!(!opened.assert_success().contains("node 'd'"), "{opened:?}");
}

#[test]
fn check_reports_problems_with_their_positions() {
    let folder = folder("[iothread.a]\npoll-max-ns = \"x\"\n[expert.e]\n");
    let checked = folder.run("check f.toml");
    assert_eq!((checked.code, checked.stdout.as_str()), (Some(1), ""));
    for word in [
        "f.toml: 2 problems",
        "f.toml:2:15: 'poll-max-ns'",
        "f.toml:3:2: unknown table 'expert'",
    ] {
        assert!(
            checked.stderr.contains(word),
            "no '{word}' in: {}",
            checked.stderr
        );
    }
    let checked = folder.run("check --json f.toml");
    assert_eq!((checked.code, checked.stderr.as_str()), (Some(1), ""));
    let json: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
    assert_eq!(json["right"], false);
    assert_eq!(json["problems"][1]["line"], 3);
    assert_eq!(json["problems"][1]["column"], 2);
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
        folder
            .run("--config f.toml")
            .assert_fails_naming(&[refused]);
        let checked = folder.run("check f.toml");
        assert_eq!((checked.code, checked.stdout.as_str()), (Some(1), ""));
        let expected = format!("f.toml: one problem\n{refused}");
        assert!(checked.stderr.starts_with(&expected), "{checked:?}");
        let checked = folder.run("check --json f.toml");
        let json: serde_json::Value = serde_json::from_str(&checked.stdout).unwrap();
        assert_eq!(json["right"], false);
        assert!(
            json["problems"][0]["message"]
                .as_str()
                .unwrap()
                .contains(refused)
        );
    }
}

#[test]
fn check_prints_json() {
    let folder = folder(ONE_DISK);
    let checked = folder.run("check --json f.toml");
    let json: serde_json::Value = serde_json::from_str(checked.assert_success()).unwrap();
    assert_eq!(json["right"], true);
    assert_eq!(json["exports"][0]["socket"], "s");
    assert_eq!(json["nodes"][0]["storage"], "disk.img");
    assert_eq!(json["hints"], serde_json::json!([]));
}

/// The child in the background reads the file; the command reports its errors.
#[test]
fn daemonize_works_with_a_configuration_file() {
    let folder = folder(ONE_DISK);
    folder
        .run("--config f.toml --daemonize")
        .assert_fails_naming(&["disk.img"]);
    folder.image("disk.img", 1 << 20);
    let ended = folder.run("--config f.toml --daemonize --pidfile p");
    assert_eq!(ended.assert_success(), "");
    let pid: i32 = fs::read_to_string(folder.join("p"))
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    drop(FrontEnd::connect(&folder.join("s")));
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    crate::process::wait_for_end(pid);
}

#[test]
fn check_hints_at_chardevs_without_a_monitor() {
    let folder = folder(&format!(
        "{ONE_DISK}[metrics]\nlisten = \"unix:m\"\n[chardev.lonely]\npath = \"l\"\nserver = true\n\
         [chardev.c]\npath = \"q\"\nserver = true\nwait = false\n[monitor.c]\n"
    ));
    let text = folder.run("check f.toml").assert_success().to_owned();
    for words in [
        "metrics",
        "unix:m",
        "chardev 'lonely' is used by no monitor",
    ] {
        assert!(text.contains(words), "no '{words}' in: {text}");
    }
    let checked = folder.run("check --json f.toml");
    let json: serde_json::Value = serde_json::from_str(checked.assert_success()).unwrap();
    assert_eq!(json["monitors"].as_array().unwrap().len(), 1);
    assert_eq!(json["monitors"][0]["monitor"], "c");
    assert_eq!(json["unused-chardevs"][0]["socket"], "l");
    assert_eq!(json["metrics"][0]["metrics"], "unix:m");
}

#[test]
fn check_finds_two_names_of_one_image() {
    let second = ONE_DISK
        .replace("[export.e]", "[export.f]")
        .replace("\"s\"", "\"t\"");
    let second = second
        .replace("\"d\"", "\"d2\"")
        .replace("blockdev.d", "blockdev.d2");
    let folder = folder(&(ONE_DISK.to_owned() + &second.replace("disk.img", "link.img")));
    folder.image("disk.img", 1 << 20);
    std::os::unix::fs::symlink("disk.img", folder.join("link.img")).unwrap();
    assert!(!folder.run("check f.toml").assert_success().contains("hint"));
    let opened = folder
        .run("check --open f.toml")
        .assert_success()
        .to_owned();
    assert!(
        opened.contains("hint: node 'd2': link.img is the image of node 'd' by another name"),
        "{opened}"
    );
}

#[test]
fn configuration_is_read_from_standard_input() {
    let folder = folder(ONE_DISK);
    let from = |file: &str, line: &str| {
        let mut command = folder.command(line.split_whitespace());
        command.stdin(fs::File::open(folder.join(file)).unwrap());
        crate::process::Process::spawn(command)
    };
    let checked = from("f.toml", "check -").ended();
    assert!(
        checked.assert_success().starts_with("<stdin>: valid"),
        "{checked:?}"
    );
    folder.image("disk.img", 1 << 20);
    for line in ["--config -", "serve -q --config -"] {
        let mut server = from("f.toml", line);
        server.wait_until_accepting(&folder.join("s"));
        server.stop();
    }
    fs::write(folder.join("wrong"), "[expert.e]\n").unwrap();
    let checked = from("wrong", "check -").ended();
    assert!(
        checked.stderr.contains("<stdin>:1:2: unknown table"),
        "{checked:?}"
    );
}

/// None of these is read without end, or waited for.
#[test]
fn pipes_and_endless_input_are_no_configuration() {
    let folder = Folder::new();
    rustix::fs::mkfifoat(rustix::fs::CWD, folder.join("pipe"), rustix::fs::Mode::RWXU).unwrap();
    std::os::unix::fs::symlink("pipe", folder.join("link-to-pipe")).unwrap();
    for (file, words) in [
        ("/dev/zero", "larger than 16 MiB"),
        (".", "directory"),
        ("pipe", "is a named pipe"),
        ("link-to-pipe", "is a named pipe"),
    ] {
        for command in ["check", "--config", "serve --config"] {
            let ended = folder.run(&format!("{command} {file}"));
            ended.assert_fails_naming(&["cannot read the configuration", file, words]);
        }
    }
    fs::write(folder.join("f.toml"), b"a = 1\nb = \"\xff\"\n").unwrap();
    let message = "f.toml:2:6: not UTF-8";
    folder
        .run("--config f.toml")
        .assert_fails_naming(&[message]);
    assert!(folder.run("check f.toml").stderr.contains(message));
    let json = folder.run("check --json f.toml").stdout;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["problems"][0]["line"], 2);
}

#[test]
fn control_characters_of_file_names_never_reach_the_terminal() {
    const NAME: &str = "a\u{1b}[2J\u{7}\nb";
    const SHOWN: &str = r"a\u{1b}[2J\u{7}\nb";
    let folder = Folder::new();
    let ended = |line: &[&str]| Process::spawn(folder.command(line)).ended();
    let shows = |text: &str| {
        assert!(text.contains(SHOWN), "{text}");
        let control = |char: char| char.is_control() && char != '\n';
        assert!(!text.contains(control), "{text:?}");
    };
    // A file that is not there: a path within an error of the operating system.
    shows(&ended(&["--config", NAME]).stderr);
    // Several problems: the heading has the name as well.
    fs::write(folder.join(NAME), "a = 1\nb = 2\n").unwrap();
    for line in [&["--config", NAME], &["check", NAME]] {
        shows(&ended(line).stderr);
    }
    fs::write(folder.join(NAME), ONE_DISK).unwrap();
    folder.image("disk.img", 1 << 20);
    shows(&ended(&["check", NAME]).stdout);
}

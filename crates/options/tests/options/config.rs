//! Configuration files: directives, and options beside a file. Problems of files are in `golden/files.txt`.

use options::{
    ConfigError, ConfigFileWithOptions, DaemonSettingsAndDirectives, Directive, Invocation,
    LogLevel, parse,
};

/// Parses the file `f.toml` beside these arguments.
fn with(args: &[&str], text: &str) -> Result<DaemonSettingsAndDirectives, ConfigError> {
    let words = ["--config", "f.toml"].iter().chain(args);
    match parse(words.map(Into::into)).unwrap() {
        Invocation::ConfigFile(config) => config.parse(text),
        other => panic!("no configuration: {other:?}"),
    }
}

fn file(text: &str) -> DaemonSettingsAndDirectives {
    with(&[], text).unwrap_or_else(|error| panic!("{error}"))
}

/// Line, column and message of all errors of a file.
fn wrong(text: &str) -> Vec<(usize, usize, String)> {
    let error = with(&[], text).unwrap_err();
    let place = |finding: options::ConfigProblem| {
        let place = finding.location.unwrap();
        (place.line, place.column, finding.message)
    };
    error.findings.into_iter().map(place).collect()
}

fn line(args: &[&str]) -> DaemonSettingsAndDirectives {
    match parse(args.iter().map(Into::into)).unwrap() {
        Invocation::Daemon(daemon) => daemon,
        other => panic!("not a daemon: {other:?}"),
    }
}

const ALL: &str = r#"
[monitor.qmp]
pretty = true
[export.e0]
node-name = "part"
writable = true
num-queues = 3
logical-block-size = "4k"
addr = { type = "unix", path = "/tmp/s" }
iothread = ["a", "b"]
[chardev.qmp]
path = "/tmp/q"
server = true
wait = false
[blockdev.part]
driver = "raw"
size = 0x100000
file = "disk"
[blockdev.disk]
driver = "file"
filename = "/a,b"
cache.direct = false
[iothread.b]
poll-max-ns = 1_000
[iothread.a]
cpu-affinity = [0, "2-3"]
"#;

#[test]
fn a_file_has_the_meaning_of_the_same_command_line() {
    let expected = line(&[
        "--object",
        "iothread,id=b,poll-max-ns=1000",
        "--object",
        "iothread,id=a,cpu-affinity.0=0,cpu-affinity.1=2-3",
        "--blockdev",
        "file,node-name=disk,filename=/a,,b,cache.direct=off",
        "--blockdev",
        "raw,node-name=part,size=1M,file=disk",
        "--chardev",
        "socket,id=qmp,path=/tmp/q,server=on,wait=off",
        "--monitor",
        "qmp,pretty=on",
        "--export",
        "vhost-user-blk,id=e0,node-name=part,writable=on,num-queues=3,logical-block-size=4k,\
         addr.type=unix,addr.path=/tmp/s,iothread.0=a,iothread.1=b",
    ]);
    assert_eq!(file(ALL), expected);
}

#[test]
fn an_empty_file_is_valid() {
    assert_eq!(file(""), DaemonSettingsAndDirectives::default());
}

#[test]
fn the_command_line_adds_to_the_file() {
    let text = "[export.e]\nnode-name = \"d\"\niothread = \"a\"\naddr.type = \"unix\"\naddr.path = \"s\"\n";
    let args = [
        "--object",
        "iothread,id=a",
        "--blockdev",
        "null-co,node-name=d",
    ];
    let daemon = with(&args, text).unwrap();
    assert_eq!(daemon.directives.len(), 3);
    assert!(
        matches!(&daemon.directives[2], Directive::Export(export) if export.iothreads == ["a"])
    );
}

/// The file may refer to objects of options, and options to objects of the file.
#[test]
fn the_command_line_replaces_tables_of_the_file() {
    let text = "[blockdev.d]\ndriver = \"file\"\nfilename = \"/absent\"\n[blockdev.part]\ndriver = \"raw\"\nfile = \"d\"\n";
    let daemon = with(&["--blockdev", "null-co,node-name=d,size=1M"], text).unwrap();
    let expected = line(&[
        "--blockdev",
        "null-co,node-name=d,size=1M",
        "--blockdev",
        "raw,node-name=part,file=d",
    ]);
    assert_eq!(daemon, expected);
    // Also if the table is invalid.
    let wrong = "[iothread.a]\npoll-max-ns = \"x\"\n";
    assert!(with(&["--object", "iothread,id=a"], wrong).is_ok());
}

#[test]
fn errors_in_options_beside_a_file_name_the_option() {
    let args = [
        "--object",
        "iothread,id=a",
        "--object",
        "iothread,id=b,poll-grow=x",
    ];
    let error = with(&args, "[iothread.c]\nx = 1\n").unwrap_err();
    let text = error.to_string();
    assert_eq!(error.findings.len(), 2, "{text}");
    assert!(
        text.starts_with("f.toml: 2 problems\nf.toml:2:1: unknown option 'x'"),
        "{text}"
    );
    assert!(
        text.contains("\n--object (number 2): 'poll-grow' cannot be 'x'"),
        "{text}"
    );
    // Duplicate names of options are an error with and without a file.
    let twice = ["--object", "iothread,id=a", "--object", "iothread,id=a"];
    let error = with(&twice, "").unwrap_err();
    assert!(
        error.to_string().contains("there is already an object 'a'"),
        "{error}"
    );
}

#[test]
fn process_options_are_not_in_the_file() {
    let daemon = with(&["--daemonize", "--pidfile", "p"], "").unwrap();
    assert!(daemon.daemonize);
    assert_eq!(daemon.pidfile, Some("p".into()));
}

#[test]
fn serve_takes_a_file_instead_of_a_disk() {
    let words = ["serve", "--config", "f.toml", "-v", "--pidfile", "p"];
    let Ok(Invocation::ConfigFile(config)) = parse(words.iter().map(Into::into)) else {
        panic!("not taken");
    };
    assert_eq!(config.log_level, Some(LogLevel::Debug));
    assert_eq!(config.path.to_str(), Some("f.toml"));
    assert_eq!(config.parse("").unwrap().pidfile, Some("p".into()));
}

#[test]
fn check_takes_a_file() {
    let Ok(Invocation::Check(check)) = parse(["check", "f.toml", "--json"].iter().map(Into::into))
    else {
        panic!("not taken");
    };
    assert!(check.json && !check.open);
    assert_eq!(check.path.to_str(), Some("f.toml"));
    assert_eq!(
        ConfigFileWithOptions::for_path("f.toml").path.to_str(),
        Some("f.toml")
    );
}

#[test]
fn sandbox_and_user_are_options_beside_the_file() {
    for option in ["--sandbox=strict", "--user=1"] {
        assert_eq!(with(&[option], ""), Ok(line(&[option])));
    }
}

#[test]
fn metrics_of_the_command_line_replace_those_of_the_file() {
    let text = "[metrics]\nlisten = \"tcp:127.0.0.1:9465\"\n";
    let expected = line(&["--metrics", "tcp:127.0.0.1:9465"]);
    assert!(expected.metrics.is_some());
    assert_eq!(file(text), expected);
    let replaced = with(&["--metrics=unix:/m"], text).unwrap();
    assert_eq!(replaced, line(&["--metrics", "unix:/m"]));
}

/// A chain of nodes in reverse order, and as many exports: the time does not grow with the square of their number.
#[test]
fn ten_thousand_entries_are_sorted() {
    const NUMBER: usize = 10_000;
    let node = |n: usize| format!("[blockdev.n{n}]\ndriver = \"raw\"\nfile = \"n{}\"\n", n + 1);
    let export = |n: usize| {
        format!(
            "[export.e{n}]\nnode-name = \"n{n}\"\naddr = {{ type = \"unix\", path = \"s{n}\" }}\n"
        )
    };
    let mut text: String = (0..NUMBER)
        .map(node)
        .chain((0..NUMBER).map(export))
        .collect();
    let broken = text.replace("driver = \"raw\"", "driver = \"row\"");
    assert_eq!(wrong(&broken).len(), NUMBER);
    text += &format!("[blockdev.n{NUMBER}]\ndriver = \"null-co\"\n");
    let directives = file(&text).directives;
    let first = match &directives[0] {
        Directive::Blockdev(node) => node.node_name.as_str(),
        other => panic!("{other:?}"),
    };
    assert_eq!((directives.len(), first), (2 * NUMBER + 1, "n10000"));
}

#[test]
fn a_table_with_many_errors_is_read_in_bounded_time() {
    let keys: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let found = wrong(&format!("[iothread.a]\n{keys}[iothread.b]\nk = 1\n"));
    assert_eq!(found.len(), 101);
    assert_eq!(found.last().unwrap().0, 5003, "the next one is read");
}

#[test]
fn a_file_that_is_not_utf_8_is_refused_with_the_location() {
    let bytes = b"a = 1\nb = \"\xc3\xa4 \xff\"\n".to_vec();
    let error = ConfigError::decode_utf8("f.toml".as_ref(), bytes).unwrap_err();
    assert!(
        error.to_string().starts_with(
            "f.toml: one problem\nf.toml:2:8: not UTF-8: the byte 0xff begins no character"
        ),
        "{error}"
    );
    let right = ConfigError::decode_utf8("f.toml".as_ref(), "ä".into()).unwrap();
    assert_eq!(right, "ä");
}

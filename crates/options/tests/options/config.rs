//! Configuration files: directives, errors with their locations, and options beside a file.

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

/// Checks that these are all errors: `LINE:COLUMN` and a part of the message.
#[track_caller]
fn assert_wrong(text: &str, expected: &[(&str, &str)]) {
    let found = wrong(text);
    let places: Vec<String> = found.iter().map(|(l, c, _)| format!("{l}:{c}")).collect();
    let wanted: Vec<&str> = expected.iter().map(|(place, _)| *place).collect();
    assert_eq!(places, wanted, "{found:#?}");
    for ((_, _, message), (place, words)) in found.iter().zip(expected) {
        assert!(
            message.contains(words),
            "{place}: no '{words}' in: {message}"
        );
    }
}

fn line(args: &[&str]) -> DaemonSettingsAndDirectives {
    match parse(args.iter().map(Into::into)).unwrap() {
        Invocation::Daemon(daemon) => daemon,
        other => panic!("not a daemon: {other:?}"),
    }
}

fn error_of(args: &[&str]) -> String {
    parse(args.iter().map(Into::into)).unwrap_err().to_string()
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
fn all_errors_are_reported_at_once_with_their_locations() {
    let text = "\
[iothread.io0]
poll-max-ns = -1
poll-mx-ns = 5
aio-max-events = 0

[blockdev.disk]
driver = \"file\"
filename = \"/d\"
locking = \"maybe\"
cache.dierct = true

[export.e]
node-name = \"dsk\"
writable = \"perhaps\"
addr.type = \"unix\"
addr.path = \"\"
iothread = [\"io0\", \"io9\"]
";
    let expected = [
        ("2:15", "'poll-max-ns' value must be in range [0, "),
        (
            "3:1",
            "unknown option 'poll-mx-ns'; did you mean 'poll-max-ns'?",
        ),
        (
            "4:18",
            "'aio-max-events' value must be in range [1, 65536], not 0",
        ),
        ("9:11", "'locking' cannot be 'maybe'"),
        (
            "10:7",
            "unknown option 'cache.dierct'; did you mean 'cache.direct'?",
        ),
        (
            "13:13",
            "'node-name' names the node 'dsk', which neither the file nor the command line defines; did you mean 'disk'?",
        ),
        (
            "14:12",
            "'writable' cannot be 'perhaps': expected 'on' or 'off'",
        ),
        ("16:13", "'addr.path' cannot be ''"),
        (
            "17:20",
            "the iothread 'io9', which neither the file nor the command line defines; did you mean 'io0'? Defined: io0",
        ),
    ];
    assert_wrong(text, &expected);
}

#[test]
fn an_error_shows_its_line() {
    let error = with(&[], "[blockdev.d]\ndriver = \"null-co\"\nsise = \"1G\"\n").unwrap_err();
    let error = error.to_string();
    let [heading, problem, line, mark] = error.lines().collect::<Vec<_>>()[..] else {
        panic!("{error}");
    };
    assert_eq!(heading, "f.toml: one problem");
    let expected =
        "f.toml:3:1: unknown option 'sise'; did you mean 'size'? Known: driver, node-name, ";
    assert!(problem.starts_with(expected), "{problem}");
    assert_eq!(line, "  3 | sise = \"1G\"");
    assert_eq!(mark, "    | ^^^^");
}

#[test]
fn a_missing_key_is_reported_in_its_table() {
    let missing = "'filename' is missing";
    assert_wrong("[blockdev.d]\ndriver = \"file\"\n", &[("1:11", missing)]);
    let below = "[blockdev.d]\ndriver = \"raw\"\n[blockdev.d.file]\ndriver = \"file\"\n";
    assert_wrong(below, &[("3:13", "'file.filename' is missing")]);
    assert_wrong("[blockdev.d]\n", &[("1:11", "'driver' is missing")]);
}

#[test]
fn syntax_errors_are_all_reported_and_hide_others() {
    let text = "[iothread.a\nx = \n[export.e]\nnode-name = disk\n";
    let found = wrong(text);
    assert!(found.len() >= 2, "{found:?}");
    assert!(
        found
            .iter()
            .all(|(_, _, message)| message.starts_with("not TOML: ")),
        "{found:?}"
    );
    assert_eq!((found[0].0, found.last().unwrap().0), (1, 4), "{found:?}");
    let twice = wrong("[iothread.a]\n[iothread.a]\n");
    assert_eq!((twice.len(), twice[0].0), (1, 2), "{twice:?}");
}

#[test]
fn unknown_tables_are_refused() {
    assert_wrong(
        "[exports.e]\n",
        &[("1:2", "unknown table 'exports'; did you mean 'export'?")],
    );
    assert_wrong(
        "[[iothread]]\nid = \"a\"\n",
        &[("1:3", "write [iothread.NAME]")],
    );
    assert_wrong(
        "[iothread]\nid = \"a\"\n",
        &[("2:1", "write [iothread.NAME]")],
    );
    assert_wrong("[object.a]\n", &[("1:2", "write [iothread.NAME]")]);
    assert_wrong(
        "pidfile = \"p\"\n",
        &[("1:1", "--pidfile on the command line")],
    );
}

#[test]
fn a_name_is_in_the_header_and_well_formed() {
    assert_wrong(
        "[iothread.a]\nid = \"b\"\n",
        &[("2:1", "remove 'id': the name is 'a'")],
    );
    assert_wrong("[iothread.\"1 a\"]\n", &[("1:11", "'id' cannot be '1 a'")]);
    let node = "[blockdev.\"1 a\"]\ndriver = \"null-co\"\n";
    assert_wrong(node, &[("1:11", "'node-name' cannot be '1 a'")]);
}

#[test]
fn nodes_below_each_other_in_a_circle_are_refused() {
    let text = "[blockdev.a]\ndriver = \"raw\"\nfile = \"b\"\n[blockdev.b]\ndriver = \"raw\"\nfile = \"a\"\n\
                [export.e]\nnode-name = \"a\"\naddr.type = \"unix\"\naddr.path = \"s\"\n";
    assert_wrong(text, &[("3:1", "in a circle"), ("6:1", "in a circle")]);
}

/// References to an invalid table are not reported.
#[test]
fn one_mistake_is_reported_once() {
    let text = "[iothread.a]\npoll-max-ns = \"x\"\n[blockdev.d]\ndriver = \"qcow2\"\n[chardev.c]\n[monitor.c]\n\
                [export.e]\nnode-name = \"d\"\nwritable = true\niothread = \"a\"\naddr.type = \"unix\"\naddr.path = \"s\"\n";
    let expected = [
        ("2:15", "'poll-max-ns'"),
        ("4:10", "not supported by blockplane yet"),
        ("5:10", "'path' is missing"),
    ];
    assert_wrong(text, &expected);
}

#[test]
fn contradictions_are_reported_at_their_keys() {
    let text = "[blockdev.d]\ndriver = \"file\"\nfilename = \"f\"\naio = \"native\"\ncache.direct = false\n\
                [blockdev.r]\ndriver = \"null-co\"\nread-only = true\n\
                [export.a]\nnode-name = \"r\"\nwritable = true\naddr.type = \"unix\"\naddr.path = \"s\"\n\
                [export.b]\nnode-name = \"r\"\naddr.type = \"unix\"\naddr.path = \"s\"\n\
                [export.c]\nnode-name = \"r\"\naddr.type = \"unix\"\naddr.path = \"s\"\n";
    let expected = [
        ("4:1", "'aio=native' contradicts 'cache.direct=off'"),
        ("11:1", "which is read-only"),
        ("20:1", "export 'b' already listens on socket 's'"),
    ];
    assert_wrong(text, &expected);
}

#[test]
fn dates_and_fractions_are_not_numbers() {
    let text = "[iothread.a]\npoll-max-ns = 1.5\npoll-grow = 1979-05-27\n";
    let expected = [
        ("2:15", "'poll-max-ns' cannot be '1.5'"),
        ("3:13", "cannot be a date"),
    ];
    assert_wrong(text, &expected);
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
fn config_takes_exactly_one_path() {
    assert!(error_of(&["--config", "a", "--config", "b"]).contains("--config: is given twice"));
    assert!(error_of(&["--config", ""]).contains("write --config FILE"));
    // An abbreviation of an option of qemu-storage-daemon stays unambiguous.
    assert!(parse(["--c", "socket,id=c,path=p"].iter().map(Into::into)).is_ok());
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
    for also in ["disk.img", "--num-queues=2", "--packed"] {
        let error = error_of(&["serve", "--config", "f.toml", also]);
        assert!(error.contains("cannot be used with"), "{also}: {error}");
    }
    assert!(error_of(&["serve"]).contains("<DISK>"));
}

#[test]
fn check_takes_a_file() {
    let Ok(Invocation::Check(check)) = parse(["check", "f.toml", "--json"].iter().map(Into::into))
    else {
        panic!("not taken");
    };
    assert!(check.json && !check.open);
    assert_eq!(check.path.to_str(), Some("f.toml"));
    assert!(error_of(&["check"]).contains("<FILE>"));
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
    for (text, words) in [
        ("sandbox = \"off\"\n", "give --sandbox on the command line"),
        ("user = \"x\"\n", "give --user on the command line"),
    ] {
        let error = with(&[], text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
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
    for (text, words) in [
        ("[metrics]\n", "'listen' is missing: expected unix:PATH"),
        ("[metrics]\nlisten = 5\n", "'listen' is not an address"),
        ("[metrics]\nlisten = \"x\"\n", "tcp:127.0.0.1:9465"),
        ("[metrics.m]\nlisten = \"x\"\n", "Known: listen"),
        ("metrics = \"x\"\n", "write [metrics]"),
        ("[metric]\n", "did you mean 'metrics'?"),
    ] {
        let error = with(&[], text).unwrap_err().to_string();
        assert!(error.contains(words), "{text}: {error}");
    }
}

/// A disk and an export of it.
fn exported(name: &str, image: &str, socket: &str) -> String {
    format!(
        "[blockdev.{name}]\ndriver = \"file\"\nfilename = \"{image}\"\n\
         [export.{name}]\nnode-name = \"{name}\"\naddr = {{ type = \"unix\", path = \"{socket}\" }}\n"
    )
}

#[test]
fn a_socket_has_one_listener() {
    let text = "\
[metrics]
listen = \"unix:m\"
[chardev.a]
path = \"s\"
server = true
[chardev.b]
path = \"./s\"
server = true
[chardev.c]
fd = 5
server = true
[chardev.client]
path = \"s\"
[blockdev.d]
driver = \"null-co\"
[export.e]
node-name = \"d\"
addr = { type = \"fd\", str = \"5\" }
[export.f]
node-name = \"d\"
addr = { type = \"unix\", path = \".//m\" }
[export.g]
node-name = \"d\"
addr = { type = \"unix\", path = \"s\" }
";
    assert_wrong(
        text,
        &[
            (
                "7:1",
                "chardev 'a' already listens on socket 's'; chardev 'b'",
            ),
            (
                "18:1",
                "chardev 'c' already listens on file descriptor 5; export 'e'",
            ),
            (
                "21:1",
                "the endpoint for metrics already listens on socket 'm'",
            ),
            (
                "24:1",
                "chardev 'a' already listens on socket 's'; export 'g'",
            ),
        ],
    );
    // An option replaces the table.
    let without_m = ["--metrics", "unix:elsewhere"];
    let error = with(&without_m, text).unwrap_err();
    assert_eq!(error.findings.len(), 3, "{error}");
    let words = [
        "--metrics",
        "unix:s",
        "--chardev",
        "socket,id=c,path=s,server=on",
    ];
    assert!(error_of(&words).contains("metrics already listens on socket 's'"));
}

#[test]
fn an_image_that_is_written_belongs_to_one_node() {
    let two = |more: &str| {
        let second = exported("b", "./x.img", "t").replace("img\"\n", &format!("img\"\n{more}"));
        exported("a", "x.img", "s") + &second
    };
    assert_wrong(
        &two(""),
        &[("9:1", "'filename' names the image of node 'a' as well")],
    );
    // A reader would read changing data.
    assert_eq!(wrong(&two("read-only = true\n")).len(), 1);
    file(&two("read-only = true\nforce-share = true\n"));
    file(&two("locking = \"off\"\n"));
    let readers = two("").replace("img\"\n", "img\"\nread-only = true\n");
    file(&readers);
    let inside =
        "[blockdev.w]\ndriver = \"raw\"\nfile = { driver = \"file\", filename = \"x.img\" }\n";
    assert_wrong(
        &(exported("a", "x.img", "s") + inside),
        &[("9:27", "'file.filename' names the image of node 'a'")],
    );
}

/// Only the names of an invalid entry are assumed for later ones.
#[test]
fn an_invalid_entry_reserves_no_socket_and_no_image() {
    let text = exported("a", "x.img", "s") + "sise = 1\n" + &exported("b", "y.img", "s");
    assert_eq!(wrong(&text).len(), 1);
    let wrong_disk = exported("a", "x.img", "s").replace("img\"\n", "img\"\nsise = 1\n");
    assert_eq!(wrong(&(wrong_disk + &exported("b", "x.img", "t"))).len(), 1);
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

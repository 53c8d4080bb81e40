//! Configuration files: directives, and options beside a file. Problems of files are in `golden/files.txt`.

use options::{ConfigError, DaemonSettingsAndDirectives, Directive, Invocation};

use crate::invocation;

/// Parses the file `f.toml` beside these arguments.
fn with(args: &[&str], text: &str) -> Result<DaemonSettingsAndDirectives, ConfigError> {
    match invocation(&[&["--config", "f.toml"], args].concat()) {
        Ok(Invocation::ConfigFile(config)) => config.parse(text),
        other => panic!("no configuration: {other:?}"),
    }
}

fn file(text: &str) -> DaemonSettingsAndDirectives {
    with(&[], text).unwrap_or_else(|error| panic!("{error}"))
}

fn line(args: &[&str]) -> DaemonSettingsAndDirectives {
    crate::daemon(args).unwrap()
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

/// The file may refer to objects of options, and options to objects of the file.
#[test]
fn options_beside_a_file_add_to_it_and_replace_its_tables() {
    let disk = "[blockdev.part]\ndriver = \"raw\"\nfile = \"d\"\n";
    let absent = format!("{disk}[blockdev.d]\ndriver = \"file\"\nfilename = \"/absent\"\n");
    let node = ["--blockdev", "null-co,node-name=d,size=1M"];
    let both = [&node[..], &["--blockdev", "raw,node-name=part,file=d"]].concat();
    let metrics = "[metrics]\nlisten = \"tcp:127.0.0.1:9465\"\n";
    for (args, text, same) in [
        (&[][..], "", &["--sandbox=on"][..]),
        (&node, disk, &both),
        (&node, &absent, &both),
        // Also if the table is invalid.
        (&node, "[blockdev.d]\nx = 1\n", &node),
        (&[], metrics, &["--metrics", "tcp:127.0.0.1:9465"]),
        (&["--metrics=unix:/m"], metrics, &["--metrics", "unix:/m"]),
        (&["--sandbox=strict"], "", &["--sandbox=strict"]),
        (&["--user=1"], "", &["--user=1"]),
        (
            &["--daemonize", "--pidfile", "p"],
            "",
            &["--daemonize", "--pidfile", "p"],
        ),
    ] {
        assert_eq!(with(args, text), Ok(line(same)), "{args:?} {text}");
    }
}

#[test]
fn errors_in_options_beside_a_file_name_the_option() {
    let args = ["--object", "iothread,id=a", "--object", "iothread,id=b,x=1"];
    let text = with(&args, "[iothread.c]\nx = 1\n")
        .unwrap_err()
        .to_string();
    for expected in [
        "f.toml: 2 problems\nf.toml:2:1: unknown option 'x'",
        "\n--object (number 2): unknown option 'x'",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    // Duplicate names of options are an error with and without a file.
    let twice = ["--object", "iothread,id=a", "--object", "iothread,id=a"];
    let text = with(&twice, "").unwrap_err().to_string();
    assert!(text.contains("there is already an object 'a'"), "{text}");
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
    let nodes = (0..NUMBER).map(node);
    let mut text: String = nodes.chain((0..NUMBER).map(export)).collect();
    let broken = text.replace("driver = \"raw\"", "driver = \"row\"");
    assert_eq!(with(&[], &broken).unwrap_err().findings.len(), NUMBER);
    text += &format!("[blockdev.n{NUMBER}]\ndriver = \"null-co\"\n");
    let directives = file(&text).directives;
    assert_eq!(directives.len(), 2 * NUMBER + 1);
    assert!(matches!(&directives[0], Directive::Blockdev(node) if node.node_name == "n10000"));
}

#[test]
fn a_table_with_many_errors_is_read_in_bounded_time() {
    let keys: String = (0..5000).map(|n| format!("k{n} = 1\n")).collect();
    let text = format!("[iothread.a]\n{keys}[iothread.b]\nk = 1\n");
    let found = with(&[], &text).unwrap_err().findings;
    assert_eq!(found.len(), 101);
    let last = found[100].location.as_ref().unwrap();
    assert_eq!(last.line, 5003, "the next one is read");
}

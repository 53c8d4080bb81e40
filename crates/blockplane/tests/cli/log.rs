//! Log formats: text for people, JSON for machines, priorities for the journal.

use serde_json::Value;

use crate::capacity;
use crate::process::{Folder, Process, ProcessOutput, words};

const LINE: &str = "--object iothread,id=io0 --blockdev null-co,node-name=d,size=1M \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s,iothread=io0";

/// Runs it with a variable until it ends, in a folder that stays empty.
fn ended(words: &[&str], variable: &str, value: &str) -> ProcessOutput {
    let folder = Folder::new();
    let mut command = folder.command(words);
    command.env(variable, value);
    let ended = Process::spawn(command).ended();
    assert_eq!(folder.names(), [""; 0]);
    ended
}

/// What it wrote while a front-end came and went.
fn one_connection(folder: &Folder, script: &str) -> ProcessOutput {
    let script = format!(r#"{script} exec "$0" "$@""#);
    let mut process = Process::spawn(folder.command_after(&script, words(LINE)));
    process.wait_until_accepting(&folder.join("s"));
    assert_eq!(capacity(folder, "s"), 1 << 20);
    process.stop()
}

fn objects(lines: &str) -> Vec<Value> {
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn json_log_lines_have_the_documented_members() {
    let variables = "BLOCKPLANE_LOG=info BLOCKPLANE_LOG_FORMAT=json";
    let ended = one_connection(&Folder::new(), variables);
    let objects = objects(&ended.stderr);
    for object in &objects {
        let text = |name: &str| object[name].as_str().unwrap();
        let time = text("timestamp");
        assert!(time.len() > 19 && time.ends_with('Z'), "{time}");
        assert_eq!(&time[10..11], "T", "{time}");
        assert_eq!(text("level"), "INFO");
        assert!(!text("message").is_empty() && !text("target").is_empty());
    }
    let mut objects = objects.iter();
    let connected = objects.find(|object| object["message"] == "front-end connected");
    assert_eq!(connected.unwrap()["export"], "e");
}

#[test]
fn json_log_reports_a_failed_start() {
    // A file's name is in the hands of others. Bad options come before there is a log.
    for (words, expected) in [
        (&["serve", "-q", "missing\n\".img"][..], "missing\n\".img"),
        (&["--nonsense"], "--nonsense"),
    ] {
        let ended = ended(words, "BLOCKPLANE_LOG_FORMAT", "json");
        assert_eq!(ended.code, Some(1));
        let objects = objects(&ended.stderr);
        assert_eq!(objects.len(), 1, "{ended:?}");
        assert_eq!(objects[0]["level"], "ERROR");
        let message = objects[0]["message"].as_str().unwrap();
        assert!(message.contains(expected), "{message}");
    }
}

/// The command line without a command is that of qemu-storage-daemon, which has no options for these.
#[test]
fn environment_sets_log_level_and_format() {
    for (level, said) in [("error", false), ("warn", false), ("Debug", true)] {
        let log = one_connection(&Folder::new(), &format!("BLOCKPLANE_LOG={level}")).stderr;
        assert_eq!(log.contains("iothread stopped"), said, "{level}");
    }
    let line: Vec<&str> = LINE.split_whitespace().collect();
    let refused = ended(&line, "BLOCKPLANE_LOG", "loud");
    refused.assert_fails_naming(&["BLOCKPLANE_LOG", "loud", "warn", "debug"]);
    let refused = ended(&line, "BLOCKPLANE_LOG_FORMAT", "xml");
    refused.assert_fails_naming(&["BLOCKPLANE_LOG_FORMAT", "'xml'", "text or json"]);
    // An option takes precedence.
    let line = ["serve", "-q", "missing.img", "--log-format", "text"];
    let refused = ended(&line, "BLOCKPLANE_LOG_FORMAT", "json");
    refused.assert_fails_naming(&["missing.img"]);
}

/// What it writes to a journal, which a file stands for.
fn in_journal(stream: &str, line: &str) -> String {
    let folder = Folder::new();
    let script = format!(r#": > log; JOURNAL_STREAM={stream} exec "$0" "$@" 2> log"#);
    Process::spawn(folder.command_after(&script, words(line))).ended();
    std::fs::read_to_string(folder.join("log")).unwrap()
}

#[test]
fn journal_lines_have_a_priority_and_no_time() {
    let here = "$(stat -c %d:%i log)";
    let failure = in_journal(here, "serve -q missing.img");
    let expected = "<3>blockplane: missing.img";
    assert!(failure.starts_with(expected), "{failure}");
    // The journal takes the priority off: what is left is an object.
    let failure = in_journal(here, "serve -q missing.img --log-format json");
    assert_eq!(objects(failure.strip_prefix("<3>").unwrap()).len(), 1);
    // Bad options come before there is a log.
    assert!(in_journal(here, "--nonsense").starts_with("<3>blockplane: --nonsense"));
    // A variable that a shell has left is not believed.
    let failure = in_journal("1:1", "serve -q missing.img");
    assert!(failure.starts_with("blockplane: missing.img"), "{failure}");
    // Events are one line each.
    let folder = Folder::new();
    let variables = format!(": > log; exec 2> log; BLOCKPLANE_LOG=info JOURNAL_STREAM={here}");
    one_connection(&folder, &variables);
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let mut lines = log.lines();
    let is_connected = lines.any(|line| line.starts_with("<6>front-end connected"));
    assert!(is_connected, "{log}");
}

//! Log formats: text for people, JSON for machines, priorities for the journal.

use serde_json::Value;

use crate::front_end::FrontEnd;
use crate::process::{Folder, Process, ProcessOutput, words};

const LINE: &str = "--blockdev null-co,node-name=d,size=1M \
    --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s";

/// What it wrote while a front-end came and went.
fn one_connection(folder: &Folder, environment: &[(&str, &str)]) -> ProcessOutput {
    let mut command = folder.command(words(LINE));
    command.envs(environment.iter().copied());
    let mut process = Process::spawn(command);
    process.wait_until_accepting(&folder.join("s"));
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
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
    let environment = [
        ("BLOCKPLANE_LOG", "info"),
        ("BLOCKPLANE_LOG_FORMAT", "json"),
    ];
    let ended = one_connection(&Folder::new(), &environment);
    let objects = objects(&ended.stderr);
    for object in &objects {
        let text = |name: &str| object[name].as_str().unwrap();
        let time = text("timestamp");
        assert!(
            time.len() > 19 && time.ends_with('Z') && &time[10..11] == "T",
            "{time}"
        );
        assert_eq!(text("level"), "INFO");
        assert!(
            !text("message").is_empty() && !text("target").is_empty(),
            "{object}"
        );
    }
    let connected = objects
        .iter()
        .find(|object| object["message"] == "front-end connected");
    assert_eq!(connected.unwrap()["export"], "e");
}

/// Of a run that ends at once, with JSON asked for by the environment.
fn failure(arguments: &[&str]) -> Value {
    let folder = Folder::new();
    let mut command = folder.command(arguments.iter().map(|&argument| argument.to_owned()));
    command.env("BLOCKPLANE_LOG_FORMAT", "json");
    let ended = Process::spawn(command).ended();
    assert_eq!(ended.code, Some(1));
    let mut objects = objects(&ended.stderr);
    assert_eq!(objects.len(), 1, "{ended:?}");
    assert_eq!(objects[0]["level"], "ERROR");
    objects.remove(0)
}

#[test]
fn json_log_reports_a_failed_start() {
    // A file's name is in the hands of others.
    let missing = failure(&["serve", "-q", "missing\n\".img"]);
    let message = missing["message"].as_str().unwrap();
    assert!(message.contains("missing\n\".img"), "{message}");
    // Bad options come before there is a log.
    let bad = failure(&["--nonsense"]);
    assert!(bad["message"].as_str().unwrap().contains("--nonsense"));
}

#[test]
fn log_format_option_takes_precedence_over_the_environment() {
    let folder = Folder::new();
    let mut command = folder.command(words("serve -q missing.img --log-format text"));
    command.env("BLOCKPLANE_LOG_FORMAT", "json");
    let ended = Process::spawn(command).ended();
    ended.assert_fails_naming(&["missing.img"]);
}

#[test]
fn unknown_log_format_is_refused_before_anything_is_created() {
    let folder = Folder::new();
    let mut command = folder.command(words(LINE));
    command.env("BLOCKPLANE_LOG_FORMAT", "xml");
    let ended = Process::spawn(command).ended();
    ended.assert_fails_naming(&["BLOCKPLANE_LOG_FORMAT", "'xml'", "text or json"]);
    assert!(!folder.has("s"));
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
    assert!(
        failure.starts_with("<3>blockplane: missing.img"),
        "{failure}"
    );
    // The journal takes the priority off: what is left is an object.
    let failure = in_journal(here, "serve -q missing.img --log-format json");
    assert_eq!(objects(failure.strip_prefix("<3>").unwrap()).len(), 1);
    // Bad options come before there is a log.
    assert!(in_journal(here, "--nonsense").starts_with("<3>blockplane: --nonsense"));
    // A variable that a shell has left is not believed.
    let failure = in_journal("1:1", "serve -q missing.img");
    assert!(failure.starts_with("blockplane: missing.img"), "{failure}");
}

#[test]
fn journal_events_are_one_line_each() {
    let folder = Folder::new();
    let script = r#": > log; JOURNAL_STREAM=$(stat -c %d:%i log) exec "$0" "$@" 2> log"#;
    let mut command = folder.command_after(script, words(LINE));
    command.env("BLOCKPLANE_LOG", "info");
    let mut process = Process::spawn(command);
    process.wait_until_accepting(&folder.join("s"));
    assert_eq!(FrontEnd::connect(&folder.join("s")).capacity(), 2048);
    process.stop();
    let log = std::fs::read_to_string(folder.join("log")).unwrap();
    let connected = log
        .lines()
        .find(|line| line.contains("front-end connected"));
    assert!(
        connected.unwrap().starts_with("<6>front-end connected"),
        "{log}"
    );
}

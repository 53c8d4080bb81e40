//! Manual pages and completions, checked with the tools that read them.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use options::reference;
use tempfile::TempDir;
use test_support::report::installed;

/// Those of the program.
fn commands() -> Vec<clap::Command> {
    let mut commands = reference::command_grammars();
    commands.extend(
        blockplane::operator::cli::command_definitions()
            .get_subcommands()
            .cloned(),
    );
    commands
}

/// Writes all manual pages to a new folder.
fn pages() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let protocol = manual::QmpSummary {
        commands: vec![
            "add driver=file|raw [cache.direct=boolean]\n    driver=raw: file=str".to_owned(),
            "quit".to_owned(),
        ],
        events: vec!["SHUTDOWN guest=boolean".to_owned()],
    };
    manual::write_blockplane_pages(folder.path(), &commands(), &protocol).unwrap();
    manual::write_program_pages(folder.path(), &bench::cli::grammar()).unwrap();
    folder
}

fn completions() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    manual::write_blockplane_completions(folder.path(), &commands()).unwrap();
    manual::write_program_completions(folder.path(), &bench::cli::grammar()).unwrap();
    folder
}

/// A page without what is roff's.
fn read(folder: &Path, name: &str) -> String {
    let text = fs::read_to_string(folder.join(name)).unwrap();
    text.replace("\\-", "-").replace("\\*(Aq", "'")
}

#[test]
fn manual_page_has_every_option_of_serve_and_the_daemon() {
    let folder = pages();
    let page = read(folder.path(), "blockplane.1");
    for option in reference::top_level_options() {
        assert!(
            page.contains(&format!("--{}", option.long)),
            "{}",
            option.long
        );
    }
    let file = read(folder.path(), "blockplane.toml.5");
    for group in reference::key_groups_with_list_elements() {
        for key in group.keys {
            assert!(
                page.contains(&format!("\\fB{}{}=", group.prefix, key.name)),
                "{}",
                key.name
            );
            let in_header = ["id", "node-name", "chardev"].contains(&key.name);
            assert!(
                in_header || file.contains(&format!("\\fB{} = ", key.name)),
                "{}",
                key.name
            );
        }
    }
    for command in commands() {
        let name = command.get_name().trim_start_matches("blockplane ");
        let name = format!("blockplane-{name}");
        assert!(page.contains(&format!("{name}(1)")), "{name}");
        let of_command = read(folder.path(), &format!("{name}.1"));
        for arg in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(of_command.contains(&format!("--{arg}")), "{name}: {arg}");
        }
        for heading in ["SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"] {
            let is_there = of_command
                .replace('"', "")
                .contains(&format!(".SH {heading}\n"));
            assert!(is_there, "{name}: {heading}");
        }
        assert!(of_command.contains("--help"), "{name}");
    }
}

#[test]
fn bench_commands_have_manual_pages() {
    let folder = pages();
    let overview = read(folder.path(), "blockplane-bench.1");
    for command in bench::cli::grammar().get_subcommands() {
        let name = format!("blockplane-bench-{}", command.get_name());
        assert!(overview.contains(&format!("{name}(1)")), "{name}");
        let page = read(folder.path(), &format!("{name}.1"));
        for option in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(page.contains(&format!("--{option}")), "{name}: {option}");
        }
    }
}

/// Whether a program succeeds with these arguments, and what it prints, and complains of.
fn tried(program: &str, arguments: &[&str], folder: &Path) -> (bool, String, String) {
    let mut command = Command::new(program);
    command.args(arguments).current_dir(folder);
    command.env("MANWIDTH", "80").env("LC_ALL", "C.UTF-8");
    let output = command.stdin(Stdio::null()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let passed = output.status.success();
    (passed, text(output.stdout), text(output.stderr))
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn mandoc_reports_no_problems() {
    if !installed("mandoc") {
        return;
    }
    let folder = pages();
    for name in names(folder.path()) {
        // Warnings only: the layout of the source is not read by people.
        let arguments = ["-Tlint", "-W", "warning", &name];
        let (_, complaints, _) = tried("mandoc", &arguments, folder.path());
        let is_seen = |line: &&str| !line.contains("skipping paragraph macro: br");
        let complaints: Vec<&str> = complaints.lines().filter(is_seen).collect();
        assert_eq!(complaints, [""; 0]);
    }
}

#[test]
fn man_formats_pages_without_warnings_in_80_columns() {
    if !installed("man") {
        return;
    }
    let folder = pages();
    for name in names(folder.path()) {
        let arguments = ["--warnings", "-E", "UTF-8", "-l", &name];
        let (passed, text, complaints) = tried("man", &arguments, folder.path());
        assert!(passed && complaints.is_empty(), "{name}: {complaints}");
        assert!(text.contains("SEE ALSO"), "{name}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
            // As it is to be typed, without a hyphen in it; and legible without Unicode.
            assert!(!line.ends_with('\u{2010}'), "{name}: {line}");
            assert!(!line.contains('…'), "{name}: {line}");
        }
    }
}

#[test]
fn man_shows_examples_line_by_line() {
    if !installed("man") {
        return;
    }
    let folder = pages();
    let measuring = bench::cli::grammar();
    let mut pages = vec![("blockplane-bench.1".to_owned(), measuring.clone())];
    for command in measuring.get_subcommands() {
        let name = format!("blockplane-bench-{}.1", command.get_name());
        pages.push((name, command.clone()));
    }
    for command in commands() {
        let name = command.get_name().trim_start_matches("blockplane ");
        pages.push((format!("blockplane-{name}.1"), command));
    }
    let mut with_examples = 0;
    for (name, command) in pages {
        let help = command.get_after_long_help().map(ToString::to_string);
        let Some((_, examples)) = help
            .as_deref()
            .and_then(|help| help.split_once("Examples:\n"))
        else {
            continue;
        };
        with_examples += 1;
        let (_, shown, _) = tried("man", &["-E", "UTF-8", "-l", &name], folder.path());
        let shown: Vec<&str> = shown.lines().map(str::trim).collect();
        for line in examples.lines().map(str::trim) {
            assert!(shown.contains(&line), "{name}: {line}");
        }
    }
    assert!(with_examples > 10, "{with_examples}");
}

/// What bash offers for a line, the cursor at its end. `words` is how bash splits it.
fn offered(words: &[&str], line: &str) -> Vec<String> {
    let program = words[0];
    let folder = completions();
    let script = r#"
        source "$1"; program="$2"; COMP_LINE="$3"; COMP_POINT=${#COMP_LINE}; shift 3
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        function_of() { local spec; spec="$(complete -p "$program")"; spec="${spec#* -F }"; echo "${spec%% *}"; }
        "$(function_of)" "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let output = Command::new("bash")
        .args(["--norc", "-c", script, "bash"])
        .arg(folder.path().join(format!("{program}.bash")))
        .args([program, line])
        .args(words)
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let out = String::from_utf8(output.stdout).unwrap();
    out.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_and_options() {
    if !installed("bash") {
        return;
    }
    assert_eq!(offered(&["blockplane", "ser"], "blockplane ser"), ["serve"]);
    assert_eq!(
        offered(&["blockplane", "--blo"], "blockplane --blo"),
        ["--blockdev"]
    );
    let of_serve = ["blockplane", "serve", "--num"];
    assert_eq!(
        offered(&of_serve, "blockplane serve --num"),
        ["--num-queues"]
    );
    assert!(offered(&["blockplane", ""], "blockplane ").contains(&"generate".to_owned()));
    let of_check = ["blockplane", "check", "--he"];
    assert_eq!(offered(&of_check, "blockplane check --he"), ["--help"]);
    let measuring = ["blockplane-bench", "run", "--verif"];
    assert_eq!(
        offered(&measuring, "blockplane-bench run --verif"),
        ["--verify"]
    );
}

#[test]
fn bash_completes_keys_and_their_values() {
    if !installed("bash") {
        return;
    }
    let kind = ["blockplane", "--blockdev", "fil"];
    assert_eq!(
        offered(&kind, "blockplane --blockdev fil"),
        ["file,", "filename=", "file="]
    );
    let key = ["blockplane", "--blockdev", "file,filen"];
    assert_eq!(
        offered(&key, "blockplane --blockdev file,filen"),
        ["file,filename="]
    );
    // What is not a key of the kind is not offered.
    let other = ["blockplane", "--blockdev", "file,read-z"];
    assert!(
        !offered(&other, "blockplane --blockdev file,read-z")
            .join(" ")
            .contains("read-zeroes")
    );
    // After a value: bash has split the word at its '='.
    let later = [
        "blockplane",
        "--export",
        "vhost-user-blk,id",
        "=",
        "e,writa",
    ];
    let line = "blockplane --export vhost-user-blk,id=e,writa";
    assert_eq!(offered(&later, line), ["e,writable="]);
    let kind = ["blockplane", "--export", "vfio"];
    assert_eq!(
        offered(&kind, "blockplane --export vfio"),
        ["vfio-user-lsi53c895a,"]
    );
    // Keys that all types take, and those of a SCSI disk.
    for (part, key) in [("addr.t", "addr.type="), ("vend", "vendor=")] {
        let later = format!("vhost-user-scsi,{part}");
        let words = ["blockplane", "--export", &later];
        let line = format!("blockplane --export {later}");
        assert_eq!(offered(&words, &line), [format!("vhost-user-scsi,{key}")]);
    }
    let value = [
        "blockplane",
        "--export",
        "vhost-user-blk,writable",
        "=",
        "o",
    ];
    assert_eq!(
        offered(&value, "blockplane --export vhost-user-blk,writable=o"),
        ["on", "off"]
    );
    let path = [
        "blockplane",
        "--blockdev",
        "file,filename",
        "=",
        "_blockplane-",
    ];
    assert_eq!(
        offered(&path, "blockplane --blockdev file,filename=_blockplane-"),
        ["_blockplane-bench"]
    );
    let joined = ["blockplane", "--object", "=", "iothread,poll-m"];
    assert_eq!(
        offered(&joined, "blockplane --object=iothread,poll-m"),
        ["iothread,poll-max-ns="]
    );
}

/// Lines, and what completes them; the last are of a folder with a file `disk.img`.
const COMPLETED: [(&str, &str); 8] = [
    ("blockplane gen", "generate"),
    ("blockplane --object iothr", "iothread,"),
    ("blockplane --export vhost-user-blk,id=e,writa", "writable="),
    ("blockplane --export=vhost-user-blk,id=e,writa", "writable="),
    (
        "blockplane --export vhost-user-scsi,id=e,writa",
        "writable=",
    ),
    ("blockplane --export vhost-user-scsi,id=e,vend", "vendor="),
    ("blockplane --blockdev file,locking=au", "auto"),
    ("blockplane --blockdev file,filename=dis", "disk.img"),
];

#[test]
fn fish_completes_keys_and_their_values() {
    if !installed("fish") {
        return;
    }
    let folder = completions();
    fs::write(folder.path().join("disk.img"), "").unwrap();
    for (line, expected) in COMPLETED {
        let script = format!("source blockplane.fish; complete -C '{line}'");
        let arguments = ["--no-config", "-c", &script];
        let (_, offered, complaints) = tried("fish", &arguments, folder.path());
        assert_eq!(complaints, "");
        let offered = offered.lines().map(|line| line.split('\t').next().unwrap());
        let offered: Vec<&str> = offered.collect();
        assert!(
            matches!(offered[..], [one] if one.ends_with(expected)),
            "{line}: {offered:?}"
        );
    }
}

#[test]
fn fish_offers_a_command_its_own_options() {
    if !installed("fish") {
        return;
    }
    let folder = completions();
    for line in ["blockplane check --", "blockplane-bench run --"] {
        let program = line.split(' ').next().unwrap();
        let script = format!("source {program}.fish; complete -C '{line}'");
        let arguments = ["--no-config", "-c", &script];
        let (_, offered, _) = tried("fish", &arguments, folder.path());
        assert!(offered.contains("--json"), "{line}: {offered}");
        assert!(!offered.contains("--blockdev"), "{line}: {offered}");
    }
}

#[test]
fn fish_offers_the_arguments_of_a_command() {
    if !installed("fish") {
        return;
    }
    let folder = completions();
    for (line, expected) in [
        ("blockplane help upg", "upgrade"),
        ("blockplane generate comp", "completions"),
    ] {
        let script = format!("source blockplane.fish; complete -C '{line}'");
        let arguments = ["--no-config", "-c", &script];
        let (_, offered, _) = tried("fish", &arguments, folder.path());
        assert_eq!(offered.trim(), expected, "{line}");
    }
}

/// The output of a shell in a terminal after typing a line and pressing Tab.
const TYPED_IN_ZSH: &str = r#"
    zmodload zsh/zpty
    zpty terminal zsh -f -i
    zpty -w terminal 'PS1=; unset zle_bracketed_paste; autoload compinit; compinit -D; source ./_blockplane; echo re""ady'
    zpty -r terminal text '*ready*'
    zpty -w -n terminal "$1"$'\t'
    zpty -r terminal text "*${2}*"
    print -r -- "$text"
"#;

#[test]
fn zsh_completes_keys_and_their_values() {
    if !["zsh", "timeout"].into_iter().all(installed) {
        return;
    }
    let folder = completions();
    fs::write(folder.path().join("disk.img"), "").unwrap();
    for (line, expected) in COMPLETED {
        // It waits until it is there.
        let arguments = ["60", "zsh", "-fc", TYPED_IN_ZSH, "zsh", line, expected];
        let (passed, shown, complaints) = tried("timeout", &arguments, folder.path());
        assert!(passed, "{line}: {shown} {complaints}");
    }
}

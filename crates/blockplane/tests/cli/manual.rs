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

/// All commands of both programs, with the names of their pages.
fn pages_of_commands() -> Vec<(String, clap::Command)> {
    let mut pages = Vec::new();
    for command in commands() {
        let name = command.get_name().trim_start_matches("blockplane ");
        pages.push((format!("blockplane-{name}"), command));
    }
    for command in bench::cli::grammar().get_subcommands() {
        let page = format!("blockplane-bench-{}", command.get_name());
        pages.push((page, command.clone()));
    }
    pages
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
        let option = format!("--{}", option.long);
        assert!(page.contains(&option), "{option}");
    }
    let file = read(folder.path(), "blockplane.toml.5");
    for group in reference::key_groups_with_list_elements() {
        for key in group.keys {
            let in_option = format!("\\fB{}{}=", group.prefix, key.name);
            assert!(page.contains(&in_option), "{in_option}");
            let in_file = format!("\\fB{} = ", key.name);
            let in_header = ["id", "node-name", "chardev"].contains(&key.name);
            assert!(in_header || file.contains(&in_file), "{in_file}");
        }
    }
    let overview = read(folder.path(), "blockplane-bench.1");
    for (name, command) in pages_of_commands() {
        let listed = format!("{name}(1)");
        let is_listed = page.contains(&listed) || overview.contains(&listed);
        assert!(is_listed, "{name}");
        let of_command = read(folder.path(), &format!("{name}.1")).replace('"', "");
        for arg in command.get_arguments().filter_map(clap::Arg::get_long) {
            assert!(of_command.contains(&format!("--{arg}")), "{name}: {arg}");
        }
        for heading in ["SYNOPSIS", "DESCRIPTION", "OPTIONS", "SEE ALSO"] {
            let heading = format!(".SH {heading}\n");
            assert!(of_command.contains(&heading), "{name}: {heading}");
        }
        assert!(of_command.contains("--help"), "{name}");
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

/// What a program prints of each page, and complains of.
fn each_page(program: &str, arguments: &[&str], mut check: impl FnMut(&str, bool, &str, &str)) {
    if !installed(program) {
        return;
    }
    let folder = pages();
    for entry in fs::read_dir(folder.path()).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let arguments = [arguments, &[&name]].concat();
        let (passed, text, complaints) = tried(program, &arguments, folder.path());
        check(&name, passed, &text, &complaints);
    }
}

#[test]
fn mandoc_reports_no_problems() {
    // Warnings only: the layout of the source is not read by people.
    let arguments = ["-Tlint", "-W", "warning"];
    each_page("mandoc", &arguments, |_, _, complaints, _| {
        let is_seen = |line: &&str| !line.contains("skipping paragraph macro: br");
        let complaints: Vec<&str> = complaints.lines().filter(is_seen).collect();
        assert_eq!(complaints, [""; 0]);
    });
}

#[test]
fn man_formats_pages_without_warnings_in_80_columns() {
    let arguments = ["--warnings", "-E", "UTF-8", "-l"];
    each_page("man", &arguments, |name, passed, text, complaints| {
        assert!(passed && complaints.is_empty(), "{name}: {complaints}");
        assert!(text.contains("SEE ALSO"), "{name}");
        for line in text.lines() {
            assert!(line.chars().count() <= 80, "{name}: {line}");
            // As it is to be typed, without a hyphen in it; and legible without Unicode.
            assert!(!line.ends_with('\u{2010}'), "{name}: {line}");
            assert!(!line.contains('…'), "{name}: {line}");
        }
    });
}

#[test]
fn man_shows_examples_line_by_line() {
    if !installed("man") {
        return;
    }
    let folder = pages();
    let mut pages = pages_of_commands();
    pages.push(("blockplane-bench".to_owned(), bench::cli::grammar()));
    let mut with_examples = 0;
    for (name, command) in pages {
        let help = command.get_after_long_help().map(ToString::to_string);
        let help = help.unwrap_or_default();
        let Some((_, examples)) = help.split_once("Examples:\n") else {
            continue;
        };
        with_examples += 1;
        let page = format!("{name}.1");
        let (_, shown, _) = tried("man", &["-E", "UTF-8", "-l", &page], folder.path());
        let shown: Vec<&str> = shown.lines().map(str::trim).collect();
        for line in examples.lines().map(str::trim) {
            assert!(shown.contains(&line), "{name}: {line}");
        }
    }
    assert!(with_examples > 10, "{with_examples}");
}

/// What bash offers for a line, the cursor at its end.
fn offered(line: &str) -> Vec<String> {
    let program = line.split(' ').next().unwrap();
    // It splits words at a '='.
    let words = line.replace('=', " = ");
    let folder = completions();
    let script = r#"
        source "$1"; program="$2"; COMP_LINE="$3"; COMP_POINT=${#COMP_LINE}; shift 3
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        function_of() { local spec; spec="$(complete -p "$program")"; spec="${spec#* -F }"; echo "${spec%% *}"; }
        "$(function_of)" "$program" "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"
        printf '%s\n' "${COMPREPLY[@]}"
    "#;
    let completions = format!("{program}.bash");
    let mut arguments = vec!["--norc", "-c", script, "bash", &*completions, program, line];
    arguments.extend(words.split(' '));
    let (_, shown, complaints) = tried("bash", &arguments, folder.path());
    assert_eq!(complaints, "", "{line}");
    shown.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn bash_completes_commands_options_keys_and_their_values() {
    if !installed("bash") {
        return;
    }
    for (line, expected) in [
        ("blockplane ser", &["serve"][..]),
        ("blockplane --blo", &["--blockdev"]),
        ("blockplane serve --num", &["--num-queues"]),
        ("blockplane check --he", &["--help"]),
        ("blockplane-bench run --verif", &["--verify"]),
        (
            "blockplane --blockdev fil",
            &["file,", "filename=", "file="],
        ),
        ("blockplane --blockdev file,filen", &["file,filename="]),
        // What is not a key of the kind is not offered.
        ("blockplane --blockdev file,read-z", &[]),
        (
            "blockplane --export vhost-user-blk,id=e,writa",
            &["e,writable="],
        ),
        ("blockplane --export vfio", &["vfio-user-lsi53c895a,"]),
        // Keys that all types take, and those of a SCSI disk.
        (
            "blockplane --export vhost-user-scsi,addr.t",
            &["vhost-user-scsi,addr.type="],
        ),
        (
            "blockplane --export vhost-user-scsi,vend",
            &["vhost-user-scsi,vendor="],
        ),
        (
            "blockplane --export vhost-user-blk,writable=o",
            &["on", "off"],
        ),
        (
            "blockplane --blockdev file,filename=_blockplane-",
            &["_blockplane-bench"],
        ),
        (
            "blockplane --object=iothread,poll-m",
            &["iothread,poll-max-ns="],
        ),
    ] {
        assert_eq!(offered(line), expected, "{line}");
    }
    assert!(offered("blockplane ").contains(&"generate".to_owned()));
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

/// What fish offers for a line, without descriptions.
fn offered_by_fish(folder: &Path, line: &str) -> Vec<String> {
    let program = line.split(' ').next().unwrap();
    let script = format!("source {program}.fish; complete -C '{line}'");
    let arguments = ["--no-config", "-c", &script];
    let (_, offered, complaints) = tried("fish", &arguments, folder);
    assert_eq!(complaints, "", "{line}");
    let words = offered.lines().map(|line| line.split('\t').next().unwrap());
    words.map(str::to_owned).collect()
}

#[test]
fn fish_completes_keys_their_values_and_arguments_of_commands() {
    if !installed("fish") {
        return;
    }
    let folder = completions();
    fs::write(folder.path().join("disk.img"), "").unwrap();
    let of_commands = [
        ("blockplane help upg", "upgrade"),
        ("blockplane generate comp", "completions"),
    ];
    for (line, expected) in COMPLETED.into_iter().chain(of_commands) {
        let offered = offered_by_fish(folder.path(), line);
        assert!(
            matches!(&offered[..], [one] if one.ends_with(expected)),
            "{line}: {offered:?}"
        );
    }
    for line in ["blockplane check --", "blockplane-bench run --"] {
        let offered = offered_by_fish(folder.path(), line);
        let offers = |option: &str| offered.iter().any(|offered| offered == option);
        assert!(offers("--json"), "{line}: {offered:?}");
        assert!(!offers("--blockdev"), "{line}: {offered:?}");
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
#[ignore = "full run only"]
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

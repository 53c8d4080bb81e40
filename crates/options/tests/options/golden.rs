//! Golden files of the texts that people and scripts read: help texts, and errors.
//!
//! A difference is either a mistake or intended. `UPDATE_EXPECT=1 cargo test -p options golden::` rewrites the files; a line
//! that begins with `> `, or a file between its marks, is an input, so that a new one is added by writing it there.

use std::fmt::Write;

use expect_test::expect_file;
use options::{ConfigFileWithOptions, Invocation, parse};

use crate::kinds::{LEAST, keys_of, written};

/// The outcome of a command line as text.
fn outcome(words: &[&str]) -> String {
    match parse(words.iter().map(Into::into)) {
        Ok(Invocation::Help(text) | Invocation::Version(text)) => text,
        Ok(_) => "accepted\n".to_owned(),
        Err(error) => format!("{error}\n"),
    }
}

#[test]
fn errors_of_command_lines_are_as_recorded() {
    let recorded = include_str!("golden/command-lines.txt");
    let mut now = String::new();
    for input in recorded.lines().filter_map(|line| line.strip_prefix("> ")) {
        let words: Vec<String> = serde_json::from_str(input).unwrap();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        write!(now, "> {input}\n{}", outcome(&words)).unwrap();
    }
    expect_file!["golden/command-lines.txt"].assert_eq(&now);
}

#[test]
fn errors_of_files_are_as_recorded() {
    const FILE: &str = "===== file\n";
    const PROBLEMS: &str = "===== problems\n";
    let mut now = String::new();
    for case in include_str!("golden/files.txt").split(FILE).skip(1) {
        let (text, _) = case.split_once(PROBLEMS).unwrap();
        let answer = match ConfigFileWithOptions::for_path("f.toml").parse(text) {
            Ok(_) => "accepted".to_owned(),
            Err(error) => error.to_string(),
        };
        writeln!(now, "{FILE}{text}{PROBLEMS}{answer}").unwrap();
    }
    expect_file!["golden/files.txt"].assert_eq(&now);
}

/// Values of all types, valid for some keys and invalid for others.
const VALUES: [&str; 9] = [
    "",
    "x",
    "on",
    "-1",
    "0",
    "1",
    "512",
    "1k",
    "99999999999999999999",
];

#[test]
fn outcomes_of_values_of_all_keys_are_as_recorded() {
    let mut now = String::new();
    for (option, kind, least) in LEAST {
        for key in keys_of(option, kind) {
            writeln!(now, "--{option} {kind} {}", key.name).unwrap();
            for value in VALUES {
                let written = format!("{},{}={value}", written(kind, least), key.name);
                let option = format!("--{option}");
                let mut words = vec![
                    "--blockdev",
                    "null-co,node-name=below",
                    "--chardev",
                    "socket,id=m,path=/m,server=on,wait=off",
                ];
                if kind == "nbd" {
                    words.extend(["--nbd-server", "addr.type=fd,addr.str=9"]);
                }
                words.extend([&option[..], &written]);
                write!(now, "  {value:?}: {}", outcome(&words)).unwrap();
            }
        }
    }
    expect_file!["golden/values.txt"].assert_eq(&now);
}

#[test]
fn help_texts_are_as_recorded() {
    let mut now = String::new();
    let mut record = |words: &[&str]| {
        let words_shown = words.join(" ");
        write!(now, "===== {words_shown}\n{}", outcome(words)).unwrap();
    };
    record(&["--help"]);
    for command in ["serve", "check", "generate"] {
        record(&[command, "-h"]);
        record(&[command, "--help"]);
    }
    for option in [
        "--object",
        "--blockdev",
        "--nbd-server",
        "--export",
        "--chardev",
        "--monitor",
    ] {
        record(&[option, "help"]);
    }
    for (option, kind, _) in LEAST.iter().filter(|(_, kind, _)| !kind.is_empty()) {
        record(&[&format!("--{option}"), &format!("{kind},help")]);
    }
    let spelt_otherwise = outcome(&["--blockdev", "driver=raw,?"]);
    assert_eq!(spelt_otherwise, outcome(&["--blockdev", "raw,help"]));
    let mut shown = now.lines().filter(|line| !line.starts_with("====="));
    let long = shown.find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "help texts have 80 columns");
    expect_file!["golden/help.txt"].assert_eq(&now);
}

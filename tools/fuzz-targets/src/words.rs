//! Targets for command lines and configuration files.
//!
//! The same words always give the same answer. What is refused says why, in text that a terminal can show.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use options::qmp_options::RunningObjectNames;
use options::{ConfigError, ConfigFileWithOptions, Invocation};

/// Longer than any error needs to be that quotes what it is about.
const LONG: usize = 4096;

/// Asserts that an error text is fit to print.
fn check_text(text: &str) {
    assert!(!text.trim().is_empty());
    assert!(text.len() < LONG, "{} bytes", text.len());
    assert!(
        !text.chars().any(|char| char.is_control() && char != '\n'),
        "{text:?}"
    );
}

/// A command line: words that a zero byte or a line's end separates.
pub fn command_line(bytes: &[u8]) {
    let (first, rest) = bytes.split_first().unwrap_or((&0, &[]));
    let before: &[&str] = match first % 8 {
        0 => &["serve"],
        1 => &["--blockdev"],
        2 => &[
            "--blockdev",
            "null-co,node-name=d,read-zeroes=on",
            "--export",
        ],
        3 => &["--object"],
        4 => &["--chardev"],
        5 => &["--monitor"],
        _ => &[],
    };
    let words = rest
        .split(|byte| matches!(byte, 0 | b'\n'))
        .map(|word| OsString::from_vec(word.to_vec()));
    let words: Vec<OsString> = before.iter().map(OsString::from).chain(words).collect();
    let parsed = options::parse(words.iter().cloned());
    assert_eq!(parsed, options::parse(words.into_iter()));
    match parsed {
        Err(error) => check_text(&error.to_string()),
        Ok(Invocation::ConfigFile(config)) => {
            if let Err(error) = config.parse("") {
                check_text(&error.to_string());
            }
        }
        Ok(_) => {}
    }
    if let Ok(text) = str::from_utf8(rest) {
        let live = || {
            let mut live = RunningObjectNames::default();
            live.add_node("d", false).expect("a name");
            live.add_object("iothread", "t").expect("a name");
            live.add_object("secret", "s").expect("a name");
            live
        };
        let results = [
            live().read_object(text).map(|_| ()),
            live().read_blockdev(text).map(|_| ()),
            live().read_export(text).map(|_| ()),
        ];
        for problem in results.into_iter().filter_map(Result::err) {
            check_text(&problem.to_string());
        }
    }
}

/// A configuration file.
pub fn configuration(bytes: &[u8]) {
    let error = match ConfigError::decode_utf8("disks.toml".as_ref(), bytes.to_vec()) {
        Ok(text) => {
            let read = || ConfigFileWithOptions::for_path("disks.toml").parse(&text);
            assert_eq!(read(), read());
            read().err()
        }
        Err(error) => Some(error),
    };
    let Some(error) = error else {
        return;
    };
    assert!(!error.findings.is_empty());
    for finding in &error.findings {
        check_text(&finding.message);
    }
    assert!(!error.to_string().is_empty());
}

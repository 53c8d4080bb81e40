//! Golden files of the texts that people and scripts read, help texts and errors, and of what accepted options mean. A live upgrade
//! describes objects by their options: each object here is described, and read back unchanged.
//!
//! A difference is either a mistake or intended. `UPDATE_EXPECT=1 cargo test -p options golden::` rewrites the files; a line
//! that begins with `> `, or a file between its marks, is an input, so that a new one is added by writing it there.

use std::fmt::Write;

use expect_test::expect_file;
use options::{
    BlockdevOptions, ConfigFileWithOptions, Directive, Invocation, KeySpec, ObjectOptions,
    ToJsonError, parse_options_of_running_daemon, reference,
};

use crate::{invocation, last_directive};

/// The outcome of a command line as text. Of several objects, the last is shown.
fn outcome(words: &[&str]) -> String {
    match invocation(words) {
        Ok(Invocation::Help(text) | Invocation::Version(text)) => text,
        Ok(Invocation::Daemon(daemon)) if !daemon.directives.is_empty() => {
            let directive = &daemon.directives[daemon.directives.len() - 1];
            let note = assert_read_back(words, directive);
            format!("accepted: {directive:?}{note}\n")
        }
        Ok(other) => format!("accepted: {other:?}\n"),
        Err(error) => format!("{error}\n"),
    }
}

fn describe(directive: &Directive) -> Result<serde_json::Value, ToJsonError> {
    match directive {
        Directive::Object(ObjectOptions::Iothread(options)) => options.to_json(),
        Directive::Object(ObjectOptions::Secret(options)) => options.to_json(),
        Directive::Object(ObjectOptions::ThrottleGroup(options)) => options.to_json(),
        Directive::Object(ObjectOptions::TlsCreds(options)) => options.to_json(),
        Directive::Object(ObjectOptions::AuthzList(options)) => options.to_json(),
        Directive::Blockdev(options) => options.to_json(&|_| None::<&BlockdevOptions>),
        Directive::NbdServer(options) => options.to_json(),
        Directive::Export(options) => options.to_json(),
        Directive::Chardev(options) => options.to_json(),
        Directive::Monitor(options) => options.to_json(),
    }
}

/// Asserts that the description of the last object has the meaning of its option. The reason, if it has no description.
fn assert_read_back(words: &[&str], directive: &Directive) -> String {
    let description = match describe(directive) {
        Ok(description) => description.to_string(),
        Err(error) => return format!(" ({error})"),
    };
    let [before @ .., option, _] = words else {
        panic!("{words:?}");
    };
    let described = [before, &[*option, &*description]].concat();
    let read = parse_options_of_running_daemon(described.iter().map(Into::into));
    let Ok(Invocation::Daemon(daemon)) = read else {
        panic!("{description}: {read:?}");
    };
    assert_eq!(daemon.directives.last(), Some(directive), "{description}");
    String::new()
}

#[test]
fn outcomes_of_command_lines_are_as_recorded() {
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

/// An option, one of its kinds, and the required keys, for each kind of object.
const KINDS: &str = "\
--object iothread,id=i
--object secret,id=s,file=/f
--object throttle-group,id=t
--object tls-creds-x509,id=x,dir=/d
--object authz-list,id=l
--blockdev file,node-name=n,filename=/f
--blockdev host_device,node-name=n,filename=/f
--blockdev null-co,node-name=n
--blockdev raw,node-name=n,file=below
--blockdev nbd,node-name=n,server.type=unix,server.path=/s
--blockdev rbd,node-name=n,pool=p,image=i
--blockdev throttle,node-name=n,throttle-group=g,file=below
--blockdev blkdebug,node-name=n,image=below
--blockdev snapshot-access,node-name=n,file=below
--export vhost-user-blk,id=e,node-name=below,addr.type=unix,addr.path=/s
--export vhost-user-scsi,id=e,node-name=below,addr.type=unix,addr.path=/s
--export vfio-user-lsi53c895a,id=e,node-name=below,addr.type=unix,addr.path=/s
--nbd-server addr.type=unix,addr.path=/n
--export nbd,id=e,node-name=below
--chardev socket,id=c,path=/s,server=on,wait=off
--monitor chardev=m";

/// Objects to which the values of keys refer.
const REFERENCES: &str = "--object iothread,id=a --object secret,id=key,file=/key \
    --object throttle-group,id=g --object throttle-group,id=limits \
    --object tls-creds-x509,id=creds,dir=/d --object authz-list,id=list \
    --blockdev null-co,node-name=below --blockdev null-co,node-name=a \
    --chardev socket,id=m,path=/m,server=on,wait=off --chardev socket,id=a,path=/a,server=on,wait=off";

/// Option, kind and keys of each kind of object. The kind of an object that has only one is empty.
fn kinds() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    KINDS.lines().map(|line| {
        let (option, keys) = line.split_once(' ').expect("an option and keys");
        let kind = keys.split(',').next().filter(|kind| !kind.contains('='));
        (option, kind.unwrap_or_default(), keys)
    })
}

/// All keys of a kind.
fn keys_of(option: &str, kind: &str) -> impl Iterator<Item = &'static KeySpec> {
    let groups = reference::KEYS.iter().filter(move |group| {
        group.option == &option[2..] && (group.kinds.is_empty() || group.kinds.contains(&kind))
    });
    groups.flat_map(|group| group.keys)
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

/// Values for keys that none of those changes: names of objects, and forms of few keys.
const FURTHER_VALUES: [&str; 10] = [
    "2",
    "a",
    "key",
    "limits",
    "creds",
    "list",
    "/x",
    "0:7",
    "0x5000000000000001",
    "4096",
];

/// The lines of an object that differ from those of another one.
fn difference(from: &Directive, to: &Directive) -> String {
    let lines = |directive| -> Vec<String> {
        let text = format!("{directive:#?}");
        text.lines().map(|line| line.trim().to_owned()).collect()
    };
    let (from, to) = (lines(from), lines(to));
    let pairs = from.iter().zip(&to);
    let begin = pairs.take_while(|(from, to)| from == to).count();
    let pairs = from[begin..].iter().rev().zip(to[begin..].iter().rev());
    let end = pairs.take_while(|(from, to)| from == to).count();
    to[begin..to.len() - end].join(" ")
}

#[test]
fn outcomes_of_values_of_all_keys_are_as_recorded() {
    let mut now = String::new();
    for (option, kind, keys) in kinds() {
        let mut before: Vec<&str> = REFERENCES.split_whitespace().collect();
        if kind == "nbd" && option == "--export" {
            before.extend(["--nbd-server", "addr.type=fd,addr.str=9"]);
        }
        let before = [&before[..], &[option]].concat();
        let least = last_directive(&[&before[..], &[keys]].concat()).unwrap();
        for key in keys_of(option, kind) {
            writeln!(now, "{option} {kind} {}", key.name).unwrap();
            // The change that a value makes, or its error.
            let read = |value: &str| {
                let text = format!("{keys},{}={value}", key.name);
                let words = [&before[..], &[&*text]].concat();
                let directive = last_directive(&words)?;
                assert_read_back(&words, &directive);
                Ok::<_, String>(difference(&least, &directive))
            };
            let mut has_effect = false;
            let choices = key.placeholder.split('|');
            let choices = choices.filter(|word| !VALUES.contains(word) && *word != key.placeholder);
            for value in VALUES.into_iter().chain(choices) {
                let outcome = read(value).map(|change| {
                    has_effect |= !change.is_empty();
                    format!("accepted {change}")
                });
                let outcome = outcome.unwrap_or_else(|error| error);
                writeln!(now, "  {value:?}: {}", outcome.trim_end()).unwrap();
            }
            if !has_effect {
                let change = |value| read(value).ok().filter(|change| !change.is_empty());
                let mut values = FURTHER_VALUES.iter();
                now += &values
                    .find_map(|value| Some(format!("  {value:?}: accepted {}\n", change(value)?)))
                    .unwrap_or_else(|| "  no value changes it without other keys\n".to_owned());
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
    for (option, kind, _) in kinds().filter(|(_, kind, _)| !kind.is_empty()) {
        record(&[option, &format!("{kind},help")]);
    }
    let spelt_otherwise = outcome(&["--blockdev", "driver=raw,?"]);
    assert_eq!(spelt_otherwise, outcome(&["--blockdev", "raw,help"]));
    let mut shown = now.lines().filter(|line| !line.starts_with("====="));
    let long = shown.find(|line| line.chars().count() > 80);
    assert_eq!(long, None, "help texts have 80 columns");
    expect_file!["golden/help.txt"].assert_eq(&now);
}

//! The table of options that are given without a command, and the splitting of a command line into these options and words,
//! as `getopt_long(3)` does. It takes `--option value`, `--option=value`, any unambiguous abbreviation, and single letters
//! that can be joined.
//!
//! This module knows names and values of options; their meaning is in [`crate::qsd_command_line`].

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    os::unix::ffi::{OsStrExt, OsStringExt},
};

use crate::{Problem, UsageError, error::excerpt, suggest};

/// An option without a command: those of qemu-storage-daemon, and blockplane's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TopLevelOption {
    Blockdev,
    Chardev,
    Config,
    Daemonize,
    Export,
    Help,
    Metrics,
    Monitor,
    NbdServer,
    Object,
    Pidfile,
    Sandbox,
    Trace,
    User,
    Version,
}

/// Names and usage of an option.
struct OptSpec {
    opt: TopLevelOption,
    long: &'static str,
    short: Option<u8>,
    /// Its usage with a value; `None` if it takes none.
    usage: Option<&'static str>,
}

/// An option with these names and, if it takes a value, this usage.
const fn new_option_spec(
    opt: TopLevelOption,
    long: &'static str,
    short: Option<u8>,
    usage: Option<&'static str>,
) -> OptSpec {
    OptSpec {
        opt,
        long,
        short,
        usage,
    }
}

const SPECS: &[OptSpec] = &[
    new_option_spec(
        TopLevelOption::Blockdev,
        "blockdev",
        None,
        Some("--blockdev DRIVER,node-name=NAME,…"),
    ),
    new_option_spec(
        TopLevelOption::Chardev,
        "chardev",
        None,
        Some("--chardev socket,id=NAME,path=PATH,…"),
    ),
    new_option_spec(
        TopLevelOption::Config,
        "config",
        None,
        Some("--config FILE"),
    ),
    new_option_spec(TopLevelOption::Daemonize, "daemonize", None, None),
    new_option_spec(
        TopLevelOption::Export,
        "export",
        None,
        Some("--export TYPE,id=NAME,node-name=NODE,…"),
    ),
    new_option_spec(TopLevelOption::Help, "help", Some(b'h'), None),
    new_option_spec(
        TopLevelOption::Metrics,
        "metrics",
        None,
        Some("--metrics ADDRESS"),
    ),
    new_option_spec(
        TopLevelOption::Monitor,
        "monitor",
        None,
        Some("--monitor chardev=NAME"),
    ),
    new_option_spec(
        TopLevelOption::NbdServer,
        "nbd-server",
        None,
        Some("--nbd-server addr.type=unix,addr.path=PATH,…"),
    ),
    new_option_spec(
        TopLevelOption::Object,
        "object",
        None,
        Some("--object TYPE,id=NAME,…"),
    ),
    new_option_spec(
        TopLevelOption::Pidfile,
        "pidfile",
        None,
        Some("--pidfile PATH"),
    ),
    new_option_spec(
        TopLevelOption::Sandbox,
        "sandbox",
        None,
        Some("--sandbox on|off|strict"),
    ),
    new_option_spec(
        TopLevelOption::Trace,
        "trace",
        Some(b'T'),
        Some("--trace …"),
    ),
    new_option_spec(TopLevelOption::User, "user", None, Some("--user USER")),
    new_option_spec(TopLevelOption::Version, "version", Some(b'V'), None),
];

impl TopLevelOption {
    /// The long name with its dashes.
    pub(crate) fn name_with_dashes(self) -> String {
        let spec = SPECS.iter().find(|spec| spec.opt == self);
        format!("--{}", spec.map_or("", |spec| spec.long))
    }

    /// Its help; `None` for an option that is not supported yet.
    pub(crate) fn help_if_supported(self) -> Option<&'static str> {
        Some(match self {
            Self::Object => "create an object",
            Self::Blockdev => "create a node",
            Self::Export => "export a node",
            Self::Chardev => "create a socket for a monitor",
            Self::Monitor => "open a monitor (QMP) on a chardev",
            Self::Config => {
                "create the objects of FILE (- is standard input), see blockplane.toml(5); it is validated together with the other options, which replace its objects of the same name"
            }
            Self::Metrics => {
                "serve metrics for Prometheus at unix:PATH, tcp:IP:PORT or fd:FD, over HTTP at /metrics"
            }
            Self::Daemonize => "detach from the terminal once everything is started",
            Self::Pidfile => "write the process id to PATH once everything is started",
            Self::Sandbox => {
                "drop privileges, system calls and files that are not needed (default on; strict: a monitor cannot open other files than those of the command line; on,rbd=allow: a monitor may add the first image of Ceph; on,nbd=allow: the same for the first NBD server that is reached by TCP)"
            }
            Self::User => "become this user, by name or number, before anything is opened",
            Self::Version => "print the version",
            Self::Help => "print this text",
            Self::NbdServer => "serve the exports of type nbd over NBD",
            Self::Trace => return None,
        })
    }

    /// Its usage with its value.
    pub(crate) fn usage(self) -> &'static str {
        let spec = SPECS.iter().find(|spec| spec.opt == self);
        spec.and_then(|spec| spec.usage).unwrap_or_default()
    }
}

/// An element of a command line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandLineItem {
    /// An option with its value, empty if it takes none.
    Option(TopLevelOption, OsString),
    /// An argument that belongs to no option.
    Word(OsString),
}

/// Splits a command line into its items, one by one, so that the first error is reported first.
pub(crate) struct CommandLineItems<I> {
    args: I,
    /// Letters left of a joined group such as `-hV`.
    letters: VecDeque<u8>,
    /// `--` was seen: only words follow.
    only_words: bool,
}

impl<I: Iterator<Item = OsString>> CommandLineItems<I> {
    pub(crate) fn new(args: I) -> Self {
        Self {
            args,
            letters: VecDeque::new(),
            only_words: false,
        }
    }

    /// Reads an option without its two dashes: a name or an abbreviation. Its value is after `=`, or the
    /// next argument.
    fn parse_long(&mut self, text: &[u8]) -> Result<CommandLineItem, UsageError> {
        let (name, inline) = match text.iter().position(|b| *b == b'=') {
            Some(equals) => (&text[..equals], Some(&text[equals + 1..])),
            None => (text, None),
        };
        // Options that only blockplane has must not make abbreviations of qemu-storage-daemon's ambiguous.
        let abbreviates = |spec: &OptSpec| match spec.opt {
            TopLevelOption::Config
            | TopLevelOption::Metrics
            | TopLevelOption::Sandbox
            | TopLevelOption::User => spec.long.as_bytes() == name,
            _ => spec.long.as_bytes().starts_with(name),
        };
        let candidates: Vec<&OptSpec> = SPECS.iter().filter(|spec| abbreviates(spec)).collect();
        // No name is a prefix of another, so a full name is never ambiguous.
        let spec = match candidates.as_slice() {
            [spec] => *spec,
            [] => {
                let name = String::from_utf8_lossy(name);
                let suggestion =
                    suggest::closest_if_similar(&name, SPECS.iter().map(|spec| spec.long))
                        .map(|s| format!("--{s}"));
                return Err(Problem::UnknownOption { suggestion }
                    .in_option(format!("--{}", excerpt(&name))));
            }
            several => {
                let candidates = several
                    .iter()
                    .map(|spec| format!("--{}", spec.long))
                    .collect();
                return Err(Problem::Ambiguous { candidates }
                    .in_option(format!("--{}", String::from_utf8_lossy(name))));
            }
        };
        match (spec.usage, inline) {
            (None, None) => Ok(CommandLineItem::Option(spec.opt, OsString::new())),
            (None, Some(_)) => {
                Err(Problem::UnexpectedArgument.in_option(spec.opt.name_with_dashes()))
            }
            (Some(_), Some(value)) => Ok(CommandLineItem::Option(
                spec.opt,
                OsStr::from_bytes(value).to_owned(),
            )),
            (Some(_), None) => self.with_next_argument(spec),
        }
    }

    /// Reads the option of a letter. Its value is the rest of the joined letters, or the next argument.
    fn parse_letter(&mut self, letter: u8) -> Result<CommandLineItem, UsageError> {
        let Some(spec) = SPECS.iter().find(|spec| spec.short == Some(letter)) else {
            // -blockdev most likely means --blockdev: qemu-system-* accepts both.
            let rest: Vec<u8> = std::iter::once(letter)
                .chain(self.letters.drain(..))
                .collect();
            let rest = String::from_utf8_lossy(&rest).into_owned();
            let word = rest.split('=').next().unwrap_or_default();
            let suggestion = suggest::closest_if_similar(word, SPECS.iter().map(|spec| spec.long))
                .map(|s| format!("--{s}"));
            return Err(
                Problem::UnknownOption { suggestion }.in_option(format!("-{}", excerpt(&rest)))
            );
        };
        if spec.usage.is_none() {
            return Ok(CommandLineItem::Option(spec.opt, OsString::new()));
        }
        if self.letters.is_empty() {
            return self.with_next_argument(spec);
        }
        Ok(CommandLineItem::Option(
            spec.opt,
            OsString::from_vec(self.letters.drain(..).collect()),
        ))
    }

    /// An option whose value is the next argument.
    fn with_next_argument(&mut self, spec: &OptSpec) -> Result<CommandLineItem, UsageError> {
        match self.args.next() {
            Some(value) => Ok(CommandLineItem::Option(spec.opt, value)),
            None => {
                let expected = format!("write {}", spec.usage.unwrap_or_default());
                Err(Problem::NoArgument { expected }.in_option(spec.opt.name_with_dashes()))
            }
        }
    }
}

impl<I: Iterator<Item = OsString>> Iterator for CommandLineItems<I> {
    type Item = Result<CommandLineItem, UsageError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(letter) = self.letters.pop_front() {
            return Some(self.parse_letter(letter));
        }
        let arg = self.args.next()?;
        match arg.as_bytes() {
            _ if self.only_words => Some(Ok(CommandLineItem::Word(arg))),
            b"--" => {
                self.only_words = true;
                self.next()
            }
            [b'-', b'-', long @ ..] => {
                let long = long.to_vec();
                Some(self.parse_long(&long))
            }
            [b'-', letter, rest @ ..] => {
                let letter = *letter;
                self.letters = rest.iter().copied().collect();
                Some(self.parse_letter(letter))
            }
            _ => Some(Ok(CommandLineItem::Word(arg))),
        }
    }
}

/// An option without a command.
#[derive(Debug, Clone, Copy)]
pub struct DescribedOption {
    /// Its name, without dashes.
    pub long: &'static str,
    /// Its letter.
    pub short: Option<char>,
    /// Placeholder of its value, if it takes one.
    pub placeholder: Option<&'static str>,
    /// Its help.
    pub help: &'static str,
}

/// The supported options.
pub(crate) fn described_options() -> impl Iterator<Item = DescribedOption> {
    SPECS.iter().filter_map(|spec| {
        Some(DescribedOption {
            long: spec.long,
            short: spec.short.map(char::from),
            placeholder: spec
                .usage
                .and_then(|usage| usage.split_once(' '))
                .map(|(_, value)| value),
            help: spec.opt.help_if_supported()?,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(line: &str) -> Result<Vec<CommandLineItem>, String> {
        let items: Result<_, _> =
            CommandLineItems::new(line.split(' ').map(OsString::from)).collect();
        items.map_err(|error| error.to_string())
    }

    fn option(opt: TopLevelOption, value: &str) -> CommandLineItem {
        CommandLineItem::Option(opt, value.into())
    }

    #[test]
    fn command_lines_are_split_into_options_and_words() {
        use TopLevelOption::{Blockdev, Daemonize, Help, Pidfile, Trace, Version};
        let word = |word: &str| CommandLineItem::Word(word.into());
        let file = || vec![option(Blockdev, "file,a=b")];
        for (line, expected) in [
            ("--blockdev file,a=b", file()),
            ("--blockdev=file,a=b", file()),
            ("--b file,a=b", file()),
            ("--bl=file,a=b", file()),
            ("--pidfile --help", vec![option(Pidfile, "--help")]),
            ("-hV", vec![option(Help, ""), option(Version, "")]),
            ("-hTx=y", vec![option(Help, ""), option(Trace, "x=y")]),
            ("-T x", vec![option(Trace, "x")]),
            ("a -", vec![word("a"), word("-")]),
            (
                "--daemonize -- --daemonize --",
                vec![option(Daemonize, ""), word("--daemonize"), word("--")],
            ),
        ] {
            assert_eq!(items(line), Ok(expected), "{line}");
        }
    }

    #[test]
    fn errors_suggest_options_or_name_what_is_missing() {
        for (line, expected) in [
            (
                "--exprot=x",
                "--exprot: unrecognized option; did you mean '--export'?",
            ),
            ("--foo", "--foo: unrecognized option. See blockplane --help"),
            (
                "-blockdev x",
                "-blockdev: unrecognized option; did you mean '--blockdev'?",
            ),
            ("--daemonize=x", "--daemonize: takes no value"),
            (
                "--pidfile",
                "--pidfile: a value is missing; write --pidfile PATH",
            ),
            ("--=x", "--: ambiguous; it could be --blockdev or"),
        ] {
            let error = items(line).unwrap_err();
            assert!(error.starts_with(expected), "{error}");
        }
    }
}

//! Parses a command line without a command: the options of qemu-storage-daemon.
//!
//! Options take effect in the order of the command line, except `-h`, `-V`, `--daemonize`, `--pidfile`, `--metrics`, `--sandbox`,
//! `--user` and `--config`, which come before all others. Features of qemu-storage-daemon that blockplane does not support are
//! refused by name.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use crate::{
    ConfigFileWithOptions, DaemonSettingsAndDirectives, Invocation, MetricsAddr, Problem,
    SandboxOptions, UsageError, confinement,
    directive::{DirectiveKind, RawDirective},
    error::excerpt,
    getopt::{CommandLineItem, CommandLineItems, TopLevelOption},
    help, json,
    keyval::{self, ParsedKeyval},
    metrics,
    names::DefinedNames,
};

/// Parses a command line without a command. `names` has no names yet.
pub(crate) fn parse(
    args: impl Iterator<Item = OsString>,
    mut names: DefinedNames,
) -> Result<Invocation, UsageError> {
    let mut daemon = DaemonSettingsAndDirectives::default();
    let mut config = None;
    let mut object_options = Vec::new();
    for item in CommandLineItems::new(args) {
        match item? {
            CommandLineItem::Option(TopLevelOption::Help, _) => {
                return Ok(Invocation::Help(help::top_level_help()));
            }
            CommandLineItem::Option(TopLevelOption::Version, _) => {
                return Ok(Invocation::Version(help::version_line()));
            }
            CommandLineItem::Option(TopLevelOption::Daemonize, _) => daemon.daemonize = true,
            CommandLineItem::Option(opt @ TopLevelOption::Pidfile, path) => {
                daemon.pidfile = Some(read_path(opt, path)?)
            }
            CommandLineItem::Option(opt @ TopLevelOption::Config, path) => {
                if config.replace(read_path(opt, path)?).is_some() {
                    let reason = "is given twice; put everything into one file".to_owned();
                    return Err(Problem::Conflict { reason }.in_option(opt.name_with_dashes()));
                }
            }
            CommandLineItem::Option(opt @ TopLevelOption::Metrics, addr) => {
                if daemon
                    .metrics
                    .replace(read_metrics_addr(opt, &addr)?)
                    .is_some()
                {
                    let reason = "is given twice; metrics are served at one address".to_owned();
                    return Err(Problem::Conflict { reason }.in_option(opt.name_with_dashes()));
                }
            }
            CommandLineItem::Option(opt @ TopLevelOption::Sandbox, word) => {
                daemon.confinement.sandbox = read_sandbox(opt, &word)?;
            }
            CommandLineItem::Option(opt @ TopLevelOption::User, name) => {
                daemon.confinement.user = Some(read_user(opt, &name)?);
            }
            other => object_options.push(other),
        }
    }
    if let Some(MetricsAddr::Socket(addr)) = &daemon.metrics {
        // It is the first socket: a conflict is an error of the later option.
        names
            .add_metrics_socket(addr)
            .map_err(|problem| problem.in_option(TopLevelOption::Metrics.name_with_dashes()))?;
    }
    let mut counter = OptionCounter::default();
    let mut raw_directives = Vec::new();
    for item in object_options {
        let (opt, value) = match item {
            CommandLineItem::Option(opt, value) => (opt, value),
            CommandLineItem::Word(word) => return Err(stray_word_error(&word.to_string_lossy())),
        };
        let option = counter.count_and_name_option(opt);
        let parsed =
            parse_option(opt, value, &option).map_err(|problem| problem.in_option(&option))?;
        match parsed {
            DirectiveOrHelp::Help(text) => return Ok(Invocation::Help(text)),
            // A configuration file changes the order, so the directives are read together with it.
            DirectiveOrHelp::Directive(directive) if config.is_some() => {
                raw_directives.push(directive)
            }
            DirectiveOrHelp::Directive(RawDirective { kind, object, .. }) => {
                let directive = kind.read_and_register(object, &mut names);
                let directive = directive.map_err(|problem| problem.in_option(&option))?;
                daemon.directives.push(directive);
            }
        }
    }
    Ok(match config {
        None => Invocation::Daemon(daemon),
        Some(path) => Invocation::ConfigFile(ConfigFileWithOptions {
            path,
            daemonize: daemon.daemonize,
            pidfile: daemon.pidfile,
            metrics: daemon.metrics,
            confinement: daemon.confinement,
            log_level: None,
            log_format: None,
            directives: raw_directives,
        }),
    })
}

/// The value of an option that takes a path.
fn read_path(opt: TopLevelOption, path: OsString) -> Result<PathBuf, UsageError> {
    if path.is_empty() {
        let expected = format!("write {}", opt.usage());
        return Err(Problem::NoArgument { expected }.in_option(opt.name_with_dashes()));
    }
    Ok(PathBuf::from(path))
}

/// The value of `--metrics`.
fn read_metrics_addr(opt: TopLevelOption, text: &OsStr) -> Result<MetricsAddr, UsageError> {
    text.to_str()
        .and_then(MetricsAddr::from_text)
        .ok_or_else(|| {
            let problem = Problem::BadValue {
                key: "ADDRESS".to_owned(),
                value: excerpt(&text.to_string_lossy()),
                expected: metrics::ADDR_EXPECTED.to_owned(),
            };
            problem.in_option(opt.name_with_dashes())
        })
}

/// The value of `--sandbox`.
fn read_sandbox(opt: TopLevelOption, word: &OsStr) -> Result<SandboxOptions, UsageError> {
    word.to_str()
        .and_then(SandboxOptions::from_text)
        .ok_or_else(|| {
            let problem = Problem::BadValue {
                key: "value".to_owned(),
                value: excerpt(&word.to_string_lossy()),
                expected: SandboxOptions::EXPECTED.to_owned(),
            };
            problem.in_option(opt.name_with_dashes())
        })
}

/// The value of `--user`.
fn read_user(opt: TopLevelOption, name: &OsStr) -> Result<String, UsageError> {
    let name = name.to_str().unwrap_or_default();
    confinement::parse_nonempty_user(name)
        .map_err(|expected| Problem::NoArgument { expected }.in_option(opt.name_with_dashes()))
}

/// The error for an argument that is not an option. Most likely `serve` is missing.
pub(crate) fn stray_word_error(word: &str) -> UsageError {
    let word = excerpt(word);
    let suggestion = Some(format!("blockplane serve {word}"));
    Problem::StrayWord { word, suggestion }.in_option("")
}

/// Numbers the options of each kind, for errors.
#[derive(Default)]
struct OptionCounter {
    seen: BTreeMap<String, u32>,
}

impl OptionCounter {
    /// The name of an option that occurs once more, with its number if it is not the first: `--export (number 2)`.
    fn count_and_name_option(&mut self, opt: TopLevelOption) -> String {
        let name = opt.name_with_dashes();
        let count = self.seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 {
            name
        } else {
            format!("{name} (number {count})")
        }
    }
}

/// A parsed option.
enum DirectiveOrHelp {
    Directive(RawDirective),
    Help(String),
}

/// Parses the value of an option, without checking its keys.
fn parse_option(
    opt: TopLevelOption,
    value: OsString,
    option: &str,
) -> Result<DirectiveOrHelp, Problem> {
    let kind = match opt {
        TopLevelOption::Object => DirectiveKind::Object,
        TopLevelOption::Blockdev => DirectiveKind::Blockdev,
        TopLevelOption::Export => DirectiveKind::Export,
        TopLevelOption::Chardev => DirectiveKind::Chardev,
        TopLevelOption::Monitor => DirectiveKind::Monitor,
        TopLevelOption::NbdServer => DirectiveKind::NbdServer,
        other => return Err(unsupported_option_error(other)),
    };
    let text = value.into_string().map_err(|value| Problem::Syntax {
        reason: format!("not valid UTF-8: '{}'", excerpt(&value.to_string_lossy())),
    })?;
    let implied = kind.implied_key();
    let ParsedKeyval { object, wants_help } = if text.starts_with('{') {
        ParsedKeyval {
            object: json::parse(&text)?,
            wants_help: false,
        }
    } else {
        keyval::parse(&text, implied)?
    };
    if wants_help {
        return help::option_help(opt, object.get(implied)).map(DirectiveOrHelp::Help);
    }
    Ok(DirectiveOrHelp::Directive(RawDirective {
        kind,
        object,
        option: option.to_owned(),
    }))
}

/// The error for an option that only qemu-storage-daemon supports.
fn unsupported_option_error(opt: TopLevelOption) -> Problem {
    Problem::Unsupported {
        what: opt.name_with_dashes(),
        instead: "leave it out".to_owned(),
    }
}

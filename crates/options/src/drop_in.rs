//! The drop-in face: what the options of qemu-storage-daemon ask for.
//!
//! Options are judged in the order of the command line, except `-h`, `-V`, `--daemonize`,
//! `--pidfile`, `--metrics`, `--sandbox`, `--user` and `--config`, which act before all others. What that program has and this one lacks is refused by name.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    path::PathBuf,
};

use crate::{
    ConfigFile, Daemon, Invocation, MetricsAddr, Problem, Sandbox, UsageError, confinement,
    directive::{Kind, Written},
    error::shown,
    getopt::{Item, Items, Opt},
    help, json,
    keyval::{self, Parsed},
    metrics,
    names::Names,
};

/// Reads a command line without a subcommand.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let mut daemon = Daemon::default();
    let mut config = None;
    let mut later = Vec::new();
    for item in Items::new(args) {
        match item? {
            Item::Option(Opt::Help, _) => return Ok(Invocation::Help(help::top_level())),
            Item::Option(Opt::Version, _) => return Ok(Invocation::Version(help::version())),
            Item::Option(Opt::Daemonize, _) => daemon.daemonize = true,
            Item::Option(opt @ Opt::Pidfile, path) => daemon.pidfile = Some(path_of(opt, path)?),
            Item::Option(opt @ Opt::Config, path) => {
                if config.replace(path_of(opt, path)?).is_some() {
                    let reason = "is there twice; put everything into one file".to_owned();
                    return Err(Problem::Conflict { reason }.at(opt.name()));
                }
            }
            Item::Option(opt @ Opt::Metrics, addr) => {
                if daemon.metrics.replace(metrics_addr(opt, &addr)?).is_some() {
                    let reason = "is there twice; figures are served at one place".to_owned();
                    return Err(Problem::Conflict { reason }.at(opt.name()));
                }
            }
            Item::Option(opt @ Opt::Sandbox, word) => {
                daemon.confinement.sandbox = sandbox(opt, &word)?;
            }
            Item::Option(opt @ Opt::User, name) => {
                daemon.confinement.user = Some(user(opt, &name)?);
            }
            other => later.push(other),
        }
    }
    let mut names = Names::default();
    if let Some(MetricsAddr::Socket(addr)) = &daemon.metrics {
        // The first listener: whoever comes later hears of it.
        names
            .add_metrics(addr)
            .map_err(|problem| problem.at(Opt::Metrics.name()))?;
    }
    let mut places = Places::default();
    let mut all = Vec::new();
    for item in later {
        let (opt, value) = match item {
            Item::Option(opt, value) => (opt, value),
            Item::Word(word) => return Err(stray_word(&word.to_string_lossy())),
        };
        let place = places.next(opt);
        let answer = written(opt, value, &place).map_err(|problem| problem.at(&place))?;
        match answer {
            Answer::Help(text) => return Ok(Invocation::Help(text)),
            // With a file the order is another, and nothing is judged before the file is there.
            Answer::Do(written) if config.is_some() => all.push(written),
            Answer::Do(Written { kind, object, .. }) => {
                let directive = kind.read(object, &mut names);
                let directive = directive.map_err(|problem| problem.at(&place))?;
                daemon.directives.push(directive);
            }
        }
    }
    Ok(match config {
        None => Invocation::Daemon(daemon),
        Some(path) => Invocation::ConfigFile(ConfigFile {
            path,
            daemonize: daemon.daemonize,
            pidfile: daemon.pidfile,
            metrics: daemon.metrics,
            confinement: daemon.confinement,
            log_level: None,
            log_format: None,
            written: all,
        }),
    })
}

/// The value of an option that takes a path.
fn path_of(opt: Opt, path: OsString) -> Result<PathBuf, UsageError> {
    if path.is_empty() {
        let expected = format!("write {}", opt.usage());
        return Err(Problem::NoArgument { expected }.at(opt.name()));
    }
    Ok(PathBuf::from(path))
}

/// The value of `--metrics`.
fn metrics_addr(opt: Opt, text: &OsStr) -> Result<MetricsAddr, UsageError> {
    text.to_str().and_then(MetricsAddr::read).ok_or_else(|| {
        let problem = Problem::BadValue {
            key: "ADDRESS".to_owned(),
            value: shown(&text.to_string_lossy()),
            expected: metrics::EXPECTED.to_owned(),
        };
        problem.at(opt.name())
    })
}

/// The value of `--sandbox`.
fn sandbox(opt: Opt, word: &OsStr) -> Result<Sandbox, UsageError> {
    word.to_str().and_then(Sandbox::read).ok_or_else(|| {
        let problem = Problem::BadValue {
            key: "WHETHER".to_owned(),
            value: shown(&word.to_string_lossy()),
            expected: Sandbox::EXPECTED.to_owned(),
        };
        problem.at(opt.name())
    })
}

/// The value of `--user`.
fn user(opt: Opt, name: &OsStr) -> Result<String, UsageError> {
    let name = name.to_str().unwrap_or_default();
    confinement::user(name).map_err(|expected| Problem::NoArgument { expected }.at(opt.name()))
}

/// The error for a word that is no option. Most likely somebody left out `serve`.
pub(crate) fn stray_word(word: &str) -> UsageError {
    let word = shown(word);
    let suggestion = Some(format!("blockplane serve {word}"));
    Problem::StrayWord { word, suggestion }.at("")
}

/// Counts the options of each kind, for errors that say which of them is meant.
#[derive(Default)]
struct Places {
    seen: BTreeMap<String, u32>,
}

impl Places {
    fn next(&mut self, opt: Opt) -> String {
        let name = opt.name();
        let count = self.seen.entry(name.clone()).or_default();
        *count += 1;
        if *count == 1 {
            name
        } else {
            format!("{name} (number {count})")
        }
    }
}

enum Answer {
    Do(Written),
    Help(String),
}

/// Takes an option apart, without judging what it says.
fn written(opt: Opt, value: OsString, place: &str) -> Result<Answer, Problem> {
    let kind = match opt {
        Opt::Object => Kind::Object,
        Opt::Blockdev => Kind::Blockdev,
        Opt::Export => Kind::Export,
        Opt::Chardev => Kind::Chardev,
        Opt::Monitor => Kind::Monitor,
        other => return Err(not_yet(other)),
    };
    let text = value.into_string().map_err(|value| Problem::Syntax {
        reason: format!("not valid UTF-8: '{}'", shown(&value.to_string_lossy())),
    })?;
    let implied = kind.implied_key();
    let Parsed { object, help } = if text.starts_with('{') {
        Parsed {
            object: json::parse(&text)?,
            help: false,
        }
    } else {
        keyval::parse(&text, implied)?
    };
    if help {
        return help::of_option(opt, object.get(implied)).map(Answer::Help);
    }
    Ok(Answer::Do(Written {
        kind,
        object,
        place: place.to_owned(),
    }))
}

fn not_yet(opt: Opt) -> Problem {
    let instead = match opt {
        Opt::NbdServer => "the one way to export is --export vhost-user-blk,…",
        _ => "leave it out",
    };
    Problem::Unsupported {
        what: opt.name(),
        instead: instead.to_owned(),
    }
}

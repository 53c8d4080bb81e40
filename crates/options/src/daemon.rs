//! The drop-in face: what the options of qemu-storage-daemon ask for.
//!
//! Options are judged in the order of the command line, except `-h`, `-V`, `--daemonize` and
//! `--pidfile`, which act before all others. What that program has and this one lacks is refused by name.

use std::{collections::BTreeMap, ffi::OsString, path::PathBuf};

use crate::{
    BlockdevOptions, ChardevOptions, ExportOptions, Invocation, MonitorOptions, ObjectOptions,
    Problem, UsageError, blockdev,
    error::shown,
    export,
    getopt::{Item, Items, Opt},
    help, json,
    keyval::{self, Parsed},
    monitor,
    names::Names,
    object,
};

/// A run as a drop-in for qemu-storage-daemon.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Daemon {
    /// `--daemonize`: go to the background once everything is started.
    pub daemonize: bool,
    /// `--pidfile`: where to write the process id once everything is started. The last one counts.
    pub pidfile: Option<PathBuf>,
    /// What to create, in this order.
    pub directives: Vec<Directive>,
}

/// One thing to create.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Directive {
    /// `--object`
    Object(ObjectOptions),
    /// `--blockdev`
    Blockdev(BlockdevOptions),
    /// `--export`
    Export(ExportOptions),
    /// `--chardev`
    Chardev(ChardevOptions),
    /// `--monitor`
    Monitor(MonitorOptions),
}

/// Reads a command line without a subcommand.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let mut daemon = Daemon::default();
    let mut later = Vec::new();
    for item in Items::new(args) {
        match item? {
            Item::Option(Opt::Help, _) => return Ok(Invocation::Help(help::top_level())),
            Item::Option(Opt::Version, _) => return Ok(Invocation::Version(help::version())),
            Item::Option(Opt::Daemonize, _) => daemon.daemonize = true,
            Item::Option(Opt::Pidfile, path) => {
                if path.is_empty() {
                    return Err(Problem::NoArgument {
                        expected: "write --pidfile PATH".to_owned(),
                    }
                    .at("--pidfile"));
                }
                daemon.pidfile = Some(PathBuf::from(path));
            }
            other => later.push(other),
        }
    }
    let mut names = Names::default();
    let mut places = Places::default();
    for item in later {
        let (opt, value) = match item {
            Item::Option(opt, value) => (opt, value),
            Item::Word(word) => return Err(stray_word(&word.to_string_lossy())),
        };
        let place = places.next(opt);
        match directive(opt, value, &mut names).map_err(|problem| problem.at(place))? {
            Answer::Do(directive) => daemon.directives.push(directive),
            Answer::Help(text) => return Ok(Invocation::Help(text)),
        }
    }
    Ok(Invocation::Daemon(daemon))
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
    Do(Directive),
    Help(String),
}

fn directive(opt: Opt, value: OsString, names: &mut Names) -> Result<Answer, Problem> {
    let implied = match opt {
        Opt::Object => "qom-type",
        Opt::Blockdev => "driver",
        Opt::Export => "type",
        Opt::Chardev => "backend",
        Opt::Monitor => "chardev",
        other => return Err(not_yet(other)),
    };
    let text = value.into_string().map_err(|value| Problem::Syntax {
        reason: format!("not valid UTF-8: '{}'", shown(&value.to_string_lossy())),
    })?;
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
    let directive = match opt {
        Opt::Object => Directive::Object(object::parse(object, names)?),
        Opt::Blockdev => Directive::Blockdev(blockdev::parse(object, names)?),
        Opt::Chardev => Directive::Chardev(monitor::chardev(object, names)?),
        Opt::Monitor => Directive::Monitor(monitor::monitor(object, names)?),
        _ => Directive::Export(export::parse(object, names)?),
    };
    Ok(Answer::Do(directive))
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

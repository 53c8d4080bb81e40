//! `human-monitor-command`: what people and scripts ask QEMU's monitor, answered in its words.
//!
//! Only what shows something. What changes something has its command in QMP.

mod block;
mod chars;
mod stats;
mod words;

use qmp::{Arguments, Command, Error, Member, Object, Run, Type};
use serde_json::Value;

use super::text;
use crate::control::Control;
use words::Words;

/// A command for people.
struct Human {
    name: &'static str,
    /// What it takes, as `help` shows it.
    takes: &'static str,
    help: &'static str,
    /// Flags of one letter.
    flags: &'static str,
    /// How many other words it takes at most.
    most: usize,
    run: fn(&Control, &Words<'_>) -> String,
}

/// Those that are asked by `info NAME`.
const INFO: &[Human] = &[
    Human {
        name: "block",
        takes: "[-n] [-v] [device]",
        help: "show info of one block device or all block devices (-n: show named nodes; -v: show details)",
        flags: "nv",
        most: 1,
        run: block::nodes,
    },
    Human {
        name: "blockstats",
        takes: "",
        help: "show block device statistics",
        flags: "",
        most: 0,
        run: stats::exports,
    },
    Human {
        name: "chardev",
        takes: "",
        help: "show the character devices",
        flags: "",
        most: 0,
        run: chars::chardevs,
    },
    Human {
        name: "iothreads",
        takes: "",
        help: "show iothreads",
        flags: "",
        most: 0,
        run: |control, _| iothreads(control),
    },
    Human {
        name: "version",
        takes: "",
        help: "show the version of blockplane",
        flags: "",
        most: 0,
        run: |_, _| concat!(env!("CARGO_PKG_VERSION"), "blockplane\n").to_owned(),
    },
];

/// The others.
const COMMANDS: &[Human] = &[
    Human {
        name: "help|?",
        takes: "[cmd]",
        help: "show the help",
        flags: "",
        // Whatever they say: the first two count.
        most: usize::MAX,
        run: |_, words| help(&words.others),
    },
    Human {
        name: "info",
        takes: "[subcommand]",
        help: "show various information about the system state",
        flags: "",
        most: 0,
        run: |_, _| list("info ", INFO),
    },
];

pub(super) fn commands() -> Vec<Command<Control>> {
    vec![Command {
        name: "human-monitor-command",
        arguments: Object::of(vec![
            Member::required("command-line", Type::Str),
            // There is no processor here; said by some.
            Member::optional("cpu-index", Type::Int),
        ]),
        returns: Some(Type::Str),
        run: Run::InBand(run),
    }]
}

fn run(control: &mut Control, arguments: &Arguments) -> Result<Value, Error> {
    let answer = answer(control, text(arguments, "command-line"));
    // Lines end as on a terminal.
    Ok(answer.replace('\n', "\r\n").into())
}

fn answer(control: &Control, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (found, path, rest) = match words.as_slice() {
        [] => return String::new(),
        ["info", name, rest @ ..] => (find(INFO, name), words[..2].join(" "), rest),
        [name, rest @ ..] => (find(COMMANDS, name), (*name).to_owned(), rest),
    };
    let Some(command) = found else {
        return format!("unknown command: '{path}'\n");
    };
    match Words::read(rest, command.flags, command.most) {
        Ok(words) => (command.run)(control, &words),
        Err(wrong) => format!(
            "{}: {wrong}\nTry \"help {path}\" for more information\n",
            command.name
        ),
    }
}

fn find(commands: &'static [Human], name: &str) -> Option<&'static Human> {
    let mut all = commands.iter();
    all.find(|command| command.name.split('|').any(|found| found == name))
}

fn help(words: &[&str]) -> String {
    let (found, path) = match words {
        [] => return list("", COMMANDS),
        ["info"] => return list("info ", INFO),
        ["info", name, ..] => (find(INFO, name), format!("info {name}")),
        [name, ..] => (find(COMMANDS, name), (*name).to_owned()),
    };
    let prefix = if words[0] == "info" { "info " } else { "" };
    match found {
        Some(command) => line(prefix, command),
        None => format!("unknown command: '{path}'\n"),
    }
}

fn list(prefix: &str, commands: &[Human]) -> String {
    let lines = commands.iter().map(|command| line(prefix, command));
    lines.collect()
}

fn line(prefix: &str, command: &Human) -> String {
    format!(
        "{prefix}{} {} -- {}\n",
        command.name, command.takes, command.help
    )
}

fn iothreads(control: &Control) -> String {
    let describe = |iothread: &crate::state::iothread::Iothread| {
        let options = &iothread.options;
        format!(
            "{}:\n  thread_id={}\n  poll-max-ns={}\n  poll-grow={}\n  poll-shrink={}\n  aio-max-batch={}\n",
            options.id,
            iothread.thread.thread_id(),
            options.poll_max_ns,
            options.poll_grow,
            options.poll_shrink,
            options.aio_max_batch,
        )
    };
    control.objects.iothreads.iter().map(describe).collect()
}

//! The QMP command `human-monitor-command`: runs queries of QEMU's human monitor (HMP), with output in its format.
//!
//! Only commands that show something are supported. For changes there are QMP commands.

mod args;
mod block;
mod chardevs;
mod stats;

use qmp::{Arguments, Command, CommandHandler, Error, Member, ObjectType, Type};
use serde_json::Value;

use super::str_arg_or_empty;
use crate::control::MainThread;
use args::HmpArgs;

/// An HMP command.
struct HmpCommand {
    name: &'static str,
    /// Parameters, as `help` shows them.
    params: &'static str,
    help: &'static str,
    /// Supported flags, one letter each.
    flags: &'static str,
    /// Maximum number of positional arguments.
    max_positional: usize,
    run: fn(&MainThread, &HmpArgs<'_>) -> String,
}

/// Commands `info NAME`.
const INFO_COMMANDS: &[HmpCommand] = &[
    HmpCommand {
        name: "block",
        params: "[-n] [-v] [device]",
        help: "show info of one block device or all block devices (-n: show named nodes; -v: show details)",
        flags: "nv",
        max_positional: 1,
        run: block::show_block_devices,
    },
    HmpCommand {
        name: "blockstats",
        params: "",
        help: "show block device statistics",
        flags: "",
        max_positional: 0,
        run: stats::show_block_statistics,
    },
    HmpCommand {
        name: "chardev",
        params: "",
        help: "show the character devices",
        flags: "",
        max_positional: 0,
        run: chardevs::show_chardevs,
    },
    HmpCommand {
        name: "iothreads",
        params: "",
        help: "show iothreads",
        flags: "",
        max_positional: 0,
        run: |control, _| show_iothreads(control),
    },
    HmpCommand {
        name: "version",
        params: "",
        help: "show the version of blockplane",
        flags: "",
        max_positional: 0,
        run: |_, _| concat!(env!("CARGO_PKG_VERSION"), "blockplane\n").to_owned(),
    },
];

/// All other commands.
const OTHER_COMMANDS: &[HmpCommand] = &[
    HmpCommand {
        name: "help|?",
        params: "[cmd]",
        help: "show the help",
        flags: "",
        // All but the first two are ignored.
        max_positional: usize::MAX,
        run: |_, args| help_text(&args.positional),
    },
    HmpCommand {
        name: "info",
        params: "[subcommand]",
        help: "show various information about the system state",
        flags: "",
        max_positional: 0,
        run: |_, _| help_lines("info ", INFO_COMMANDS),
    },
];

/// The QMP command through which clients run those of HMP.
pub(super) fn qmp_commands() -> Vec<Command<MainThread>> {
    vec![Command {
        name: "human-monitor-command",
        arguments: ObjectType::with_members(vec![
            Member::required("command-line", Type::Str),
            // Accepted for compatibility; there are no processors.
            Member::optional("cpu-index", Type::Int),
        ]),
        returns: Some(Type::Str),
        run: CommandHandler::InBand(run_human_monitor_command),
    }]
}

/// `human-monitor-command`: executes a command line and returns its output.
fn run_human_monitor_command(
    control: &mut MainThread,
    arguments: &Arguments,
) -> Result<Value, Error> {
    let output = run_command_line(control, str_arg_or_empty(arguments, "command-line"));
    // QEMU ends lines with CRLF.
    Ok(output.replace('\n', "\r\n").into())
}

/// The output of a command line. An error is output as well, as in QEMU.
fn run_command_line(control: &MainThread, line: &str) -> String {
    let words: Vec<&str> = line.split_whitespace().collect();
    let (found, path, rest) = match words.as_slice() {
        [] => return String::new(),
        ["info", name, rest @ ..] => (
            find_command(INFO_COMMANDS, name),
            words[..2].join(" "),
            rest,
        ),
        [name, rest @ ..] => (find_command(OTHER_COMMANDS, name), (*name).to_owned(), rest),
    };
    let Some(command) = found else {
        return format!("unknown command: '{path}'\n");
    };
    match HmpArgs::parse(rest, command.flags, command.max_positional) {
        Ok(args) => (command.run)(control, &args),
        Err(error) => format!(
            "{}: {error}\nTry \"help {path}\" for more information\n",
            command.name
        ),
    }
}

/// The command of this name; a command may have several, separated by `|`.
fn find_command(commands: &'static [HmpCommand], name: &str) -> Option<&'static HmpCommand> {
    let mut all = commands.iter();
    all.find(|command| command.name.split('|').any(|found| found == name))
}

/// `help`: the line of the command that `topic` names, or all lines.
fn help_text(topic: &[&str]) -> String {
    let (found, path) = match topic {
        [] => return help_lines("", OTHER_COMMANDS),
        ["info"] => return help_lines("info ", INFO_COMMANDS),
        ["info", name, ..] => (find_command(INFO_COMMANDS, name), format!("info {name}")),
        [name, ..] => (find_command(OTHER_COMMANDS, name), (*name).to_owned()),
    };
    let prefix = if topic[0] == "info" { "info " } else { "" };
    match found {
        Some(command) => help_line(prefix, command),
        None => format!("unknown command: '{path}'\n"),
    }
}

/// The lines that describe commands.
fn help_lines(prefix: &str, commands: &[HmpCommand]) -> String {
    let lines = commands.iter().map(|command| help_line(prefix, command));
    lines.collect()
}

/// The line that describes a command: its name, parameters and purpose.
fn help_line(prefix: &str, command: &HmpCommand) -> String {
    format!(
        "{prefix}{} {} -- {}\n",
        command.name, command.params, command.help
    )
}

/// `info iothreads`: the thread ID and options of each iothread.
fn show_iothreads(control: &MainThread) -> String {
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

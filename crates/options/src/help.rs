//! Generates the texts of `--help` and `--version` without a command, and of `help` inside an option.
//!
//! The keys come from the same tables as those of the parsers.

use crate::{
    Problem, blockdev, export,
    getopt::{self, TopLevelOption},
    key::{KeySpec, parse_choice},
    monitor, nbd_server, object,
    reference::{self, KeyGroup},
    tree::Value,
};

/// Width of the column with the keys.
const KEY_COLUMN: usize = 34;

/// Width of the column with the options.
const OPTION_COLUMN: usize = 26;

/// The line of `--version`.
pub(crate) fn version_line() -> String {
    format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"))
}

/// The text of `--help` without a command.
pub(crate) fn top_level_help() -> String {
    let mut out = format!(
        "blockplane {}: disks for virtual machines\n",
        env!("CARGO_PKG_VERSION")
    );
    out.push_str(USAGE);
    for option in getopt::described_options() {
        let short = option
            .short
            .map_or(String::new(), |short| format!("-{short}, "));
        let value = match option.placeholder {
            Some(value) if value.contains(',') || value.contains('=') => " …",
            Some(value) => &format!(" {value}"),
            None => "",
        };
        let left = format!("  {short}--{}{value}", option.long);
        push_item(&mut out, &left, OPTION_COLUMN, option.help);
    }
    out.push_str(ABBREVIATIONS);
    push_key_section(
        &mut out,
        "--object iothread,KEY=VALUE,…   a thread that runs disks",
        &[object::IothreadOptions::KEYS],
    );
    push_key_section(
        &mut out,
        "--object secret,KEY=VALUE,…   a secret, such as the key of a Ceph user",
        &[object::SecretOptions::KEYS],
    );
    push_key_section(
        &mut out,
        "--object throttle-group,KEY=VALUE,…   limits, for nodes of driver throttle",
        &[object::ThrottleGroupOptions::KEYS],
    );
    push_key_section(
        &mut out,
        "--object tls-creds-x509,KEY=VALUE,…   certificates for TLS",
        &[object::TlsCredsOptions::KEYS],
    );
    push_key_section(
        &mut out,
        "--object authz-list,KEY=VALUE,…   clients that may use a server with TLS",
        &[object::AuthzListKeys::KEYS],
    );
    push_key_section(
        &mut out,
        "      and each member of its rules",
        &[object::AuthzRuleKeys::KEYS],
    );
    push_key_section(
        &mut out,
        "--blockdev DRIVER,KEY=VALUE,…   a node; every driver takes",
        &[blockdev::CommonNodeOptions::KEYS],
    );
    for group in kind_specific_key_groups("blockdev") {
        let title = format!("    {} also", group.title);
        push_key_section(&mut out, &title, &[group.keys]);
        for (list, keys) in node_lists(group.kinds) {
            let title = format!("      and each member of its {list}");
            push_key_section(&mut out, &title, &[keys]);
        }
    }
    push_key_section(
        &mut out,
        "--export TYPE,KEY=VALUE,…   a device for a VMM; every type takes",
        &[export::CommonExportOptions::KEYS],
    );
    for group in kind_specific_key_groups("export") {
        let title = format!("    {} also", group.title);
        push_key_section(&mut out, &title, &[group.keys]);
    }
    push_key_section(
        &mut out,
        "--nbd-server KEY=VALUE,…   the server of exports of type nbd",
        &[nbd_server::NbdServerSettings::KEYS],
    );
    push_key_section(
        &mut out,
        "--chardev socket,KEY=VALUE,…   a Unix socket for a monitor",
        &[monitor::CommonChardevOptions::KEYS],
    );
    push_key_section(
        &mut out,
        "--monitor chardev=NAME,KEY=VALUE,…   a monitor (QMP) on a chardev",
        &[monitor::MonitorOptions::KEYS],
    );
    out.push_str(NOTATION);
    out
}

const USAGE: &str = "
Usage:
  blockplane serve DISK… [OPTIONS]    serve disks
  blockplane check FILE               validate a configuration file and show
                                      what it would create
  blockplane info SOCKET [OPTIONS]    show the objects of a running daemon
  blockplane top SOCKET [OPTIONS]     show its disks' performance, continuously
  blockplane backup SOCKET DISK FILE  copy a disk while its guest works
  blockplane mirror SOCKET DISK FILE  move it to another place
  blockplane bitmap SOCKET [OPTIONS]  show or change its dirty bitmaps
  blockplane qmp SOCKET COMMAND …     query it, change it
  blockplane upgrade SOCKET           replace it with a new binary
  blockplane [OPTIONS]                create nodes and exports, with the options
                                      of qemu-storage-daemon
  blockplane --config FILE [OPTIONS]  the same from a file, with further options

Serve a disk, created if it does not exist, and attach it to a guest:
  blockplane serve disk.img --size 10G --socket /tmp/disk.sock
  qemu-system-x86_64 -accel kvm -m 1G -machine memory-backend=mem \\
      -object memory-backend-memfd,id=mem,size=1G,share=on \\
      -chardev socket,id=disk,path=/tmp/disk.sock \\
      -device vhost-user-blk-pci,chardev=disk

The same for scripts that call qemu-storage-daemon:
  blockplane --object iothread,id=io0 \\
      --blockdev file,node-name=disk0,filename=disk.img \\
      --export vhost-user-blk,id=exp0,node-name=disk0,addr.type=unix,\\
addr.path=/tmp/disk.sock,writable=on,num-queues=4,iothread=io0

Commands (blockplane help COMMAND explains each):
  serve DISK…             serve disks
  check FILE              validate a configuration file
  info SOCKET             exports, nodes and iothreads of the daemon with this
                          monitor
  top SOCKET              IOPS, MB/s and latency of its disks, CPU time of its
                          iothreads
  backup SOCKET DISK FILE copy a disk as it is now, in full or what has changed
  mirror SOCKET DISK FILE move a disk to another file, device or server; its
                          guest goes over to it
  bitmap SOCKET …         bitmaps of what has changed
  qmp SOCKET COMMAND …    any QMP command, with its arguments as KEY=VALUE
  upgrade SOCKET          replace the running daemon with a new binary; guests
                          stay connected
  generate WHAT DIR       manual pages or shell completions, for packages
  help [COMMAND]          this text, or the help of a command

blockplane-bench runs benchmarks of blockplane or any other vhost-user-blk
server.

Options without a command (objects are created in their order):
";

const ABBREVIATIONS: &str = "\
An option can be shortened as long as it stays unambiguous, and written
--option=VALUE.
";

const NOTATION: &str = "
Values:
  KEY=VALUE,KEY=VALUE     a comma inside a value is written ,, and dots nest:
                          cache.direct=on; lists are numbered: iothread.0=a,
                          iothread.1=b; the last of a repeated key counts
  {\"KEY\": VALUE, …}       JSON with the same keys: {\"cache\": {\"direct\": true}}
  SIZE                    bytes, or with a suffix B, K, M, G, T, P, E (powers of
                          1024): 1.5G
  N, NS, FD               decimal or 0x hexadecimal; NS is in nanoseconds
  on|off                  also yes|no, true|false, y|n
  help                    --blockdev file,help lists the keys of a driver,
                          --object help the types

Not supported yet: --trace, image formats such as qcow2,
other types of exports.

The environment variable BLOCKPLANE_LOG is the log level without a command:
error (errors and warnings, the default; also warn), info, debug or trace.
BLOCKPLANE_LOG_FORMAT is the log format: text (the default) or json.

The exit status is 0 after an orderly shutdown (SIGTERM, SIGINT, SIGHUP) and 1
for any error.
";

/// Groups of keys that only some kinds of an option take.
fn kind_specific_key_groups(option: &str) -> impl Iterator<Item = &'static KeyGroup> {
    let groups = reference::KEYS.iter();
    groups.filter(move |group| group.option == option && !group.kinds.is_empty())
}

/// The lists that these drivers have, by their keys, each with the keys of its elements.
fn node_lists(kinds: &[&str]) -> impl Iterator<Item = (&'static str, &'static [KeySpec])> {
    let groups = reference::LIST_ELEMENT_KEYS.iter();
    groups
        .filter(|group| group.option == "blockdev")
        .filter(|group| group.kinds.iter().any(|kind| kinds.contains(kind)))
        .map(|group| (group.prefix.trim_end_matches(".0."), group.keys))
}

/// Appends a heading and the keys of all tables below it.
fn push_key_section(out: &mut String, title: &str, tables: &[&[KeySpec]]) {
    out.push('\n');
    out.push_str(title);
    out.push('\n');
    for key in tables.iter().flat_map(|table| table.iter()) {
        let left = format!("  {}={}", key.name, key.placeholder);
        push_item(out, &left, KEY_COLUMN, key.help);
    }
}

/// Appends a name and, in the column to its right, its description, wrapped at words.
fn push_item(out: &mut String, name: &str, column: usize, text: &str) {
    let mut line = format!("{name:column$}");
    // A name that does not fit has a line of its own.
    let mut is_full = name.chars().count() >= column;
    for word in text.split(' ') {
        let width_with_word = line.chars().count() + word.chars().count();
        let is_empty = line.chars().count() == column && !is_full;
        if is_full || (width_with_word > commands::HELP_COLUMNS && !is_empty) {
            out.push_str(line.trim_end());
            line = format!("\n{:column$}", "");
            is_full = false;
        }
        line.push_str(word);
        line.push(' ');
    }
    out.push_str(line.trim_end());
    out.push('\n');
}

/// Appends the names of kinds.
fn push_kinds<T>(out: &mut String, title: &str, choices: &[(&str, T)]) {
    out.push_str(title);
    out.push_str(":\n");
    for (name, _) in choices {
        out.push_str("  ");
        out.push_str(name);
        out.push('\n');
    }
}

/// The text of `help` inside an option: its kinds, or the keys of one kind.
pub(crate) fn option_help(opt: TopLevelOption, kind: Option<&Value>) -> Result<String, Problem> {
    let mut out = String::new();
    if opt == TopLevelOption::NbdServer {
        let keys = [nbd_server::NbdServerSettings::KEYS];
        push_key_section(&mut out, "--nbd-server", &keys);
        return Ok(out.trim_start().to_owned());
    }
    let kind = match kind {
        Some(Value::Text(kind)) => kind,
        _ => {
            match opt {
                TopLevelOption::Object => push_kinds(&mut out, "Types of --object", object::TYPES),
                TopLevelOption::Blockdev => {
                    push_kinds(&mut out, "Drivers of --blockdev", blockdev::DRIVERS)
                }
                TopLevelOption::Chardev => {
                    push_kinds(&mut out, "Kinds of --chardev", monitor::BACKENDS)
                }
                TopLevelOption::Monitor => {
                    push_key_section(&mut out, "--monitor", &[monitor::MonitorOptions::KEYS]);
                    return Ok(out.trim_start().to_owned());
                }
                _ => push_kinds(&mut out, "Types of --export", export::TYPES),
            }
            return Ok(out);
        }
    };
    match opt {
        TopLevelOption::Object => {
            let r#type = parse_choice("qom-type", kind, object::TYPES, &[])?;
            push_key_section(&mut out, &format!("--object {kind}"), &[r#type.keys()]);
        }
        TopLevelOption::Blockdev => {
            let driver = parse_choice("driver", kind, blockdev::DRIVERS, &[])?;
            push_key_section(
                &mut out,
                &format!("--blockdev {kind}"),
                &[blockdev::CommonNodeOptions::KEYS, driver.specific_keys()],
            );
            for (list, keys) in node_lists(&[kind]) {
                let title = format!("  each member of {list}");
                push_key_section(&mut out, &title, &[keys]);
            }
        }
        TopLevelOption::Chardev => {
            parse_choice("backend", kind, monitor::BACKENDS, &[])?;
            push_key_section(
                &mut out,
                "--chardev socket",
                &[monitor::CommonChardevOptions::KEYS],
            );
        }
        TopLevelOption::Monitor => {
            push_key_section(&mut out, "--monitor", &[monitor::MonitorOptions::KEYS])
        }
        _ => {
            let r#type = parse_choice("type", kind, export::TYPES, &[])?;
            push_key_section(&mut out, &format!("--export {kind}"), r#type.keys);
        }
    }
    Ok(out.trim_start().to_owned())
}

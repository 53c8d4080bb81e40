//! The texts of `--help` and `--version`, and of `help` inside an option.
//!
//! The keys in them come from the tables that the parsers check against.

use crate::{
    Problem, blockdev, export,
    getopt::{self, Opt},
    key::{Key, pick},
    monitor, object,
    reference::{self, KeyGroup},
    tree::Value,
};

/// Width of the column with the keys.
const KEY_COLUMN: usize = 34;

/// Width of the column with the options.
const OPTION_COLUMN: usize = 26;

/// The line of `--version`.
pub(crate) fn version() -> String {
    format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"))
}

/// The text of `--help`, for both faces.
pub(crate) fn top_level() -> String {
    let mut out = format!(
        "blockplane {}: disks for virtual machines\n",
        env!("CARGO_PKG_VERSION")
    );
    out.push_str(FACES);
    for option in getopt::described() {
        let short = option
            .short
            .map_or(String::new(), |short| format!("-{short}, "));
        let value = match option.value {
            Some(value) if value.contains(',') || value.contains('=') => " …",
            Some(value) => &format!(" {value}"),
            None => "",
        };
        let left = format!("  {short}--{}{value}", option.long);
        described(&mut out, &left, OPTION_COLUMN, option.help);
    }
    out.push_str(ABBREVIATIONS);
    section(
        &mut out,
        "--object iothread,KEY=VALUE,…   a thread that runs disks",
        &[object::IothreadOptions::KEYS],
    );
    section(
        &mut out,
        "--blockdev DRIVER,KEY=VALUE,…   a node; every driver takes",
        &[blockdev::NodeSettings::KEYS],
    );
    for group in of_kinds("blockdev") {
        let title = format!("    {} also", group.title);
        section(&mut out, &title, &[group.keys]);
        if group.kinds.contains(&"blkdebug") {
            let title = "      and each member of its inject-error";
            section(&mut out, title, &[blockdev::InjectErrorKeys::KEYS]);
        }
    }
    section(
        &mut out,
        "--export TYPE,KEY=VALUE,…   a device for a VMM; every type takes",
        &[export::ExportSettings::KEYS],
    );
    for group in of_kinds("export") {
        let title = format!("    {} also", group.title);
        section(&mut out, &title, &[group.keys]);
    }
    section(
        &mut out,
        "--chardev socket,KEY=VALUE,…   a Unix socket for a monitor",
        &[monitor::ChardevSettings::KEYS],
    );
    section(
        &mut out,
        "--monitor chardev=NAME,KEY=VALUE,…   QMP, for whoever connects there",
        &[monitor::MonitorOptions::KEYS],
    );
    out.push_str(NOTATION);
    out
}

const FACES: &str = "
Usage:
  blockplane serve DISK… [OPTIONS]    serve disks
  blockplane check FILE               is a configuration file right, and what
                                      would it run
  blockplane info SOCKET [OPTIONS]    show what a running daemon has
  blockplane top SOCKET [OPTIONS]     watch it
  blockplane qmp SOCKET COMMAND …     ask it, change it
  blockplane upgrade SOCKET           put a new version in its place
  blockplane [OPTIONS]                nodes and exports, described as for
                                      qemu-storage-daemon
  blockplane --config FILE [OPTIONS]  the same in a file, with anything that is
                                      added here

Serve a disk, creating it if need be, and give it to a guest:
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
  check FILE              check a configuration file
  info SOCKET             exports, nodes and iothreads of the daemon whose
                          monitor this is
  top SOCKET              IOPS, MB/s and latency of its disks, CPU time of its
                          iothreads
  qmp SOCKET COMMAND …    any command of its monitor, with its arguments as
                          KEY=VALUE
  upgrade SOCKET          put a new version in its place; guests stay connected
  generate WHAT DIR       manual pages or shell completions, for packages
  help [COMMAND]          this text, or that of a command

blockplane-bench measures it, or any other vhost-user-blk server.

Options without a command (what they describe is created in their order):
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

Not there yet: --nbd-server, --trace, image formats such as qcow2,
other types of exports.

BLOCKPLANE_LOG in the environment says how much is logged without a command:
error (errors and warnings, the default; also warn), info, debug or trace.
BLOCKPLANE_LOG_FORMAT says in which form, text (the default) or json.

The exit status is 0 after an orderly end (SIGTERM, SIGINT, SIGHUP) and 1 for
any error.
";

/// The keys that only some kinds of an option take.
fn of_kinds(option: &str) -> impl Iterator<Item = &'static KeyGroup> {
    let groups = reference::KEYS.iter();
    groups.filter(move |group| group.option == option && !group.kinds.is_empty())
}

fn section(out: &mut String, title: &str, tables: &[&[Key]]) {
    out.push('\n');
    out.push_str(title);
    out.push('\n');
    for key in tables.iter().flat_map(|table| table.iter()) {
        let left = format!("  {}={}", key.name, key.value);
        described(out, &left, KEY_COLUMN, key.help);
    }
}

/// A name, and beside it in a column of its own what it is, in lines of whole words.
fn described(out: &mut String, name: &str, column: usize, text: &str) {
    let mut line = format!("{name:column$}");
    // A name that reaches into the column has a line of its own.
    let mut is_full = name.chars().count() >= column;
    for word in text.split(' ') {
        let wide = line.chars().count() + word.chars().count();
        let is_empty = line.chars().count() == column && !is_full;
        if is_full || (wide > commands::HELP_COLUMNS && !is_empty) {
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

/// The names that a choice has.
fn kinds<T>(out: &mut String, title: &str, choices: &[(&str, T)]) {
    out.push_str(title);
    out.push_str(":\n");
    for (name, _) in choices {
        out.push_str("  ");
        out.push_str(name);
        out.push('\n');
    }
}

/// The text for `help` inside an option: its kinds, or the keys of one kind.
pub(crate) fn of_option(opt: Opt, kind: Option<&Value>) -> Result<String, Problem> {
    let mut out = String::new();
    let kind = match kind {
        Some(Value::Text(kind)) => kind,
        _ => {
            match opt {
                Opt::Object => kinds(&mut out, "Types of --object", object::TYPES),
                Opt::Blockdev => kinds(&mut out, "Drivers of --blockdev", blockdev::DRIVERS),
                Opt::Chardev => kinds(&mut out, "Kinds of --chardev", monitor::BACKENDS),
                Opt::Monitor => {
                    section(&mut out, "--monitor", &[monitor::MonitorOptions::KEYS]);
                    return Ok(out.trim_start().to_owned());
                }
                _ => kinds(&mut out, "Types of --export", export::TYPES),
            }
            return Ok(out);
        }
    };
    match opt {
        Opt::Object => {
            pick("qom-type", kind, object::TYPES, &[])?;
            section(
                &mut out,
                "--object iothread",
                &[object::IothreadOptions::KEYS],
            );
        }
        Opt::Blockdev => {
            let which = pick("driver", kind, blockdev::DRIVERS, &[])?;
            section(
                &mut out,
                &format!("--blockdev {kind}"),
                &[blockdev::NodeSettings::KEYS, which.keys()],
            );
            if matches!(which, blockdev::Which::Blkdebug) {
                let title = "  each member of inject-error";
                section(&mut out, title, &[blockdev::InjectErrorKeys::KEYS]);
            }
        }
        Opt::Chardev => {
            pick("backend", kind, monitor::BACKENDS, &[])?;
            section(
                &mut out,
                "--chardev socket",
                &[monitor::ChardevSettings::KEYS],
            );
        }
        Opt::Monitor => section(&mut out, "--monitor", &[monitor::MonitorOptions::KEYS]),
        _ => {
            let r#type = pick("type", kind, export::TYPES, &[])?;
            section(&mut out, &format!("--export {kind}"), r#type.keys);
        }
    }
    Ok(out.trim_start().to_owned())
}

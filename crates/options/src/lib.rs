//! Parses command lines, configuration files and QMP options to validated settings.
//!
//! blockplane has two command-line interfaces. `blockplane serve DISK` is for interactive use; without a command, blockplane
//! takes the options of qemu-storage-daemon and replaces it for the nodes and exports that it supports. [`parse`] returns
//! both as data whose numbers are in range and whose references are resolved.
//!
//! This crate opens no file and reads neither clock nor environment: the same arguments always give the same result. Whether
//! a file exists or a size fits is checked when it is opened.
//!
//! The modules are in layers. [`KeySpec`], formats of values and fields are the base; above them is one module for each kind of
//! object (`object`, `blockdev`, `export`, `monitor`, `metrics`); `directive` joins the kinds. The notations are on top:
//! `serve`, `qsd_command_line` (qemu-storage-daemon's options), `config` (files), and [`qmp_options`] (QMP).

mod base64;
mod blockdev;
mod check_args;
mod command;
mod config;
mod confinement;
mod cpus;
mod daemon;
mod describe;
mod directive;
mod error;
mod export;
mod fields;
mod form;
mod generate_args;
mod getopt;
mod help;
mod ip_versions;
mod json;
mod key;
mod keyval;
mod limits;
mod logging;
mod metrics;
mod monitor;
mod names;
mod nbd_server;
mod object;
mod paths;
pub mod qmp_options;
mod qsd_command_line;
pub mod reference;
mod serve;
mod settings;
mod size;
mod socket;
mod suggest;
mod tree;

use std::{ffi::OsString, os::unix::ffi::OsStrExt, path::PathBuf};

use names::DefinedNames;

pub use blockdev::{
    AioMode, BlkdebugOptions, BlockdevOptions, CommonNodeOptions, DEFAULT_NULL_SIZE, DetectZeroes,
    Discard, Driver, FileOptions, InjectAction, InjectErrorRule, IoType, Locking, NbdOptions,
    NbdServerType, NodeRef, NullOptions, RawOffsetAndSize, RbdAuthMode, RbdOptions, RbdServer,
    ThrottleOptions,
};
pub use check_args::CheckSettings;
pub use config::{ConfigError, ConfigFileWithOptions, ConfigProblem, Location};
pub use confinement::{Confinement, Sandbox, SandboxOptions};
pub use cpus::MAX_CPUS;
pub use daemon::DaemonSettingsAndDirectives;
pub use describe::ToJsonError;
pub use directive::Directive;
pub use error::{Problem, UsageError};
pub use export::{
    CommonExportOptions, DEFAULT_MERGE_BYTES, DEFAULT_MERGE_REQUESTS, DEFAULT_REQUEST_TIMEOUT,
    ExportKind, ExportOptions, ExportedBitmap, LunDeviceOptions, LunOptions, MAX_MERGE_REQUESTS,
    MAX_SCSI_SERIAL_BYTES, NbdExportOptions, OnError, VhostUserBlkOptions, VhostUserScsiOptions,
};
pub use form::{MAX_NODE_NAME_BYTES, NonUtf8Path};
pub use generate_args::ManOrCompletions;
pub use ip_versions::IpVersions;
pub use key::{KeySpec, ValueType};
pub use limits::{
    DEFAULT_SERVE_QUEUES, MAX_QUEUE_SIZE, MAX_QUEUES, MAX_SCSI_QUEUES, MAX_SERIAL_BYTES,
};
pub use logging::{LogFormat, LogLevel};
pub use metrics::MetricsAddr;
pub use monitor::{ChardevOptions, CommonChardevOptions, MonitorOptions};
pub use nbd_server::{NbdServerAddr, NbdServerOptions, NbdServerSettings};
pub use object::{
    AuthzListOptions, AuthzPolicy, AuthzRule, DEFAULT_AIO_MAX_EVENTS, DEFAULT_POLL_CPU_MAX,
    DEFAULT_POLL_MAX_NS, DEFAULT_THREAD_POOL_MAX, GroupLimit, IothreadOptions, MAX_AIO_EVENTS,
    MAX_SECRET_BYTES, MAX_THREAD_POOL, ObjectOptions, SecretBytes, SecretError, SecretFormat,
    SecretOptions, SecretText, ThrottleGroupOptions, TlsCredsOptions, TlsEndpoint,
};
pub use serve::{ServeDevice, ServeDisk, ServeSettings, is_nbd_uri, nbd_uri_to_json};
pub use size::parse_size_argument;
pub use socket::SocketAddr;

/// A parsed command line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Invocation {
    /// `blockplane serve DISK …`
    Serve(ServeSettings),
    /// qemu-storage-daemon's options.
    Daemon(DaemonSettingsAndDirectives),
    /// `--config FILE`, with `serve` or without a command: the file is still to be parsed.
    ConfigFile(ConfigFileWithOptions),
    /// `blockplane check FILE`
    Check(CheckSettings),
    /// `blockplane generate man|completions DIR`
    Generate {
        /// The kind of files.
        what: ManOrCompletions,
        /// The folder to write to.
        folder: PathBuf,
    },
    /// `blockplane qmp …`, `info …`, `top …`, `backup …`, `bitmap …`, `upgrade …`: all arguments, unparsed.
    Operator(Vec<OsString>),
    /// Print this text on standard output and exit with status 0.
    Help(String),
    /// Print this line on standard output and exit with status 0.
    Version(String),
}

/// Parses the options by which a running daemon describes its objects to its successor in a live upgrade. Unlike [`parse`] it accepts
/// the names that the daemon has generated for nodes without a `node-name`.
///
/// # Errors
/// The first error in the order of the options.
pub fn parse_options_of_running_daemon(
    args: impl Iterator<Item = OsString>,
) -> Result<Invocation, UsageError> {
    qsd_command_line::parse(args, DefinedNames::of_running_daemon())
}

/// Commands that connect to a running daemon. Their grammar is in another crate.
const OPERATOR_COMMANDS: [&str; 7] = [
    "qmp", "info", "top", "backup", "mirror", "bitmap", "upgrade",
];

/// Parses a command line without the program's name.
///
/// # Errors
/// The first error in the order of the command line. The program prints it to standard error and exits with status 1.
pub fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let mut args = args.peekable();
    let Some(first) = args.peek() else {
        return Ok(Invocation::Help(help::top_level_help()));
    };
    match first.as_bytes() {
        [b'-', ..] => qsd_command_line::parse(args, DefinedNames::default()),
        b"serve" => serve::parse(args.skip(1)),
        b"check" => check_args::parse(args.skip(1)),
        b"generate" => generate_args::parse(args.skip(1)),
        b"bench" => Err(separate_bench_program_error(args.skip(1))),
        command
            if OPERATOR_COMMANDS
                .iter()
                .any(|known| command == known.as_bytes()) =>
        {
            Ok(Invocation::Operator(args.collect()))
        }
        b"help" => match args.nth(1) {
            None => Ok(Invocation::Help(help::top_level_help())),
            Some(command) if command == "serve" => serve::parse(std::iter::once("--help".into())),
            Some(command) if command == "check" => {
                check_args::parse(std::iter::once("--help".into()))
            }
            Some(command) if command == "generate" => {
                generate_args::parse(std::iter::once("--help".into()))
            }
            Some(command) if command == "bench" => {
                Err(separate_bench_program_error(["--help".into()].into_iter()))
            }
            Some(command) if OPERATOR_COMMANDS.iter().any(|known| command == *known) => {
                Ok(Invocation::Operator(vec![command, "--help".into()]))
            }
            Some(command) => {
                let word = error::excerpt(&command.to_string_lossy());
                Err(Problem::StrayWord {
                    word,
                    suggestion: Some("blockplane help serve".to_owned()),
                }
                .in_option(""))
            }
        },
        other => Err(qsd_command_line::stray_word_error(
            &String::from_utf8_lossy(other),
        )),
    }
}

/// The error for `bench`, which is a program of its own.
fn separate_bench_program_error(words: impl Iterator<Item = OsString>) -> UsageError {
    let mut instead = "blockplane-bench".to_owned();
    for word in words {
        instead = format!("{instead} {}", word.to_string_lossy());
    }
    let instead = error::excerpt(&instead);
    let message = format!("benchmarks are in the program blockplane-bench; write '{instead}'");
    Problem::Command { message }.in_option("bench")
}

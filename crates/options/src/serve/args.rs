//! Parses the arguments of `blockplane serve`: its `clap` grammar with the help, checks beyond the grammar, and
//! defaults.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, Parser, ValueEnum};

use super::device::{self, DeviceSpecificArgs};
use super::disks::{check_options_of_network_disks, check_serial_count_and_uniqueness, parse_disk};
use super::paths;
use super::rates::RateArgs;
use super::values::{
    CpuSetArg, parse_aio_event_count, parse_batch_size, parse_block_size, parse_cpus,
    parse_disk_size, parse_nanoseconds, parse_percent, parse_queue_or_iothread_count,
    parse_queue_size, parse_serial, parse_switch,
};
use crate::{
    AioMode, ConfigFileWithOptions, Confinement, DEFAULT_AIO_MAX_EVENTS, DEFAULT_POLL_CPU_MAX,
    DEFAULT_POLL_MAX_NS, DEFAULT_SERVE_QUEUES, Discard, Invocation, Locking, LogFormat, LogLevel,
    MAX_QUEUE_SIZE, MetricsAddr, Problem, SandboxOptions, ServeDevice, ServeDisk, ServeSettings,
    UsageError,
    command::{self, ArgsOrHelp},
    confinement,
};

/// Serve disks to a virtual machine
///
/// The VMM connects to the socket and shares the guest's memory. DISK becomes a virtio disk of the guest, or, with --device, one or
/// more disks behind a SCSI controller.
/// It runs in the foreground until SIGTERM, SIGINT or SIGHUP.
#[derive(Parser)]
#[command(
    name = "blockplane serve",
    bin_name = "blockplane serve",
    override_usage = "blockplane serve [OPTIONS] <DISK>...\n       blockplane serve [OPTIONS] --config <FILE>",
    // Independent of the terminal, see `HELP_COLUMNS`.
    term_width = commands::HELP_COLUMNS,
    disable_version_flag = true,
    after_long_help = EXAMPLES,
    after_help = "--help explains more and has examples to paste."
)]
struct ServeArgs {
    /// A file, a block device, rbd:POOL/IMAGE, nbd://HOST/EXPORT, or null-co: for a disk without storage (for measuring)
    ///
    /// An image of a Ceph cluster is rbd:POOL/[NAMESPACE/]IMAGE[@SNAPSHOT]; a snapshot is read-only. Options follow as
    /// [:conf=FILE][:id=USER][:keyfile=FILE]: keyfile has the user's key, as ceph auth get-key prints it [default: the key in
    /// the keyring of conf]. A file that is named like an image is ./rbd:NAME.
    ///
    /// An export of an NBD server is nbd://HOST[:PORT]/[EXPORT] or nbd+unix:///[EXPORT]?socket=PATH.
    ///
    /// SCSI controllers have several: with virtio-scsi they are LUN 0, 1, ... of target 0, with lsi53c895a LUN 0 of
    /// targets 0, 1, ... (7 is the adapter itself).
    #[arg(value_name = "DISK", value_parser = clap::value_parser!(OsString), required_unless_present = "config")]
    disk: Vec<OsString>,

    /// Instead of DISK: serve what a configuration file describes, see blockplane.toml(5)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Create DISK with this size if it does not exist; for null-co: its size [default: 1G]
    ///
    /// Bytes, or with a suffix B, K, M, G, T, P, E (powers of 1024), such as 1.5G; a multiple of
    /// 512. An existing file keeps its size.
    #[arg(long, value_name = "SIZE", value_parser = parse_disk_size)]
    size: Option<u64>,

    /// Unix socket to listen on [default: the file name of the first DISK with .sock after it, here]
    #[arg(short, long, value_name = "PATH")]
    socket: Option<PathBuf>,

    /// Unix socket of a monitor, for blockplane top, info and qmp
    #[arg(long, value_name = "PATH")]
    monitor: Option<PathBuf>,

    /// Write the process id to this file once the socket exists
    #[arg(long, value_name = "PATH")]
    pidfile: Option<PathBuf>,

    /// Serve metrics for Prometheus at this address: unix:PATH, tcp:IP:PORT or fd:FD
    ///
    /// HTTP, at /metrics, in the format of OpenMetrics. Any process that can connect can read them.
    #[arg(long, value_name = "ADDRESS", value_parser = MetricsAddr::parse_argument)]
    metrics: Option<MetricsAddr>,

    /// Drop files, system calls and privileges that are not needed
    ///
    /// on: with --monitor, which may add disks, any file can be opened; else only DISK and the files of other options.
    /// strict: no other files in any case. off: no restrictions. With ",rbd=allow" a monitor may add images of Ceph
    /// clusters if no DISK is one, with ",nbd=allow" exports of NBD servers that are reached by TCP.
    #[arg(long, value_name = "on|off|strict[,rbd=allow][,nbd=allow]", value_parser = SandboxOptions::parse_argument, default_value = "on")]
    sandbox: SandboxOptions,

    /// Become this user, by name or number, before anything is opened; only root can
    #[arg(long, value_name = "USER", value_parser = confinement::parse_nonempty_user)]
    user: Option<String>,

    /// Also log connections and queues; twice: everything
    #[arg(short, long, action = clap::ArgAction::Count, conflicts_with = "quiet")]
    verbose: u8,

    /// Log warnings and errors only
    #[arg(short, long)]
    quiet: bool,

    /// Log lines of text, or one JSON object per line [default: text, or BLOCKPLANE_LOG_FORMAT]
    #[arg(long, value_name = "FORMAT", value_enum)]
    log_format: Option<LogFormatArg>,

    /// A virtio disk, a virtio SCSI controller, or a SCSI host adapter for guests without virtio drivers
    ///
    /// virtio-blk is one disk. virtio-scsi has up to 256. lsi53c895a has up to 15, and needs a VMM with a vfio-user
    /// client, such as QEMU from 11.1 on.
    #[arg(long, value_name = "DEVICE", value_enum, default_value_t = DeviceArg::VirtioBlk, help_heading = "What the guest sees")]
    device: DeviceArg,

    /// Refuse the guest's writes
    #[arg(short, long, help_heading = "What the guest sees")]
    read_only: bool,

    /// Serial number of the disk, at most 20 characters of ASCII; of several disks, once for each
    ///
    /// The default of a SCSI disk is derived from its path, so that it has the same name in the guest after a restart.
    #[arg(long, value_name = "TEXT", value_parser = parse_serial, help_heading = "What the guest sees")]
    serial: Vec<String>,

    /// Smallest unit of a request, a power of two from 512 to 32768 [default: 512, or what DISK requires]
    #[arg(long, value_name = "BYTES", value_parser = parse_block_size, help_heading = "What the guest sees")]
    logical_block_size: Option<u32>,

    /// Most queues a VMM may ask for, 1 to 256; unused ones cost nothing [default: 64]
    ///
    /// A VMM asks for one per processor of the guest and gives up when there are fewer. With virtio-scsi the queues for
    /// control and events come on top, and 254 are the most.
    #[arg(long, value_name = "N", value_parser = parse_queue_or_iothread_count, help_heading = "What the guest sees")]
    num_queues: Option<u16>,

    /// Most entries per queue, a power of two from 2 to 1024 [default: 1024]
    #[arg(long, value_name = "N", value_parser = parse_queue_size, help_heading = "What the guest sees")]
    queue_size: Option<u16>,

    /// Free the space that the guest discards, or ignore discards
    #[arg(long, value_name = "HOW", value_enum, default_value_t = DiscardArg::Unmap, help_heading = "Storage")]
    discard: DiscardArg,

    /// Bypass the host's page cache (O_DIRECT)
    ///
    /// Faster, and needed for Linux AIO. Turn it off for file systems that cannot do it.
    #[arg(
        long,
        value_name = "on|off",
        action = clap::ArgAction::Set,
        value_parser = parse_switch,
        default_value = "on",
        help_heading = "Storage"
    )]
    cache_direct: bool,

    /// I/O backend [default: chosen by probing]
    ///
    /// The default is io_uring if the host allows it and DISK can report that a request would block, else native, or
    /// threads with --cache-direct off.
    #[arg(long, value_name = "HOW", value_enum, help_heading = "Storage")]
    aio: Option<AioArg>,

    /// Complete a write only when it is on stable storage, without waiting for a flush
    #[arg(long, help_heading = "Storage")]
    write_through: bool,

    /// Lock DISK against other writers; auto: if the kernel can
    #[arg(long, value_name = "WHEN", value_enum, default_value_t = LockingArg::Auto, help_heading = "Storage")]
    locking: LockingArg,

    /// Threads that the queues are spread over, at most one per queue
    #[arg(long, value_name = "N", value_parser = parse_queue_or_iothread_count, default_value_t = 1, help_heading = "Performance")]
    iothreads: u16,

    /// CPUs that the threads may run on, such as 0-3,8; once for each thread, or once for all
    ///
    /// Worker threads, which execute blocking system calls, are not bound.
    #[arg(long, value_name = "CPUS", value_parser = parse_cpus, help_heading = "Performance")]
    cpu_affinity: Vec<CpuSetArg>,

    /// Longest busy-polling before a thread blocks, in nanoseconds; 0 = never poll
    #[arg(long, value_name = "NS", value_parser = parse_nanoseconds, default_value_t = DEFAULT_POLL_MAX_NS, help_heading = "Performance")]
    poll_max_ns: u64,

    /// Share of a CPU that polling may use per thread, 0 to 100 percent
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, default_value_t = DEFAULT_POLL_CPU_MAX, help_heading = "Performance")]
    poll_cpu_max: u32,

    /// Most requests submitted to the kernel in one call; 0 = automatic
    #[arg(long, value_name = "N", value_parser = parse_batch_size, default_value_t = 0, help_heading = "Performance")]
    aio_max_batch: u32,

    /// Most requests in flight per thread, 1 to 65536; all programs of a host share fs.aio-max-nr
    #[arg(long, value_name = "N", value_parser = parse_aio_event_count, default_value_t = DEFAULT_AIO_MAX_EVENTS, help_heading = "Performance")]
    aio_max_events: u32,

    /// Merge adjacent requests of one batch (virtio-blk only) [default: on]
    #[arg(long, value_name = "on|off", action = clap::ArgAction::Set, value_parser = parse_switch, help_heading = "Performance")]
    request_merging: Option<bool>,

    /// Offer packed queues; the VMM must ask for them too (QEMU: packed=on)
    #[arg(long, help_heading = "Performance")]
    packed: bool,

    #[command(flatten)]
    rates: RateArgs,
}

const EXAMPLES: &str = "\
Examples:
  Create a disk of 10 GiB unless it exists, and serve it:
    blockplane serve disk.img --size 10G --socket /tmp/disk.sock

  Attach it to a guest of QEMU (the guest's memory has to be shared):
    qemu-system-x86_64 -accel kvm -m 1G \\
        -machine memory-backend=mem \\
        -object memory-backend-memfd,id=mem,size=1G,share=on \\
        -chardev socket,id=disk,path=/tmp/disk.sock \\
        -device vhost-user-blk-pci,chardev=disk

  Attach it to a guest of Cloud Hypervisor:
    cloud-hypervisor --memory size=1G,shared=on \\
        --disk vhost_user=true,socket=/tmp/disk.sock ...

  A logical volume for a busy guest, on four threads:
    blockplane serve /dev/vg0/guest --socket /run/guest.sock \\
        --iothreads 4

  Two disks behind one controller:
    blockplane serve --device virtio-scsi root.img data.img --size 10G \\
        --socket /tmp/scsi.sock

  A disk for a guest that has no virtio drivers:
    blockplane serve --device lsi53c895a disk.img --socket /tmp/lsi.sock

  An image of a Ceph cluster, as the user client.vm:
    blockplane serve rbd:vms/disk:id=vm --socket /tmp/disk.sock

  At most 2000 requests per second, 20000 for the first 30 seconds,
  and 100 MiB of writes:
    blockplane serve disk.img --iops 2000,max=20000,length=30 \\
        --bps write:100M

  Measure everything but the storage:
    blockplane serve null-co: --size 100G --socket /tmp/null.sock";

#[derive(Clone, Copy, ValueEnum)]
enum LogFormatArg {
    Text,
    Json,
}

impl LogFormatArg {
    fn to_log_format(self) -> LogFormat {
        match self {
            Self::Text => LogFormat::Text,
            Self::Json => LogFormat::Json,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DeviceArg {
    VirtioBlk,
    VirtioScsi,
    #[value(name = "lsi53c895a")]
    Lsi53c895a,
}

impl DeviceArg {
    fn to_device(self) -> ServeDevice {
        match self {
            Self::VirtioBlk => ServeDevice::VirtioBlk,
            Self::VirtioScsi => ServeDevice::VirtioScsi,
            Self::Lsi53c895a => ServeDevice::Lsi53c895a,
        }
    }
}

#[derive(Clone, Copy, ValueEnum)]
enum DiscardArg {
    Unmap,
    Ignore,
}

#[derive(Clone, Copy, ValueEnum)]
enum AioArg {
    Native,
    #[value(name = "io_uring")]
    IoUring,
    Threads,
}

#[derive(Clone, Copy, ValueEnum)]
enum LockingArg {
    Auto,
    On,
    Off,
}

/// The grammar of the command. With --config, only options of the process are allowed.
pub(crate) fn grammar() -> clap::Command {
    const PROCESS_OPTIONS: [&str; 8] = [
        "config",
        "pidfile",
        "metrics",
        "sandbox",
        "user",
        "verbose",
        "quiet",
        "log_format",
    ];
    let command = ServeArgs::command();
    let ids = command.get_arguments().map(|arg| arg.get_id().clone());
    let disk_options: Vec<clap::Id> = ids
        .filter(|id| !PROCESS_OPTIONS.contains(&id.as_str()))
        .collect();
    command.mut_arg("config", |config| config.conflicts_with_all(disk_options))
}

/// Parses the arguments of `serve`.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<Invocation, UsageError> {
    let args: ServeArgs = match command::parse("serve", grammar(), args)? {
        ArgsOrHelp::Args(args) => args,
        ArgsOrHelp::Help(help) => return Ok(Invocation::Help(help)),
    };
    if let Some(path) = args.config {
        return Ok(Invocation::ConfigFile(ConfigFileWithOptions {
            log_level: Some(log_level(args.quiet, args.verbose)),
            log_format: args.log_format.map(LogFormatArg::to_log_format),
            pidfile: args.pidfile,
            metrics: args.metrics,
            confinement: Confinement {
                sandbox: args.sandbox,
                user: args.user,
            },
            ..ConfigFileWithOptions::for_path(path)
        }));
    }
    check_and_convert(args)
        .map(Invocation::Serve)
        .map_err(|reason| Problem::Conflict { reason }.in_option("serve"))
}

/// The log level of `--quiet`, or of the number of `--verbose`.
fn log_level(quiet: bool, verbose: u8) -> LogLevel {
    match (quiet, verbose) {
        (true, _) => LogLevel::Error,
        (false, 0) => LogLevel::Info,
        (false, 1) => LogLevel::Debug,
        (false, _) => LogLevel::Trace,
    }
}

/// Checks options against each other, fills in defaults, and converts the arguments to the settings.
fn check_and_convert(args: ServeArgs) -> Result<ServeSettings, String> {
    let disks: Vec<ServeDisk> = args.disk.iter().map(parse_disk).collect::<Result<_, _>>()?;
    let device = args.device.to_device();
    let device_args = DeviceSpecificArgs {
        num_queues: args.num_queues,
        queue_size: args.queue_size,
        packed: args.packed,
        request_merging: args.request_merging,
        iothreads: args.iothreads,
    };
    device::check_disk_count_and_options(device, disks.len(), &device_args)?;
    check_serial_count_and_uniqueness(&args.serial, disks.len())?;
    let has_file_options = args.aio.is_some() || !args.cache_direct;
    check_options_of_network_disks(&disks, args.size.is_some(), has_file_options)?;
    let has_files = disks.iter().any(|disk| matches!(disk, ServeDisk::Path(_)));
    if args.size.is_some() && args.read_only && has_files {
        return Err(
            "--size creates a disk, and --read-only would leave it empty; remove one of them"
                .to_owned(),
        );
    }
    let num_queues = args.num_queues.unwrap_or(DEFAULT_SERVE_QUEUES);
    if args.iothreads > num_queues {
        return Err(format!(
            "--iothreads {} is more than --num-queues {num_queues}: a thread without a queue has nothing to do",
            args.iothreads
        ));
    }
    if let (Some(AioArg::Native), false) = (args.aio, args.cache_direct) {
        return Err(
            "--aio native contradicts --cache-direct off: the kernel would block on every buffered \
             request; use io_uring or threads"
                .to_owned(),
        );
    }
    let cpu_affinity = cpu_set_of_each_iothread(args.cpu_affinity, args.iothreads.into())?;
    let serve = ServeSettings {
        disks,
        device,
        size: args.size,
        socket: args.socket,
        monitor: args.monitor,
        num_queues,
        queue_size: args.queue_size.unwrap_or(MAX_QUEUE_SIZE),
        read_only: args.read_only,
        serials: args.serial,
        cache_direct: args.cache_direct,
        aio: args.aio.map(|aio| match aio {
            AioArg::Native => AioMode::Native,
            AioArg::IoUring => AioMode::IoUring,
            AioArg::Threads => AioMode::Threads,
        }),
        write_through: args.write_through,
        logical_block_size: args.logical_block_size,
        iothreads: args.iothreads,
        aio_max_batch: args.aio_max_batch,
        aio_max_events: args.aio_max_events,
        cpu_affinity,
        poll_max_ns: args.poll_max_ns,
        poll_cpu_max: args.poll_cpu_max,
        request_merging: args.request_merging.unwrap_or(true),
        packed: args.packed,
        locking: match args.locking {
            LockingArg::Auto => Locking::Auto,
            LockingArg::On => Locking::On,
            LockingArg::Off => Locking::Off,
        },
        limits: args.rates.to_group()?.map(Box::new),
        discard: match args.discard {
            DiscardArg::Unmap => Discard::Unmap,
            DiscardArg::Ignore => Discard::Ignore,
        },
        pidfile: args.pidfile,
        metrics: args.metrics,
        confinement: Confinement {
            sandbox: args.sandbox,
            user: args.user,
        },
        log_level: log_level(args.quiet, args.verbose),
        log_format: args.log_format.map(LogFormatArg::to_log_format),
    };
    paths::check_socket_paths_and_duplicates(&serve)?;
    Ok(serve)
}

/// The set of CPUs of each thread.
fn cpu_set_of_each_iothread(
    given: Vec<CpuSetArg>,
    iothreads: usize,
) -> Result<Vec<Vec<u16>>, String> {
    let mut sets: Vec<Vec<u16>> = given.into_iter().map(|CpuSetArg(cpus)| cpus).collect();
    match sets.len() {
        0 => {}
        1 => sets.resize(iothreads, sets[0].clone()),
        count if count == iothreads => {}
        count => {
            return Err(format!(
                "--cpu-affinity is given {count} times for {iothreads} threads (--iothreads); give it once for all, or once for each"
            ));
        }
    }
    Ok(sets)
}

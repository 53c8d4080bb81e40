//! Texts of `--help` for each command, with examples.

pub(super) const QMP: &str = "\
Ask a running daemon: sends a command to its monitor and prints what comes back.

COMMAND is a name with arguments KEY=VALUE. A value is JSON where it is that (5, true, '[\"a\"]'), else a string; \
dots nest (cache.direct=true), numbers make lists (iothread.0=a iothread.1=b). Or it is a request as QMP has it, \
in one word that begins with {. Or it is - : then each line of standard input is one of these (single quotes keep \
blanks, # begins a comment); the first that fails ends it, unless somebody types.

A daemon has a monitor when it was started with --chardev socket,id=c,path=SOCKET,server=on,wait=off --monitor chardev=c. \
docs/qmp.md says what it can be asked; --list asks it. Any QMP monitor will do.

The exit status is 0 when every command was carried out, and 1 for any error, which is printed as CLASS: DESCRIPTION.";

pub(super) const QMP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane qmp /run/disks.qmp --list iothread\n\
\x20 blockplane qmp /run/disks.qmp query-block-exports\n\
\x20 blockplane qmp /run/disks.qmp qom-set path=/objects/io0 \\\n\
\x20     property=poll-max-ns value=50000\n\
\x20 blockplane qmp /run/disks.qmp blockdev-add driver=file node-name=d \\\n\
\x20     filename=d.img cache.direct=true\n\
\x20 blockplane qmp /run/disks.qmp '{\"execute\":\"query-version\"}'\n\
\x20 blockplane qmp /run/disks.qmp --events";

pub(super) const INFO: &str = "\
Show what a running daemon has: its exports and who is connected, its nodes, its iothreads, what was done since it started.

Prints tables, or with --json what they are made from. A dash stands for what the monitor does not say: any QMP \
monitor will do.";

pub(super) const INFO_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane info /run/disks.qmp\n\
\x20 blockplane info /run/disks.qmp exports iothreads\n\
\x20 blockplane info /run/disks.qmp stats --json";

pub(super) const TOP: &str = "\
Watch a running daemon: what each disk and each iothread did in the last interval.

  IOPS      reads and writes per second; MB/s are millions of bytes
  p50, p99  half of them, and 99 of 100, took at most so long: from the
            daemon's taking them off the ring to its answer, to within
            3 %
  BATCH     requests at once, on average: of a disk those that wait
            when its iothread comes to a queue, as its guest makes
            them; of an iothread those of a call into the kernel. The
            more, the less each costs
  DEPTH     requests that the guest waits for at this moment
  CPU       of one processor. An iothread that polls uses it whether
            there is work or not
  POLL HIT  of the times that the iothread polled, so many found
            something before it went to sleep

Keys: q ends it, space holds the figures, tab shows each queue and SCSI unit, left and right change the order, up and down scroll; \
Ctrl-Z suspends it. Where nothing can be drawn (a pipe, TERM=dumb) each interval is a block of lines. NO_COLOR takes \
the colours off. With --once it shows one interval and ends, as a table or as JSON; the JSON has those queues that a \
front-end has used.

The exit status is 1 when the daemon ends, or does not answer within --timeout.";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane top /run/disks.qmp\n\
\x20 blockplane top /run/disks.qmp --queues --interval 500ms\n\
\x20 blockplane top /run/disks.qmp --once --interval 10s --json";

pub(super) const UPGRADE: &str = "\
Put a new version in a running daemon's place: install it where the old one is, then run this. The daemon starts it with the \
arguments that it was started with itself, and hands everything over: sockets, front-ends with their queues, disks with \
their locks, and what was changed over the monitor since. Guests see a pause, which is printed, and no disconnect.

Until the new process has all of it, whatever goes wrong ends the new process only, the old one goes on, and the error says \
what to do. Clients of monitors are disconnected. SIGUSR2 does the same without a monitor. docs/upgrade.md has what is \
handed over and what is not.

The exit status is 0 when the new process goes on, and 1 when the old one does.";

pub(super) const UPGRADE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane upgrade /run/disks.qmp\n\
\x20 blockplane upgrade /run/disks.qmp --binary /opt/blockplane-2/blockplane\n\
\x20 blockplane upgrade /run/disks.qmp --json";

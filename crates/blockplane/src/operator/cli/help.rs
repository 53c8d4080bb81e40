//! Texts and examples of `--help` for `blockplane qmp`, `info`, `top`, `backup`, `mirror`, `bitmap` and `upgrade`.

pub(super) const QMP: &str = "\
Send commands to the monitor of a running daemon and print the replies.

COMMAND is a name with arguments KEY=VALUE. A value that is valid JSON (5, true, '[\"a\"]') is taken as JSON, any other \
as a string; dots nest (cache.direct=true), numbers make lists (iothread.0=a iothread.1=b). COMMAND may also be a \
complete QMP request, in one word that begins with {. With - each line of standard input is a command (single quotes \
keep blanks, # begins a comment); the first error ends the script, unless standard input is a terminal.

A daemon has a monitor when it was started with --chardev socket,id=c,path=SOCKET,server=on,wait=off --monitor chardev=c. \
docs/qmp.md describes its commands; --list shows them. Any QMP monitor works.

The exit status is 0 when every command succeeded, and 1 for any error, which is printed as CLASS: DESCRIPTION.";

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
Show the exports of a running daemon and their front-ends, its nodes, its iothreads, and counters since each export was \
created.

Prints tables, or with --json the replies of the monitor. A dash stands for a value that the monitor does not report; any \
QMP monitor works.";

pub(super) const INFO_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane info /run/disks.qmp\n\
\x20 blockplane info /run/disks.qmp exports iothreads\n\
\x20 blockplane info /run/disks.qmp stats --json";

pub(super) const TOP: &str = "\
Watch a running daemon: the load of each disk and each iothread in the last interval.

  IOPS      reads and writes per second; MB/s are millions of bytes
  p50, p99  latency that 50 % and 99 % of the reads and writes did not
            exceed: from admission by the daemon to its completion, to
            within 3 %
  BATCH     mean batch size: of a disk, requests that the iothread
            found in a queue at once; of an iothread, requests per
            submission to the kernel. Larger batches cost less per
            request
  DEPTH     requests in flight at this moment
  CPU       in percent of one processor. An iothread that polls uses it
            whether there is work or not
  POLL HIT  share of polls that found something before the iothread went
            to sleep

Keys: q quits, space pauses, tab shows each queue and SCSI unit, left and right change the order, up and down scroll; \
Ctrl-Z suspends. Without a capable terminal (a pipe, TERM=dumb) each interval is printed as a block of lines. NO_COLOR \
turns colours off. With --once it prints one interval and ends, as a table or as JSON; the JSON has the queues that a \
front-end has used.

The exit status is 1 when the daemon ends, or does not answer within --timeout.";

pub(super) const TOP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane top /run/disks.qmp\n\
\x20 blockplane top /run/disks.qmp --queues --interval 500ms\n\
\x20 blockplane top /run/disks.qmp --once --interval 10s --json";

pub(super) const BACKUP: &str = "\
Copy a disk as it is at this moment, while its guest works (docs/jobs.md). TARGET is a file, a block device, or an export \
of an NBD server (nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH). A daemon in its sandbox reaches other hosts \
if it was started with --sandbox on,nbd=allow.

Without --incremental all of the disk is copied; a file is a new one. With --incremental BITMAP the first run does the \
same, and the bitmap records from that moment; later runs copy what is dirty to TARGET, which is that of the last run or \
a copy of it. If such a run fails, TARGET is no backup until the next one has succeeded.

On a terminal it shows progress. Ctrl-C cancels: an unfinished new file is removed, and the bitmap has what it had, or is \
not there if this was its first run. If this command is killed, its job goes on, and the file stays. The daemon opens TARGET: a new file \
belongs to its user, if this command may give it away. A shell script needs only the exit status.

The exit status is 0 when TARGET has the disk of the moment, and 1 for any error.";

pub(super) const BACKUP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane backup /run/disks.qmp disk0 /backup/disk0.img\n\
\x20 blockplane backup /run/disks.qmp disk0 /backup/disk0.img \\\n\
\x20     --incremental nightly --speed 200M";

pub(super) const MIRROR: &str = "\
Move a disk to TARGET while its guest works (docs/jobs.md): a new file, a block device, or an export of an NBD server \
(nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH), as large as the disk. A daemon in its sandbox reaches other \
hosts if it was started with --sandbox on,nbd=allow.

All is copied, and what the guest writes meanwhile as well. Then the guest goes over to TARGET, without a pause, and the \
node of before is removed; its file stays. A daemon that is started again, also after a crash, serves what its \
configuration says: change that, and move the old file away. Limits of a throttle node that is moved are gone. For TLS, \
or options of your own, add a node with blockdev-add and use --to-node.

On a terminal it shows progress. Ctrl-C cancels: the guest stays where it is, and an unfinished new file is removed. If \
the connection to the daemon is lost, the job goes on until it is ready; blockplane qmp SOCKET query-jobs shows it.

The exit status is 0 when the guest uses TARGET, and 1 for any error.";

pub(super) const MIRROR_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane mirror /run/disks.qmp disk0 /fast/disk0.img\n\
\x20 blockplane mirror /run/disks.qmp disk0 nbd://host2/disk0 --speed 200M";

pub(super) const BITMAP: &str = "\
Show or change the dirty bitmaps of disks (docs/bitmaps.md): records of which parts were written, for incremental \
backups.

Without a change it lists the bitmaps, of one disk or of all. The options that change one are those of qemu-img \
bitmap. A bitmap that is inconsistent has missed writes, or may have: remove it, and begin with a full backup.";

pub(super) const BITMAP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane bitmap /run/disks.qmp\n\
\x20 blockplane bitmap /run/disks.qmp disk0 nightly --add --persistent\n\
\x20 blockplane bitmap /run/disks.qmp disk0 nightly --remove";

pub(super) const UPGRADE: &str = "\
Live upgrade: replace a running daemon with a new version. Install the new program over the old one, then run this. The \
daemon starts it with its own arguments and hands over sockets, front-ends with their queues, disks with their locks, and \
what was changed over the monitor since. Guests see a pause, which is printed, and no disconnect.

An error before the handover is complete ends the new process only; the old one continues, and the error says what to do. \
Clients of monitors are disconnected. SIGUSR2 does the same without a monitor. docs/upgrade.md lists what is handed over \
and what is not.

The exit status is 0 when the new process runs, and 1 when the old one continues.";

pub(super) const UPGRADE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane upgrade /run/disks.qmp\n\
\x20 blockplane upgrade /run/disks.qmp --binary /opt/blockplane-2/blockplane\n\
\x20 blockplane upgrade /run/disks.qmp --json";

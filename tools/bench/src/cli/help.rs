//! Help texts of the commands, with examples.

pub(super) const LONG_ABOUT: &str = "\
Measures blockplane, or any other vhost-user-blk server.

Results go to standard output: a table, or JSON with --json. Progress goes to standard error. Use an \
optimised build (cargo build --release); figures depend on the machine and on what else it does, so \
compare only what one run measured. The blockplane that is measured is the one beside this program, unless --server or \
BLOCKPLANE_BIN names another.

Experiments that compare blockplane with itself need a second one that was built with a patch: \
`cargo xtask experiment` in the source folder builds it and calls this program. The exit status is 0 when everything was measured and 1 for any \
error.";

pub(super) const EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane serve null-co: --socket /tmp/disk.sock &\n\
\x20 blockplane-bench run /tmp/disk.sock --depth 32\n\
\x20 blockplane-bench compare --folder /mnt/disk --depth 1,32,128\n\
\x20 blockplane-bench targets --only null,tmpfs\n\
`blockplane-bench COMMAND --help` explains each and has more.";

pub(super) const HANDLERS: &str = "\
Does what is idle slow down what is busy?

The loop alone: what it needs to add, delete and dispatch a handler while 10, 1,000 and 100,000 are registered, \
over the kernel's epoll and over a poller that does nothing. A row that is flat within its ± % (half the range, \
in percent of the median) does not depend on the number registered. Needs as many descriptors as handlers; where \
fewer may be opened, fewer are registered and the table says so.

A server: reads through one queue, alone and beside 99 disks with 32 queues each, which are started and have \
nothing to do. Without polling and with it; and where --patched scan-handlers=PATH names one, beside a server whose \
loop looks at all its handlers in every iteration, and at all queues when it polls. ± is the standard error of the mean over the repetitions, in percent of it.";
pub(super) const HANDLERS_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench handlers --only loop\n\
\x20 blockplane-bench handlers --only server --null --idle-disks 50";

pub(super) const BATCH_LIMIT: &str = "\
Random reads under several limits on the number of requests in one submission (aio-max-batch), through one \
queue and through several on the same iothread. A server for each limit; they are loaded in turn. Without a \
limit an iteration of the server still takes only 64 requests from a queue; 'pile-up' takes that bound off as well. \
'adaptive' is a limit that follows the disk. These two are servers that were built with a patch \
(--patched pile-up=PATH, --patched adaptive-batch=PATH).

± is the standard error of the mean over the repetitions, in percent of it.";
pub(super) const BATCH_LIMIT_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench batch-limit --tmpfs --limit 8,32,128 --queues 4";

pub(super) const NOTIFY: &str = "\
Random reads from a server that signals its guest right after the last completion of a batch, as it does, and \
from one that hands new requests to the kernel first, which was built with a patch (--patched late-notify=PATH). Has the distance from the last completion to the \
signal too when the server was built with --features latency-trace.

± is the standard error of the mean over the repetitions, in percent of it.";
pub(super) const NOTIFY_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench notify --folder /mnt/disk --client blocking \\\n\
\x20     --patched late-notify=/tmp/late/blockplane";

pub(super) const COMPLETION_RING: &str = "\
Random reads and writes from a server that reads Linux AIO's completions in user space, as it does, and from one \
that calls io_getevents(2), which was built with a patch (--patched completion-syscall=PATH); and how many system calls that takes per request.

± is the standard error of the mean over the repetitions, in percent of it.";
pub(super) const COMPLETION_RING_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench completion-ring --tmpfs --queues 2 --depth 1,16 \\\n\
\x20     --patched completion-syscall=/tmp/getevents/blockplane";

pub(super) const MONITORS: &str = "\
A guest's random reads from a server with a monitor: without a client, and beside 100 clients that are connected and \
silent, ask 100 or 1,000 questions per second in sum, or each ask again as soon as they are answered. One of them asks \
for the longest answer there is and never reads. Iothread and guest are bound to a processor each; clients, \
and the server's threads that answer them, run anywhere (--clients-cpu). What clients use is taken from the guest \
as well where there are no other processors: with --clients-nice 19 they take only idle time.

Shows the guest's IOPS, and their ratio to those without clients in the same repetition; how many questions were answered, how long \
that took, and the processor time of the two threads that answer. ± is the standard error of the mean over the \
repetitions, in percent of it.";
pub(super) const MONITORS_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench monitors --null --repetitions 7\n\
\x20 blockplane-bench monitors --null --rate max --clients-nice 19";

pub(super) const SCSI: &str = "\
Random writes and reads through an LSI53C895A (over vfio-user, with the SCRIPTS of a driver), through a virtio SCSI \
controller and as a virtio disk, and on the host itself; a server each, loaded in turn. Last, small reads, in IOPS.

'LSI, as of old' is what emulations of this adapter did until 2008: a write keeps the SCSI bus until the disk has done \
it, so that nothing else goes on, and requests go in pieces, one after the other. Here the driver asks for both: \
it does not let writes disconnect, and cuts its requests. 'LSI, pieces' queues writes like reads. 'LSI' \
sends whole requests as well.

The driver writes a register for each command, which the monitor posts. With --client blocking it also serves an \
interrupt as Linux does, with two reads of a register that the guest waits for; a polling one looks at its done queue \
instead. Exits of a virtual processor are not emulated: a guest is slower than this client.

± is the standard error of the mean over the repetitions, in percent of it; ratios are of the pairs in each repetition.";
pub(super) const SCSI_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench scsi --folder /mnt/disk --svg scsi.svg\n\
\x20 blockplane-bench scsi --null --client blocking --repetitions 9";

pub(super) const IDLE: &str = "\
Starts one server with many disks, starts all their queues, and watches it do nothing: processor time, \
wake-ups, memory per queue, descriptors, threads. Once with null-co behind each disk and once with a \
file.

Expected are 0 wake-ups. Every disk takes some descriptors here and in the server: see `ulimit -Hn`.";
pub(super) const IDLE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench idle --disks 10 --queues 4";

pub(super) const RUN: &str = "\
Connects to the socket of a vhost-user-blk server as a virtual machine does, and keeps so many requests \
in flight on its queues. Takes of the protocol what the server has.

Shows medians over the repetitions, their range, and half of it in percent (±). Latency is from \
sending a request to finding its answer, to within one part in 64. The client is saturated when it \
found nothing to do in less than 5 % of the time: the server could do more. The server is saturated \
when one of its threads used 95 % of a processor or more: it has no time left, or it polls.

With --json, `each` has the counts of each repetition, to be compared with those of the server: `requests` are those \
that the figures are made of, `requests_in_all` has those of the warm-up and of the end too. With --status-interval, \
`course` lists how many of a thread's requests had completed by when, as pairs of nanoseconds of the monotonic clock \
and a count.

With --verify nothing is measured: for --time, blocks are written that hold their place, a count and a \
seed; what is read meanwhile is compared, and in the end all is flushed and read back, through other \
queues than it was written through. The first difference is an error that says where it is, what was \
expected and what came.";
pub(super) const RUN_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench run /tmp/disk.sock --depth 1 --client blocking\n\
\x20 blockplane-bench run /tmp/disk.sock --pattern randrw:70 --bs 16k \\\n\
\x20     --queues 4 --destroy-data\n\
\x20 blockplane-bench run /tmp/disk.sock --pattern randrw --verify \\\n\
\x20     --destroy-data --time 10s";

pub(super) const TARGETS: &str = "\
Measures every ratio that blockplane is meant to reach, and says which of them it does. All of it takes \
some minutes; --only measures a part. A row is met when the median of its ratios is at least what was \
wanted; the exit status does not depend on it.

Needs two processors that have nothing else to do, and qemu-storage-daemon (see --peer).";
pub(super) const TARGETS_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench targets --folder /mnt/disk\n\
\x20 blockplane-bench targets --only null,idle --time 1s --repetitions 3";

pub(super) const COMPARE: &str = "\
Puts the same load on several servers and on the host itself, in turn: each repetition visits each of \
them once. By default blockplane is compared with the same file read without any server (raw), and \
with qemu-storage-daemon if that is installed; both servers get the same command line.

raw is what a program on the host gets at best: one thread with all requests in flight, through the \
io that blockplane itself uses, on the processor where the servers run.

Images of Ceph RBD exist already (`rbd create`). Fill them before reading (`rbd bench --io-type write \
--io-pattern seq`): what was never written is read without the cluster's disks. Only the contender that \
is measured has them open, since a writer locks its image: servers are started and stopped in turn. \
librbd's cache is off in all. raw is then one thread that does nothing but call librbd: where it is no \
faster than a server, librbd is the limit. It sleeps until librbd wakes it, whatever the client does. \
Processor time is that of the whole process, with librbd's threads; the cluster's daemons run where \
they like. Where they have no other processors, compare with --client blocking.

Needs two processors that have nothing else to do: one for the servers, one for the client. With \
several iothreads, see --no-pinning.";
pub(super) const COMPARE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench compare --folder /mnt/disk --depth 1,32,128 \\\n\
\x20     --svg disk.svg\n\
\x20 blockplane-bench compare --backing null,tmpfs --client polling,blocking\n\
\x20 blockplane-bench compare --aio io_uring \\\n\
\x20     --servers ours,raw:io_uring,qemu-storage-daemon:io_uring\n\
\x20 blockplane-bench compare --servers ours --backing null \\\n\
\x20     --socket /tmp/other.sock\n\
\x20 blockplane-bench compare --backing nbd:/tmp/nbdkit.sock --depth 32\n\
\x20 blockplane-bench compare --backing rbd:rbd/disk:conf=/etc/ceph/a.conf \\\n\
\x20     --client blocking --disks 8 --iothreads 2 --no-pinning";

pub(super) const THROTTLE: &str = "\
Starts blockplane and qemu-storage-daemon with the same throttle groups, and a client that always wants more.

Accuracy: what has passed since the first request, beside what the bucket of the limit gives in theory: the \
rate, and the burst that an empty bucket holds. A disk that cannot do as much as the limit is off by that. Spacing: \
the time between completions at iops-total=10000 and depth 32 on null-co, and the server's processor time per \
request. Shares: four members of a group with iops-total=10000 on two iothreads, at depths 1, 8, 32 and 128.

Every measurement has a server of its own, whose buckets are empty.";
pub(super) const THROTTLE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench throttle --only accuracy --backing null,file\n\
\x20 blockplane-bench throttle --only accuracy --depth 32 --bs 4k \\\n\
\x20     --after 1s,2s,4s,8s --limit \\\n\
\x20     iops-total=10000,iops-total-max=50000,iops-total-max-length=2\n\
\x20 blockplane-bench throttle --only shares --servers ours";

pub(super) const NEIGHBOURS: &str = "\
Reads one disk with a single request in flight, alone and while another disk of the same server has 256 requests in \
flight: writes of 1 MiB, discards of 1 MiB, unaligned reads of 4 KiB, and reads of 4 KiB whose signals block the \
server, since the client has made its call eventfd blocking and filled it; on the same iothread and on another one. \
qemu-storage-daemon does not survive the last one and is left out there. Each disk has a temporary file of its own, \
or null-co.

Shows the reads' latency, and the ratio of their rates by the median latency.";
pub(super) const NEIGHBOURS_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench neighbours --backing null,tmpfs --size 256M";

pub(super) const BACKUP: &str = "\
Puts a guest's load on a disk while no job runs, and then while blockdev-backup copies all of the disk at full speed to \
a new file at the same place. Before that, the job runs once without any load. blockplane and qemu-storage-daemon get \
the same command line and the same commands, but that the latter serves the disk in its main thread unless \
--peer-iothread is given: version 11.1 hangs or aborts when a job begins on an iothread under load.

The guest's requests count from right before the command until the event that the job is completed: whole jobs only. \
Those in flight at the end count for the latency as well. As \
long as --time has not passed in jobs, another one begins, to another new file. Each measurement has a server of its \
own. The disk is a temporary file of random data; the backup takes as much room again.

Shows the guest's IOPS and latency without a job and with one, their ratios, and the seconds of a job without load and \
under load. A second table compares the first server with each other one, in pairs of repetitions.";
pub(super) const BACKUP_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench backup --folder /mnt/disk --repetitions 5\n\
\x20 blockplane-bench backup --backing tmpfs --size 512M --depth 32 \\\n\
\x20     --pattern randrw:70";

pub(super) const NBD: &str = "\
Starts NBD servers in turn with the same disk, and fio with its engine nbd (libnbd) as their client, on a Unix socket. \
blockplane and qemu-storage-daemon get the same command line, but that blockplane has iothreads; qemu-nbd gets the \
same options of the disk. nbdkit has its \
plugin file, which uses the page cache, or null, which fills buffers with zeroes where null-co does nothing.

Every measurement has a server of its own. The processor time is that of all of its threads, per request.";
pub(super) const NBD_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench nbd\n\
\x20 blockplane-bench nbd --rw randwrite --backing file --size 256M";

pub(super) const GENERATE_EXAMPLES: &str = "\
Examples:\n\
\x20 blockplane-bench generate man pages";

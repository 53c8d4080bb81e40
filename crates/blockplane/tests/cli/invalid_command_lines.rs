//! Command lines that are refused: status 1, one message that names the option, and
//! nothing created.

use crate::process::Folder;

/// A command line, and what its message must name.
type Refusal<'a> = (&'a str, &'a [&'a str]);

const EXPORT: &str = "vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s";

fn check(before: &str, refusals: &[Refusal<'_>]) {
    for (line, words) in refusals {
        let folder = Folder::new();
        let line = format!("{before} {line}");
        eprintln!("blockplane {line}");
        folder.run(&line).assert_fails_naming(words);
        assert_eq!(folder.names(), [""; 0], "{line}");
    }
}

#[test]
fn unknown_option_is_reported_with_a_suggestion() {
    check(
        "",
        &[
            ("--nonsense", &["--nonsense"]),
            ("-x", &["-x"]),
            ("-Z", &["-Z"]),
            ("--blokdev null-co", &["--blokdev", "--blockdev"]),
            ("-blockdev null-co", &["-blockdev", "--blockdev"]),
            ("serve null-co: --nonsense", &["--nonsense"]),
            ("serve null-co: --num-queue 2", &["--num-queue"]),
            ("disk.img", &["disk.img", "blockplane serve disk.img"]),
            ("--daemonize disk.img", &["disk.img"]),
            ("help nonsense", &["nonsense"]),
        ],
    );
}

#[test]
fn missing_and_surplus_arguments_are_named() {
    check(
        "",
        &[
            ("--export", &["--export"]),
            ("--blockdev", &["--blockdev"]),
            ("--pidfile", &["--pidfile"]),
            ("--pidfile=", &["--pidfile"]),
            ("--daemonize=yes", &["--daemonize"]),
            ("serve", &["serve", "DISK"]),
            ("serve null-co: disk.img", &["2 are given", "--device"]),
            ("serve null-co: --size", &["--size"]),
        ],
    );
}

#[test]
fn unsupported_options_of_qemu_storage_daemon_are_named() {
    check(
        "",
        &[
            ("--chardev stdio,id=c", &["--chardev", "not supported"]),
            (
                "--chardev socket,id=c,path=p,server=on --monitor c,mode=readline",
                &["--monitor", "not supported"],
            ),
            (
                "--nbd-server addr.type=inet,addr.host=0.0.0.0,addr.port=1",
                &["--nbd-server", "add 'tls-creds'"],
            ),
            ("-T enable=x", &["--trace", "not supported"]),
            (
                "--blockdev qcow2,node-name=q,file=f",
                &["--blockdev", "qcow2"],
            ),
        ],
    );
    check(
        "--blockdev null-co,node-name=d",
        &[
            (
                "--export nbd,id=e,node-name=d",
                &["--export", "NBD server not running"],
            ),
            (
                "--export fuse,id=e,node-name=d,mountpoint=m",
                &["--export", "fuse"],
            ),
        ],
    );
}

#[test]
fn invalid_values_are_reported_with_their_key() {
    check(
        "",
        &[
            ("serve null-co: --size 0", &["--size"]),
            ("serve null-co: --size 513", &["--size", "512"]),
            ("serve null-co: --num-queues 257", &["--num-queues", "256"]),
            (
                "serve null-co: --queue-size 100",
                &["--queue-size", "power of two"],
            ),
            (
                "serve null-co: --serial 123456789012345678901",
                &["--serial", "20"],
            ),
            (
                "--blockdev null-co,node-name=d,size=x",
                &["--blockdev", "size", "'x'"],
            ),
            (
                "--blockdev null-co,node-name=d,nonsense=1",
                &["--blockdev", "nonsense"],
            ),
            (
                "--blockdev nonsense,node-name=d",
                &["--blockdev", "nonsense"],
            ),
            ("--blockdev {\"driver\":\"null-co\"", &["--blockdev"]),
            (
                "--blockdev {\"driver\":\"null-co\",\"node-name\":7}",
                &["--blockdev", "node-name"],
            ),
            ("--object nonsense,id=o", &["--object", "nonsense"]),
            (
                "--object iothread,id=o,poll-max-ns=-1",
                &["--object", "poll-max-ns"],
            ),
        ],
    );
    let export = |rest: &str| format!("--export {EXPORT},{rest}");
    check(
        "--blockdev null-co,node-name=d",
        &[
            (&export("num-queues=0"), &["--export", "num-queues"]),
            (
                &export("num-queues=257"),
                &["--export", "num-queues", "256"],
            ),
            (
                &export("writable=maybe"),
                &["--export", "writable", "maybe"],
            ),
            (
                &export("logical-block-size=1000"),
                &["--export", "logical-block-size"],
            ),
            (&export("vhost=on"), &["--export", "vhost"]),
        ],
    );
}

#[test]
fn contradictory_options_are_named() {
    check(
        "",
        &[
            (
                "serve null-co: --quiet --verbose",
                &["--quiet", "--verbose"],
            ),
            (
                "serve disk.img --size 1M --read-only",
                &["--size", "--read-only"],
            ),
            (
                "serve null-co: --num-queues 2 --iothreads 3",
                &["--iothreads", "--num-queues"],
            ),
        ],
    );
    let export = format!("--export {EXPORT}");
    check(
        "",
        &[
            (
                &format!("--blockdev null-co,node-name=d,read-only=on {export},writable=on"),
                &["--export", "writable", "'d'", "read-only"],
            ),
            (
                "--blockdev file,node-name=f,filename=x,aio=native,cache.direct=off",
                &["--blockdev", "aio", "cache.direct"],
            ),
            (
                &format!("--blockdev null-co,node-name=d {export},addr.str=3"),
                &["--export", "addr.str"],
            ),
            (
                "--blockdev null-co,node-name=d --blockdev null-co,node-name=d",
                &["--blockdev (number 2)", "'d'"],
            ),
            (
                "--object iothread,id=o --object iothread,id=o",
                &["--object (number 2)", "'o'"],
            ),
            (
                &format!(
                    "--blockdev null-co,node-name=d {export} {}",
                    export.replace("addr.path=s", "addr.path=t")
                ),
                &["--export (number 2)", "'e'"],
            ),
            (
                &format!(
                    "--blockdev null-co,node-name=d {export} {}",
                    export.replace("id=e", "id=f")
                ),
                &["--export (number 2)", "'s'"],
            ),
        ],
    );
}

/// Objects are made in the order of the command line, so what is named must stand before.
#[test]
fn option_refers_only_to_earlier_objects() {
    let (node, export) = (
        "--blockdev null-co,node-name=d",
        format!("--export {EXPORT}"),
    );
    check(
        "",
        &[
            (
                &format!("{export} {node}"),
                &["--export", "node-name", "'d'", "before"],
            ),
            (
                &format!("{node} {export},iothread=io --object iothread,id=io"),
                &["--export", "iothread", "'io'", "before"],
            ),
            (
                &format!("--blockdev raw,node-name=r,file=d {node}"),
                &["--blockdev", "file", "'d'", "before"],
            ),
        ],
    );
}

#[test]
fn failed_start_removes_what_it_created() {
    let first = format!("--blockdev null-co,node-name=d --export {EXPORT}");
    check(
        &first,
        &[
            (
                "--blockdev file,node-name=f,filename=missing.img",
                &["missing.img"],
            ),
            (
                "--export vhost-user-blk,id=f,node-name=d,addr.type=unix,addr.path=no/such/folder",
                &["no/such/folder"],
            ),
            ("--pidfile no/such/folder", &["--pidfile", "no/such/folder"]),
        ],
    );
}

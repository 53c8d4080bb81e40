//! Options that are described and read back, as in a live upgrade, are unchanged.

use options::{BlockdevOptions, Directive, ObjectOptions, parse};
use serde_json::Value;

use crate::kinds::{LEAST, keys_of, written};

/// Options before the tested one, for its references.
const BEFORE: &str = "--object iothread,id=a --object iothread,id=b --object secret,id=key,file=/key \
     --object throttle-group,id=g --object throttle-group,id=limits \
     --object tls-creds-x509,id=creds,dir=/d --object authz-list,id=list \
     --blockdev null-co,node-name=below --blockdev null-co,node-name=a \
     --nbd-server addr.type=fd,addr.str=nbd \
     --chardev socket,id=m,path=/m,server=on,wait=off --chardev socket,id=a,path=/a,server=on,wait=off";

fn read(option: &str, text: &str) -> Result<Directive, String> {
    let mut before: Vec<&str> = BEFORE.split_whitespace().collect();
    if option == "--nbd-server" {
        // There is one.
        before.retain(|word| !word.starts_with("--nbd-server") && !word.ends_with("=nbd"));
    }
    let words = before.into_iter().chain([option, text]);
    match parse(words.map(Into::into)) {
        Ok(options::Invocation::Daemon(mut daemon)) => Ok(daemon.directives.pop().expect("one")),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn describe(directive: &Directive) -> Value {
    let none = |_: &str| None::<&BlockdevOptions>;
    let described = match directive {
        Directive::Object(ObjectOptions::Iothread(options)) => options.to_json(),
        Directive::Object(ObjectOptions::Secret(options)) => options.to_json(),
        Directive::Object(ObjectOptions::ThrottleGroup(options)) => options.to_json(),
        Directive::Object(ObjectOptions::TlsCreds(options)) => options.to_json(),
        Directive::Object(ObjectOptions::AuthzList(options)) => options.to_json(),
        Directive::Blockdev(options) => options.to_json(&none),
        Directive::NbdServer(options) => options.to_json(),
        Directive::Export(options) => options.to_json(),
        Directive::Chardev(options) => options.to_json(),
        Directive::Monitor(options) => options.to_json(),
    };
    described.expect("every path is text")
}

#[track_caller]
fn assert_read_again(option: &str, directive: &Directive) {
    let description = describe(directive).to_string();
    assert_eq!(
        read(option, &description).as_ref(),
        Ok(directive),
        "{description}"
    );
}

/// Values to try for each key, in addition to the words in its help.
const VALUES: [&str; 12] = [
    "a",
    "key",
    "limits",
    "0",
    "1",
    "2",
    "4",
    "4096",
    "0x5000000000000001",
    "/x",
    "0-3",
    "0:7",
];

/// Keys that need more than one value; the tests below cover them.
const NOT_ALONE: [&str; 25] = [
    "bitmaps",
    "rules",
    "tls-authz",
    "tls-creds",
    "tls-hostname",
    "auth-client-required",
    "data",
    "addr.type",
    "addr.str",
    "fd",
    "iothread-vq-mapping",
    "luns",
    "server",
    "server.type",
    "server.host",
    "server.port",
    "server.ipv4",
    "server.ipv6",
    "type",
    "driver",
    "addr.host",
    "addr.port",
    "addr.ipv4",
    "addr.ipv6",
    "addr.path",
];

#[test]
fn every_key_is_read_back_unchanged() {
    // What cannot be handed over is not described, see below.
    let described = LEAST
        .iter()
        .filter(|(_, kind, _)| !matches!(*kind, "blkdebug" | "snapshot-access"));
    for (option, kind, least) in described {
        let (option_word, least) = (format!("--{option}"), written(kind, least));
        for key in keys_of(option, kind) {
            let least = format!("{least}{}", needed_beside(key.name));
            let default = read(&option_word, &least).expect("the least is enough");
            assert_read_again(&option_word, &default);
            // A key with one word has no other value.
            let is_alone = !NOT_ALONE.contains(&key.name) && !needs_limit(key.name);
            // Refused for these, though it is among the keys of all exports.
            let is_refused =
                matches!(*kind, "vfio-user-lsi53c895a" | "nbd") && key.name == "allow-inactive";
            if !is_alone || is_refused || is_one_word(key.placeholder) {
                continue;
            }
            let mut other_than_default = false;
            for value in VALUES.into_iter().chain(key.placeholder.split('|')) {
                let text = format!("{least},{}={value}", key.name);
                if let Ok(directive) = read(&option_word, &text) {
                    assert_read_again(&option_word, &directive);
                    other_than_default |= directive != default;
                }
            }
            assert!(
                other_than_default,
                "{option} {kind}: no value here changes '{}'",
                key.name
            );
        }
    }
}

#[test]
fn versions_of_ip_are_read_back_unchanged_and_choose_addresses() {
    for (versions, addresses) in [
        ("", &["127.0.0.1:1", "[::1]:1"][..]),
        ("ipv4=on", &["127.0.0.1:1"]),
        ("ipv4=off", &["[::1]:1"]),
        ("ipv6=on", &["[::1]:1"]),
        ("ipv4=on,ipv6=on", &["127.0.0.1:1", "[::1]:1"]),
    ] {
        let of = |prefix: &str| {
            let keys = versions.split(',').filter(|key| !key.is_empty());
            keys.map(|key| format!(",{prefix}.{key}"))
                .collect::<String>()
        };
        let keys = of("addr");
        let server = format!("addr.type=inet,addr.host=localhost,addr.port=1{keys}");
        let server = read("--nbd-server", &server).unwrap();
        assert_read_again("--nbd-server", &server);
        let Directive::NbdServer(options) = &server else {
            panic!("{server:?}");
        };
        let found = options.addr.tcp_addresses();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, addresses, "{versions}");
        let node = "nbd,node-name=n,server.type=inet,server.host=h,server.port=1";
        let node = read("--blockdev", &format!("{node}{}", of("server"))).unwrap();
        assert_read_again("--blockdev", &node);
    }
    let none = "addr.type=inet,addr.host=localhost,addr.port=1,addr.ipv4=off,addr.ipv6=off";
    assert!(read("--nbd-server", none).is_err());
    let other = "addr.type=inet,addr.host=::1,addr.port=1,addr.ipv4=on";
    assert!(read("--nbd-server", other).is_err());
}

#[test]
fn tls_is_read_back_unchanged() {
    for (option, text) in [
        (
            "--object",
            "authz-list,id=l,policy=allow,rules.0.match=CN=a*,rules.0.format=glob,rules.0.policy=deny,rules.1.match=b,\
             rules.1.policy=allow",
        ),
        (
            "--nbd-server",
            "addr.type=inet,addr.host=0.0.0.0,addr.port=1,tls-creds=creds,tls-authz=list",
        ),
        (
            "--blockdev",
            "nbd,node-name=n,server.type=unix,server.path=/s,tls-creds=creds,tls-hostname=h",
        ),
    ] {
        let directive = read(option, text).expect("the options are valid");
        assert_read_again(option, &directive);
        assert!(describe(&directive).to_string().contains("creds") || option == "--object");
    }
}

/// The options that a key needs beside it.
fn needed_beside(key: &str) -> &'static str {
    match key {
        "force-share" => ",read-only=on",
        "detect-zeroes" => ",discard=unmap",
        _ => "",
    }
}

/// Whether a key of a throttle group needs the key of a limit; a test below covers them.
fn needs_limit(key: &str) -> bool {
    key.ends_with("-max") || key.ends_with("-max-length") || key == "limits.iops-size"
}

/// Whether the placeholder in the help is one literal word.
fn is_one_word(value: &str) -> bool {
    value.bytes().all(|byte| {
        byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'_' | b'-')
    })
}

#[test]
fn sockets_and_lists_are_read_back_unchanged() {
    for (option, text) in [
        (
            "--export",
            "vhost-user-blk,id=e,node-name=below,addr.type=fd,addr.str=7",
        ),
        (
            "--export",
            "vhost-user-blk,id=e,node-name=below,addr.type=fd,addr.str=name",
        ),
        ("--nbd-server", "addr.type=fd,addr.str=7"),
        (
            "--export",
            "nbd,id=e,node-name=below,bitmaps.0=b,bitmaps.1.node=below,bitmaps.1.name=c",
        ),
        ("--nbd-server", "addr.type=fd,addr.str=name"),
        (
            "--nbd-server",
            "addr.type=inet,addr.host=localhost,addr.port=10809",
        ),
        (
            "--nbd-server",
            "addr.type=inet,addr.host=::,addr.port=0,allow-plaintext=on",
        ),
        ("--chardev", "socket,id=c,path=/s"),
        ("--chardev", "socket,id=c,path=/s,server=on"),
        ("--chardev", "socket,id=c,fd=7,server=on"),
        ("--chardev", "socket,id=c,fd=name,server=on"),
    ] {
        assert_read_again(option, &read(option, text).expect("right"));
    }
}

#[test]
fn bursts_of_throttle_groups_are_read_back_unchanged() {
    for limits in [
        ["iops-total", "bps-total"],
        ["iops-read", "bps-read"],
        ["iops-write", "bps-write"],
    ] {
        let limits = limits.map(|limit| {
            format!("limits.{limit}=1,limits.{limit}-max=2,limits.{limit}-max-length=3")
        });
        let text = format!(
            "throttle-group,id=t,limits.iops-size=4096,{}",
            limits.join(",")
        );
        assert_read_again("--object", &read("--object", &text).expect("right"));
    }
}

#[test]
fn secrets_and_disks_behind_a_network_are_read_back_unchanged() {
    for (option, text) in [
        (
            "--blockdev",
            "nbd,node-name=n,server.type=inet,server.host=::1,server.port=10809,export=a,,b,\
             reconnect-delay=5,open-timeout=6,stop-timeout=7",
        ),
        ("--object", "secret,id=s,data=a,,b"),
        ("--object", "secret,id=s,data=YQ==,format=base64"),
        (
            "--blockdev",
            "rbd,node-name=n,pool=p,image=i,auth-client-required.0=cephx,auth-client-required.1=none,\
             server.0.host=::1,server.0.port=3300,server.1.host=mon,server.1.port=6789",
        ),
        // Inherited settings that an image does not take itself.
        (
            "--blockdev",
            "raw,node-name=n,cache.direct=off,file.driver=rbd,file.node-name=f,file.pool=p,file.image=i,file.snapshot=s",
        ),
    ] {
        assert_read_again(option, &read(option, text).expect("right"));
    }
}

#[test]
fn queues_stay_on_their_iothreads() {
    let mapping = "iothread-vq-mapping.0.iothread=b,iothread-vq-mapping.0.vqs.0=1,\
                   iothread-vq-mapping.1.iothread=a,iothread-vq-mapping.1.vqs.0=0,iothread-vq-mapping.1.vqs.1=2";
    for iothreads in ["iothread.0=b,iothread.1=a", mapping] {
        let text = format!(
            "vhost-user-blk,id=e,node-name=below,addr.type=unix,addr.path=/s,num-queues=3,{iothreads}"
        );
        assert_read_again("--export", &read("--export", &text).expect("right"));
    }
}

#[test]
fn disks_of_a_controller_are_read_back_unchanged() {
    for kind in ["vhost-user-scsi", "vfio-user-lsi53c895a"] {
        let text = format!(
            "{kind},id=e,addr.type=unix,addr.path=/s,writable=on,luns.0.node-name=below,luns.0.target=3,\
             luns.0.lun=5,luns.0.writable=off,luns.0.serial=S,luns.0.rotation-rate=0,luns.1.node-name=below"
        );
        assert_read_again("--export", &read("--export", &text).expect("right"));
    }
    let empty = "vhost-user-scsi,id=e,addr.type=unix,addr.path=/s";
    assert_read_again("--export", &read("--export", empty).expect("right"));
}

#[test]
fn a_node_written_inside_another_is_described_with_its_present_options() {
    let text = "raw,node-name=n,file.driver=file,file.node-name=f,file.filename=/f";
    let Ok(Directive::Blockdev(node)) = read("--blockdev", text) else {
        panic!("right");
    };
    let Ok(Directive::Blockdev(now)) =
        read("--blockdev", "file,node-name=f,filename=/f,aio=threads")
    else {
        panic!("right");
    };
    let current = |name: &str| (name == "f").then_some(&now);
    let description = node.to_json(&current).expect("text");
    assert_eq!(description["file"]["aio"], "threads");
    assert_eq!(description["file"]["filename"], "/f");
}

#[test]
fn a_node_with_faults_is_not_described() {
    let Ok(Directive::Blockdev(node)) = read("--blockdev", "blkdebug,node-name=n,image=below")
    else {
        panic!("right");
    };
    let error = node
        .to_json(&|_| None)
        .expect_err("its faults are no option");
    assert!(error.to_string().contains("restart instead"), "{error}");
}

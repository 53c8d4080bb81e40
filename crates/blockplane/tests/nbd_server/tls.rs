//! Encrypted connections: clients of others see what they wrote, and clients without the right certificate see nothing.

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use nbd::wire::{OPTION_MAGIC, OptionHeader, OptionReplyHeader, option, option_reply};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::certificates::{Authority, Side};
use test_support::deadline::eventually;
use test_support::report;

use crate::process::{Folder, Process, ProcessOutput, STUCK_AFTER};
use crate::raw_client::RawClient;
use crate::upgraded_daemon::Daemon;
use crate::{MIB, start};

/// Certificates of the server in `server`, and of a client in `client`. `None`: there is no openssl.
fn certificates(folder: &Folder) -> Option<Authority> {
    let authority = Authority::new(&folder.join("authority"))?;
    let (server, client) = (folder.join("server"), folder.join("client"));
    authority.issue(&server, Side::Server, "/CN=localhost");
    authority.issue(&client, Side::Client, "/C=GB/O=Example/CN=client");
    Some(authority)
}

/// Options for a writable export of the image `disk` by a server with TLS.
fn tls_line(creds: &str, server: &str) -> String {
    format!(
        "--object tls-creds-x509,id=tls0,dir=server,endpoint=server{creds} \
         --blockdev file,node-name=d,filename=disk,cache.direct=off \
         --nbd-server addr.type=unix,addr.path=nbd,tls-creds=tls0{server} \
         --export nbd,id=e,node-name=d,writable=on"
    )
}

/// The URI of the export, for libnbd, with the certificates of a folder.
fn uri(folder: &Folder, certificates: &str) -> String {
    let path = folder.path().display();
    format!(
        "nbds+unix://localhost/d?socket={path}/nbd&tls-hostname=localhost&tls-certificates={path}/{certificates}"
    )
}

fn run(folder: &Folder, program: &str, args: &[&str]) -> ProcessOutput {
    let mut command = Command::new(program);
    command.args(args).current_dir(folder.path());
    Process::spawn(command).ended()
}

#[track_caller]
fn run_well(folder: &Folder, program: &str, args: &[&str]) -> String {
    let output = run(folder, program, args);
    let stderr = &output.stderr;
    assert!(output.code == Some(0), "{program} {args:?}: {stderr}");
    output.stdout
}

/// Whether libnbd's client with these certificates is served.
fn is_served(folder: &Folder, certificates: &str) -> bool {
    let uri = uri(folder, certificates);
    let output = run(folder, "nbdinfo", &["--size", &uri]);
    assert_eq!(output.stdout.trim().is_empty(), output.code != Some(0));
    output.code == Some(0)
}

#[test]
fn nbdcopy_over_tls_reads_back_what_it_wrote() {
    let folder = Folder::new();
    if !report::installed("nbdcopy") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", 64 * MIB);
    let line = tls_line("", "").replace(
        "node-name=d,writable",
        "node-name=d,iothread.0=a,iothread.1=b,writable",
    );
    let line = format!("--object iothread,id=a --object iothread,id=b {line}");
    let (program, _client) = start(&folder, &line);
    let uri = uri(&folder, "client");
    let info = run_well(&folder, "nbdinfo", &["--json", &uri]);
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["TLS"], true);
    let noise = (0u32..16 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    let noise: Vec<u8> = noise.collect();
    fs::write(folder.join("noise"), &noise).unwrap();
    for size in ["65536", "33554432"] {
        let size = format!("--request-size={size}");
        let copy = |from: &str, to: &str| {
            let args = [
                "--connections=4",
                "--requests=64",
                "--flush",
                &size,
                from,
                to,
            ];
            run_well(&folder, "nbdcopy", &args)
        };
        fs::File::create(folder.join("disk"))
            .unwrap()
            .set_len(64 * MIB)
            .unwrap();
        copy("noise", &uri);
        assert!(fs::read(folder.join("disk")).unwrap() == noise, "{size}");
        copy(&uri, "copy");
        assert!(fs::read(folder.join("copy")).unwrap() == noise, "{size}");
        fs::remove_file(folder.join("copy")).unwrap();
    }
    program.stop();
}

#[test]
fn qemu_over_tls_reads_back_what_it_wrote() {
    let folder = Folder::new();
    if !report::installed("qemu-io") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", 8 * MIB);
    let (program, _client) = start(&folder, &tls_line("", ""));
    let path = folder.path().display();
    let creds = format!("tls-creds-x509,id=t,dir={path}/client,endpoint=client");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={path}/nbd,export=d,tls-creds=t,tls-hostname=localhost"
    );
    let args = [
        "--object",
        &creds,
        "--image-opts",
        &image,
        "-c",
        "write -P 7 0 5M",
        "-c",
        "read -P 7 0 5M",
        "-c",
        "flush",
    ];
    let said = run_well(&folder, "qemu-io", &args);
    // A pattern that differs is not an error of the program.
    assert!(!said.contains("failed"), "{said}");
    assert!(
        fs::read(folder.join("disk")).unwrap()[..5 << 20]
            .iter()
            .all(|byte| *byte == 7)
    );
    program.stop();
}

#[test]
fn clients_without_the_right_certificate_are_refused() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") {
        return;
    }
    let Some(authority) = certificates(&folder) else {
        return;
    };
    folder.image("disk", MIB);
    authority.issue_expired(&folder.join("expired"), Side::Client, "/CN=client");
    authority.issue(&folder.join("revoked"), Side::Client, "/CN=client");
    authority.revoke(&folder.join("revoked"), &folder.join("server"));
    fs::create_dir(folder.join("anonymous")).unwrap();
    let other = Authority::new(&folder.join("other-authority")).unwrap();
    other.issue(&folder.join("stranger"), Side::Client, "/CN=client");
    for without_own in ["anonymous", "stranger"] {
        // They accept the server.
        let (from, to) = (folder.join("client/ca-cert.pem"), folder.join(without_own));
        fs::copy(from, to.join("ca-cert.pem")).unwrap();
    }
    let (program, _client) = start(&folder, &tls_line("", ""));
    for refused in ["anonymous", "stranger", "expired", "revoked"] {
        assert!(!is_served(&folder, refused), "{refused}");
    }
    assert!(is_served(&folder, "client"));
    program.stop();
    let (program, _client) = start(&folder, &tls_line(",verify-peer=off", ""));
    assert!(is_served(&folder, "anonymous"));
    program.stop();
}

#[test]
fn tls_authz_lets_in_the_clients_that_it_names() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") {
        return;
    }
    let Some(authority) = certificates(&folder) else {
        return;
    };
    folder.image("disk", MIB);
    authority.issue(&folder.join("eve"), Side::Client, "/O=Example/CN=eve");
    for (rule, client, eve) in [
        (
            "rules.0.match=C=GB,,O=Example,,CN=client,rules.0.policy=allow",
            true,
            false,
        ),
        (
            "rules.0.match=*CN=eve,rules.0.format=glob,rules.0.policy=allow",
            false,
            true,
        ),
        ("rules.0.match=*CN=eve,rules.0.policy=allow", false, false),
        (
            "policy=allow,rules.0.match=O=Example,,CN=eve,rules.0.policy=deny",
            true,
            false,
        ),
    ] {
        let list = format!("--object authz-list,id=list,{rule}");
        let line = format!("{list} {}", tls_line("", ",tls-authz=list"));
        let (program, _client) = start(&folder, &line);
        assert_eq!(is_served(&folder, "client"), client, "{rule}");
        assert_eq!(is_served(&folder, "eve"), eve, "{rule}");
        program.stop();
    }
}

/// The header of an option, after the client's flags if it is the first.
fn option_bytes(is_first: bool, option: u32, data: &[u8]) -> Vec<u8> {
    let header = OptionHeader {
        magic: OPTION_MAGIC,
        option,
        length: u32::try_from(data.len()).unwrap(),
    };
    let flags = 3u32.to_be_bytes();
    let flags = if is_first { &flags[..] } else { &[] };
    [flags, &header.encode(), data].concat()
}

/// A client before its first option.
fn greeted(folder: &Folder) -> RawClient {
    let mut client = RawClient::connect(folder);
    client.stream.read_exact(&mut [0; 18]).unwrap();
    client
}

/// The kind of the reply to an option.
fn reply_kind(client: &mut RawClient) -> u32 {
    let mut header = [0; OptionReplyHeader::BYTES];
    client.stream.read_exact(&mut header).unwrap();
    let header = OptionReplyHeader::decode(&header);
    let mut data = vec![0; header.length as usize];
    client.stream.read_exact(&mut data).unwrap();
    header.reply
}

#[test]
fn nothing_is_shown_before_tls() {
    let folder = Folder::new();
    if certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &tls_line("", ""));
    let mut client = greeted(&folder);
    let mut is_first = true;
    for option in [
        option::LIST,
        option::INFO,
        option::GO,
        option::STRUCTURED_REPLY,
        option::EXTENDED_HEADERS,
        option::SET_META_CONTEXT,
        99,
    ] {
        client.send(&option_bytes(is_first, option, &[]));
        assert_eq!(
            reply_kind(&mut client),
            option_reply::ERR_TLS_REQD,
            "{option}"
        );
        is_first = false;
    }
    client.send(&option_bytes(false, option::EXPORT_NAME, b"d"));
    assert!(client.is_closed_within(STUCK_AFTER));
    // By an independent client.
    if report::installed("nbdinfo") {
        let output = run(&folder, "nbdinfo", &["nbd+unix:///d?socket=nbd"]);
        assert!(output.code != Some(0), "{output:?}");
    }
    program.stop();
}

/// Of a client that is gone, replies are left that are encrypted already.
#[test]
fn a_client_that_dies_in_the_middle_of_its_replies_stops_nothing_else() {
    let folder = Folder::new();
    if !report::installed("nbdcopy") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", 2048 * MIB);
    let (program, mut client) = start(&folder, &tls_line("", ""));
    let uri = uri(&folder, "client");
    for _ in 0..5 {
        let mut reads_before = None;
        let mut copy = Command::new("nbdcopy");
        copy.args(["--no-extents", "--request-size=4194304", &uri, "null:"]);
        let mut copy = Process::spawn(copy);
        copy.wait_until("it copies", || {
            let stats = client.done("query-blockstats", json!({}));
            let reads = stats[0]["stats"]["rd_operations"].as_u64().unwrap();
            reads > *reads_before.get_or_insert(reads) + 20
        });
        copy.signal(Signal::KILL);
        assert!(is_served(&folder, "client"));
    }
    program.stop();
}

#[test]
fn garbage_and_pipelined_data_instead_of_a_tls_handshake_end_the_connection() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", MIB);
    let (program, _client) = start(&folder, &tls_line("", ""));
    // TLS records of every type, and other bytes.
    let mut garbage: Vec<Vec<u8>> = (20..25)
        .map(|kind| [&[kind, 3, 3, 0xff, 0xff][..], &[0xff; 70_000]].concat())
        .collect();
    garbage.push(b"GET / HTTP/1.1\r\n\r\n".to_vec());
    garbage.push(vec![0; 100_000]);
    for bytes in &garbage {
        let mut client = greeted(&folder);
        client.send(&option_bytes(true, option::STARTTLS, &[]));
        assert_eq!(reply_kind(&mut client), option_reply::ACK);
        // The server may have closed the connection before all was sent.
        let _ = client.stream.write_all(bytes);
        assert!(client.is_closed_within(STUCK_AFTER));
    }
    // What comes unencrypted before TLS must not be taken for what comes after.
    let mut client = greeted(&folder);
    let start_tls = option_bytes(true, option::STARTTLS, &[]);
    client.send(&[start_tls, option_bytes(false, option::LIST, &[])].concat());
    assert!(client.is_closed_within(STUCK_AFTER));
    assert!(is_served(&folder, "client"));
    program.stop();
}

#[test]
fn a_client_that_is_silent_in_the_tls_handshake_is_disconnected() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", MIB);
    let limits = ",handshake-max-seconds=1,max-connections=1";
    let (program, _client) = start(&folder, &tls_line("", limits));
    let mut silent = greeted(&folder);
    silent.send(&option_bytes(true, option::STARTTLS, &[]));
    assert_eq!(reply_kind(&mut silent), option_reply::ACK);
    // The begin of a ClientHello.
    silent.send(&[22, 3, 1, 1, 0, 1, 0, 0]);
    assert!(silent.is_closed_within(STUCK_AFTER));
    // Its place is free again.
    assert!(is_served(&folder, "client"));
    program.stop();
}

/// A client with TLS that stays connected: `None` if it is not installed.
fn idle_client(folder: &Folder, uri: &str) -> Process {
    let script = format!(
        "import nbd, sys\nh = nbd.NBD()\nh.set_uri_allow_local_file(True)\nh.connect_uri('{uri}')\n\
         open('connected', 'w').close()\n\
         while True:\n    h.poll(-1)\n    if h.aio_is_dead() or h.aio_is_closed(): break\n"
    );
    let mut command = Command::new("/usr/bin/python3");
    command.args(["-c", &script]).current_dir(folder.path());
    let mut process = Process::spawn(command);
    let connected = folder.join("connected");
    process.wait_until("the client is connected", || connected.exists());
    process
}

#[test]
fn certificates_survive_an_upgrade_which_closes_connections() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") || certificates(&folder).is_none() {
        return;
    }
    let has_libnbd = Command::new("/usr/bin/python3")
        .args(["-c", "import nbd"])
        .output();
    let has_libnbd = has_libnbd.is_ok_and(|output| output.status.success());
    folder.image("disk", MIB);
    let list =
        "--object authz-list,id=list,rules.0.match=*,rules.0.format=glob,rules.0.policy=allow";
    let line = format!("{list} {}", tls_line("", ",tls-authz=list"));
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let uri = uri(&daemon.folder, "client");
    let client = has_libnbd.then(|| idle_client(&daemon.folder, &uri));
    // What was read counts, and not what the files have become.
    fs::remove_file(daemon.folder.join("server/server-key.pem")).unwrap();
    daemon.upgrade();
    if let Some(client) = client {
        // The session's keys stay in the old process: the client has to connect again.
        client.ended();
    }
    assert!(is_served(&daemon.folder, "client"));
    let (class, value) = daemon.client().done_property("/objects/tls0", "endpoint");
    assert_eq!((class, value), (json!("tls-creds-x509"), json!("server")));
    daemon.upgrade();
    assert!(is_served(&daemon.folder, "client"));
}

/// Adds the certificate in a folder as an object; false if it has expired.
fn add_unless_expired(client: &mut crate::Client, folder: &Path, id: &str) -> bool {
    let creds = json!({"qom-type": "tls-creds-x509", "id": id, "endpoint": "server",
                       "dir": folder.to_str().unwrap()});
    let answer = client.ask("object-add", creds);
    let error = answer["error"]["desc"].as_str();
    let has_expired = error.is_some_and(|text| text.contains("server-cert.pem: it has expired"));
    assert!(error.is_none() || has_expired, "{answer}");
    !has_expired
}

#[test]
fn a_certificate_that_has_expired_while_the_server_ran_does_not_prevent_an_upgrade() {
    let folder = Folder::new();
    let Some(authority) = certificates(&folder) else {
        return;
    };
    let mut daemon = Daemon::start_in(folder, "--blockdev null-co,node-name=d,size=1M", &[]);
    let (mut client, folder) = (daemon.client(), &daemon.folder);
    let server = folder.join("server");
    // A busy machine needs longer until the certificate has been read.
    let is_read_in_time = |seconds: &u32| {
        authority.issue_for_seconds(&server, Side::Server, "/CN=localhost", *seconds);
        add_unless_expired(&mut client, &server, "tls0")
    };
    assert!([2, 4, 8, 16, 32].iter().any(is_read_in_time));
    eventually("it has expired", || {
        let is_valid = add_unless_expired(&mut client, &server, "later");
        if is_valid {
            client.done("object-del", json!({"id": "later"}));
        }
        !is_valid
    });
    let nbd = json!({"addr": {"type": "unix", "data": {"path": folder.join("nbd").to_str().unwrap()}},
                     "tls-creds": "tls0"});
    client.done("nbd-server-start", nbd);
    client.done(
        "block-export-add",
        json!({"type": "nbd", "id": "e", "node-name": "d"}),
    );
    daemon.upgrade();
    let mut client = greeted(&daemon.folder);
    client.send(&option_bytes(true, option::STARTTLS, &[]));
    assert_eq!(reply_kind(&mut client), option_reply::ACK);
    // Nor the one after.
    daemon.upgrade();
}

trait Property {
    fn done_property(&mut self, path: &str, name: &str) -> (Value, Value);
}

impl Property for crate::Client {
    /// The type of an object, and one of its properties.
    fn done_property(&mut self, path: &str, name: &str) -> (Value, Value) {
        let mut get = |name: &str| self.done("qom-get", json!({"path": path, "property": name}));
        (get("type"), get(name))
    }
}

#[test]
fn monitors_add_certificates_which_are_kept_while_the_server_runs() {
    let folder = Folder::new();
    if !report::installed("nbdinfo") || certificates(&folder).is_none() {
        return;
    }
    folder.image("disk", MIB);
    let line = "--blockdev file,node-name=d,filename=disk,cache.direct=off";
    let (program, mut client) = start(&folder, line);
    let creds = |endpoint: &str| {
        json!({"qom-type": "tls-creds-x509", "id": endpoint, "endpoint": endpoint,
               "dir": folder.join(endpoint).to_str().unwrap()})
    };
    client.done("object-add", creds("server"));
    client.done("object-add", creds("client"));
    let list = json!({"qom-type": "authz-list", "id": "list", "policy": "deny",
                      "rules": [{"match": "*CN=client", "format": "glob", "policy": "allow"}]});
    client.done("object-add", list);
    let nbd_server = |creds: &str| {
        json!({"addr": {"type": "unix", "data": {"path": folder.join("nbd").to_str().unwrap()}},
               "tls-creds": creds, "tls-authz": "list"})
    };
    let error = client.fails("nbd-server-start", nbd_server("client"));
    assert!(
        error.contains("Expecting TLS credentials with a server endpoint"),
        "{error}"
    );
    client.done("nbd-server-start", nbd_server("server"));
    client.done(
        "block-export-add",
        json!({"type": "nbd", "id": "e", "node-name": "d"}),
    );
    assert!(is_served(&folder, "client"));
    for used in ["server", "list"] {
        let error = client.fails("object-del", json!({"id": used}));
        assert!(error.contains("in use"), "{error}");
    }
    client.done("nbd-server-stop", json!({}));
    for id in ["server", "list", "client"] {
        client.done("object-del", json!({"id": id}));
    }
    program.stop();
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let folder = Folder::new();
    let Some(authority) = certificates(&folder) else {
        return;
    };
    folder.image("disk", MIB);
    let line = tls_line("", "");
    let server = |name: &str| folder.join("server").join(name);
    let fails_with = |expected: &str| folder.run(&line).assert_fails_naming(&[expected]);
    let exchanged = |name: &str, content: &[u8], expected: &str| {
        let old = fs::read(server(name)).unwrap();
        fs::write(server(name), content).unwrap();
        fails_with(expected);
        fs::write(server(name), old).unwrap();
    };
    exchanged(
        "server-cert.pem",
        b"",
        "server-cert.pem: it has no certificate",
    );
    exchanged(
        "server-key.pem",
        b"",
        "server-key.pem: it has no key that is not encrypted",
    );
    let other_key = fs::read(folder.join("client/client-key.pem")).unwrap();
    exchanged("server-key.pem", &other_key, "server-key.pem: ");
    exchanged("ca-cert.pem", b"-----BEGIN", "ca-cert.pem: ");
    authority.issue_expired(&folder.join("server"), Side::Server, "/CN=localhost");
    fails_with("server-cert.pem: ");
    fs::remove_file(server("server-cert.pem")).unwrap();
    fails_with("server-cert.pem: it is missing, and its key is not");
    fs::remove_file(server("ca-cert.pem")).unwrap();
    fails_with("there is no server/ca-cert.pem");
    let refused = line.replace("endpoint=server", "endpoint=server,passwordid=x");
    let output = folder.run(&refused);
    output.assert_fails_naming(&["'passwordid' is not supported"]);
}

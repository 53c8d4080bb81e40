//! Encrypted connections: clients of others see what they wrote, and clients without the right certificate see nothing.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use nbd::wire::{option, option_reply};
use rustix::process::Signal;
use serde_json::{Value, json};
use test_support::certificates::{Authority, Side};
use test_support::deadline::eventually;
use test_support::report;
use test_support::upgraded_daemon::Daemon;

use crate::client::Client;
use crate::clients::{noise, run, run_if_installed};
use crate::process::{Folder, Process, STUCK_AFTER};
use crate::raw_client::RawClient;
use crate::{MIB, start};

/// A folder with an image `disk`, certificates of the server in `server`, and of a client in `client`. `None`: there is no openssl, or
/// none of libnbd's programs.
fn folder_with_certificates(bytes: u64) -> Option<(Folder, Authority)> {
    if !report::installed("nbdinfo") || !report::installed("nbdcopy") {
        return None;
    }
    let folder = Folder::new();
    let authority = Authority::new(&folder.join("authority"))?;
    let (server, client) = (folder.join("server"), folder.join("client"));
    authority.issue(&server, Side::Server, "/CN=localhost");
    authority.issue(&client, Side::Client, "/C=GB/O=Example/CN=client");
    folder.image("disk", bytes);
    Some((folder, authority))
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

/// Whether libnbd's client with these certificates is served.
fn is_served(folder: &Folder, certificates: &str) -> bool {
    let uri = uri(folder, certificates);
    let output = run(folder, "nbdinfo", &["--size", &uri]);
    assert_eq!(output.stdout.trim().is_empty(), output.code != Some(0));
    output.code == Some(0)
}

#[test]
fn nbdcopy_and_qemu_over_tls_read_back_what_they_wrote() {
    let Some((folder, _)) = folder_with_certificates(40 * MIB) else {
        return;
    };
    let line = tls_line("", "").replace(
        "node-name=d,writable",
        "node-name=d,iothread.0=a,iothread.1=b,writable",
    );
    let line = format!("--object iothread,id=a --object iothread,id=b {line}");
    let (program, _client) = start(&folder, &line);
    let uri = uri(&folder, "client");
    let info = run_if_installed(&folder, "nbdinfo", &["--json", &uri]).unwrap();
    let info: Value = serde_json::from_str(&info).unwrap();
    assert_eq!(info["TLS"], true);
    let mut noise = noise(40 << 20);
    for size in [65536, 33_554_432] {
        // Other bytes each time.
        noise.reverse();
        fs::write(folder.join("noise"), &noise).unwrap();
        let size = format!("--request-size={size}");
        for (from, to) in [("noise", &*uri), (&*uri, "copy")] {
            let args = [
                "--connections=4",
                "--requests=64",
                "--flush",
                &size,
                from,
                to,
            ];
            run_if_installed(&folder, "nbdcopy", &args);
        }
        assert!(fs::read(folder.join("disk")).unwrap() == noise, "{size}");
        assert!(fs::read(folder.join("copy")).unwrap() == noise, "{size}");
        fs::remove_file(folder.join("copy")).unwrap();
    }
    let path = folder.path().display();
    let creds = format!("tls-creds-x509,id=t,dir={path}/client,endpoint=client");
    let image = format!(
        "driver=nbd,server.type=unix,server.path={path}/nbd,export=d,tls-creds=t,tls-hostname=localhost"
    );
    let mut args = vec!["--object", &creds, "--image-opts", &image];
    for command in ["write -P 7 0 5M", "read -P 7 0 5M", "flush"] {
        args.extend(["-c", command]);
    }
    if let Some(said) = run_if_installed(&folder, "qemu-io", &args) {
        // A pattern that differs is not an error of the program.
        assert!(!said.contains("failed"), "{said}");
        let disk = fs::read(folder.join("disk")).unwrap();
        assert!(disk[..5 << 20].iter().all(|byte| *byte == 7));
    }
    program.stop();
}

#[test]
fn clients_without_the_right_certificate_are_refused() {
    let Some((folder, authority)) = folder_with_certificates(MIB) else {
        return;
    };
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
    // Nothing is shown before TLS.
    let plain = run(&folder, "nbdinfo", &["nbd+unix:///d?socket=nbd"]);
    assert!(plain.code != Some(0), "{plain:?}");
    let mut client = RawClient::connect(&folder);
    client.greet().unwrap();
    for option in [option::LIST, option::INFO, option::GO] {
        assert_eq!(reply_kind(&mut client, option), option_reply::ERR_TLS_REQD);
    }
    client.send_option(option::EXPORT_NAME, b"d").unwrap();
    assert!(client.is_closed_within(STUCK_AFTER));
    program.stop();
    let (program, _client) = start(&folder, &tls_line(",verify-peer=off", ""));
    assert!(is_served(&folder, "anonymous"));
    program.stop();
}

#[test]
fn tls_authz_lets_in_the_clients_that_it_names() {
    let Some((folder, authority)) = folder_with_certificates(MIB) else {
        return;
    };
    authority.issue(&folder.join("eve"), Side::Client, "/O=Example/CN=eve");
    let of_client = "rules.0.match=C=GB,,O=Example,,CN=client,rules.0.policy=allow";
    let glob = "rules.0.match=*CN=eve,rules.0.format=glob,rules.0.policy=allow";
    let not_a_glob = "rules.0.match=*CN=eve,rules.0.policy=allow";
    let denied = "policy=allow,rules.0.match=O=Example,,CN=eve,rules.0.policy=deny";
    for (rule, client, eve) in [
        (of_client, true, false),
        (glob, false, true),
        (not_a_glob, false, false),
        (denied, true, false),
    ] {
        let list = format!("--object authz-list,id=list,{rule}");
        let line = format!("{list} {}", tls_line("", ",tls-authz=list"));
        let (program, _client) = start(&folder, &line);
        assert_eq!(is_served(&folder, "client"), client, "{rule}");
        assert_eq!(is_served(&folder, "eve"), eve, "{rule}");
        program.stop();
    }
}

/// The kind of the reply to an option.
fn reply_kind(client: &mut RawClient, option: u32) -> u32 {
    client.option(option, &[]).unwrap()[0].0
}

/// A client that may begin with TLS.
fn client_before_tls(folder: &Folder) -> RawClient {
    let mut client = RawClient::connect(folder);
    client.greet().unwrap();
    let reply = reply_kind(&mut client, option::STARTTLS);
    assert_eq!(reply, option_reply::ACK);
    client
}

/// Of a client that is gone, replies are left that are encrypted already.
#[test]
fn a_client_that_dies_in_the_middle_of_its_replies_stops_nothing_else() {
    let Some((folder, _)) = folder_with_certificates(2048 * MIB) else {
        return;
    };
    let (program, mut client) = start(&folder, &tls_line("", ""));
    let uri = uri(&folder, "client");
    for _ in 0..3 {
        let mut reads_before = None;
        let mut copy = Command::new("nbdcopy");
        copy.args(["--no-extents", "--request-size=4194304", &uri, "null:"]);
        let mut copy = Process::spawn(copy);
        copy.wait_until("it copies", || {
            let stats = client.execute("query-blockstats");
            let reads = stats[0]["stats"]["rd_operations"].as_u64().unwrap();
            reads > *reads_before.get_or_insert(reads) + 20
        });
        copy.signal(Signal::KILL);
        assert!(is_served(&folder, "client"));
    }
    program.stop();
}

#[test]
fn a_client_that_sends_garbage_or_nothing_in_the_tls_handshake_is_disconnected() {
    let Some((folder, _)) = folder_with_certificates(MIB) else {
        return;
    };
    // TLS records of every type, and other bytes.
    let mut garbage: Vec<Vec<u8>> = (20..25)
        .map(|kind| [&[kind, 3, 3, 0xff, 0xff][..], &[0xff; 70_000]].concat())
        .collect();
    garbage.push(b"GET / HTTP/1.1\r\n\r\n".to_vec());
    garbage.push(vec![0; 100_000]);
    let begin_of_client_hello = vec![22, 3, 1, 1, 0, 1, 0, 0];
    let limits = ",handshake-max-seconds=1,max-connections=1";
    for (limits, messages) in [("", garbage), (limits, vec![begin_of_client_hello])] {
        let (program, _client) = start(&folder, &tls_line("", limits));
        for bytes in &messages {
            let mut client = client_before_tls(&folder);
            // The server may have closed the connection before all was sent.
            let _ = client.stream.write_all(bytes);
            assert!(client.is_closed_within(STUCK_AFTER));
        }
        // Its place is free again.
        assert!(is_served(&folder, "client"));
        program.stop();
    }
}

#[test]
fn certificates_survive_an_upgrade_which_closes_connections() {
    let Some((folder, _)) = folder_with_certificates(MIB) else {
        return;
    };
    let list =
        "--object authz-list,id=list,rules.0.match=*,rules.0.format=glob,rules.0.policy=allow";
    let line = format!("{list} {}", tls_line("", ",tls-authz=list"));
    let mut daemon = Daemon::start_in(folder, &line, &[]);
    let mut connected = client_before_tls(&daemon.folder);
    // What was read counts, and not what the files have become.
    fs::remove_file(daemon.folder.join("server/server-key.pem")).unwrap();
    daemon.upgrade();
    assert!(connected.is_closed_within(STUCK_AFTER));
    assert!(is_served(&daemon.folder, "client"));
    let query = "qom-get path=/objects/tls0 property=endpoint";
    assert_eq!(daemon.client().execute(query), "server");
    daemon.upgrade();
    assert!(is_served(&daemon.folder, "client"));
}

/// Adds the certificate in a folder as an object; false if it has expired.
fn add_unless_expired(client: &mut Client, folder: &Path, id: &str) -> bool {
    let creds =
        json!({"qom-type": "tls-creds-x509", "id": id, "endpoint": "server", "dir": folder});
    let answer = client.ask("object-add", creds);
    let error = answer["error"]["desc"].as_str();
    let has_expired = error.is_some_and(|text| text.contains("server-cert.pem: it has expired"));
    assert!(error.is_none() || has_expired, "{answer}");
    !has_expired
}

/// Arguments of `nbd-server-start` with these credentials.
fn nbd_server(folder: &Folder, creds: &str) -> Value {
    let addr = json!({"type": "unix", "data": {"path": folder.join("nbd")}});
    json!({"addr": addr, "tls-creds": creds})
}

fn add_export(client: &mut Client) {
    client.execute("block-export-add type=nbd id=e node-name=d");
}

#[test]
fn a_certificate_that_has_expired_while_the_server_ran_does_not_prevent_an_upgrade() {
    let Some((folder, authority)) = folder_with_certificates(MIB) else {
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
            client.execute("object-del id=later");
        }
        !is_valid
    });
    client.done("nbd-server-start", nbd_server(folder, "tls0"));
    add_export(&mut client);
    daemon.upgrade();
    client_before_tls(&daemon.folder);
    // Nor the one after.
    daemon.upgrade();
}

#[test]
fn monitors_add_certificates_which_are_kept_while_the_server_runs() {
    let Some((folder, _)) = folder_with_certificates(MIB) else {
        return;
    };
    let line = "--blockdev file,node-name=d,filename=disk,cache.direct=off";
    let (program, mut client) = start(&folder, line);
    for endpoint in ["server", "client"] {
        let creds = json!({"qom-type": "tls-creds-x509", "id": endpoint, "endpoint": endpoint,
                           "dir": folder.join(endpoint)});
        client.done("object-add", creds);
    }
    let list = json!({"qom-type": "authz-list", "id": "list", "policy": "deny",
                      "rules": [{"match": "*CN=client", "format": "glob", "policy": "allow"}]});
    client.done("object-add", list);
    let error = client.fails("nbd-server-start", nbd_server(&folder, "client"));
    let expected = "Expecting TLS credentials with a server endpoint";
    assert!(error.contains(expected), "{error}");
    let mut server = nbd_server(&folder, "server");
    server["tls-authz"] = "list".into();
    client.done("nbd-server-start", server);
    add_export(&mut client);
    assert!(is_served(&folder, "client"));
    for used in ["server", "list"] {
        let error = client.fails("object-del", json!({"id": used}));
        assert!(error.contains("in use"), "{error}");
    }
    client.execute("nbd-server-stop");
    for id in ["server", "list", "client"] {
        client.done("object-del", json!({"id": id}));
    }
    program.stop();
}

#[test]
fn certificates_that_cannot_be_used_are_named() {
    let Some((folder, authority)) = folder_with_certificates(MIB) else {
        return;
    };
    let line = tls_line("", "");
    let server = |name: &str| folder.join("server").join(name);
    let fails_with = |expected: &str| folder.run(&line).assert_fails_naming(&[expected]);
    let other_key = fs::read(folder.join("client/client-key.pem")).unwrap();
    for (name, content, expected) in [
        ("server-cert.pem", &b""[..], "it has no certificate"),
        ("server-key.pem", b"", "it has no key that is not encrypted"),
        ("server-key.pem", &other_key, ""),
        ("ca-cert.pem", b"-----BEGIN", ""),
    ] {
        let old = fs::read(server(name)).unwrap();
        fs::write(server(name), content).unwrap();
        fails_with(&format!("{name}: {expected}"));
        fs::write(server(name), old).unwrap();
    }
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

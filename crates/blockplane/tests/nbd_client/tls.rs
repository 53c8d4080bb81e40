//! Encrypted connections to servers of others, and servers that are not accepted.

use std::fs;
use std::process::Command;
use std::time::Duration;

use test_support::certificates::{Authority, Side};
use test_support::nbd_server::NbdServer;
use test_support::report;

use crate::outages::assert_kills_are_a_pause;
use crate::process::{Folder, Process};
use crate::{MIB, SOCKET, start};

/// Certificates in `server` and `client`. `None`: there is no openssl.
fn certificates(folder: &Folder) -> Option<Authority> {
    let authority = Authority::new(&folder.join("authority"))?;
    authority.issue(&folder.join("server"), Side::Server, "/CN=localhost");
    authority.issue(&folder.join("client"), Side::Client, "/CN=client");
    Some(authority)
}

/// nbdkit with TLS and this plugin.
fn nbdkit(folder: &Folder, plugin: &str) -> Option<NbdServer> {
    let certificates = folder.join("server");
    let tls = format!(
        "--tls=require --tls-certificates={} --tls-verify-peer",
        certificates.display()
    );
    NbdServer::nbdkit(folder, &format!("{tls} {plugin}"))
}

/// A disk of a server with the certificates of a folder.
fn line(server: &NbdServer, certificates: &str, node: &str, export: &str) -> String {
    let object = format!("--object tls-creds-x509,id=tls0,dir={certificates},endpoint=client");
    let node = format!(",tls-creds=tls0,tls-hostname=localhost{node}");
    format!("{object} {}", crate::line(server, &node, export))
}

#[test]
fn a_killed_server_with_tls_is_a_pause() {
    let folder = Folder::new();
    if certificates(&folder).is_none() {
        return;
    }
    folder.image("image", MIB);
    let image = folder.join("image");
    let Some(mut server) = nbdkit(&folder, &format!("file {}", image.display())) else {
        return;
    };
    let queues = ",num-queues=2,iothread.0=io0,iothread.1=io1";
    let line = format!(
        "--object iothread,id=io0 --object iothread,id=io1 {}",
        line(&server, "client", ",reconnect-delay=60", queues)
    );
    assert_kills_are_a_pause(&folder, &mut server, &line, 2, Duration::from_millis(200));
}

#[test]
fn large_requests_pass_through_a_client_and_a_server_with_tls() {
    let folder = Folder::new();
    if !report::installed("nbdcopy") || certificates(&folder).is_none() {
        return;
    }
    folder.image("image", 40 * MIB);
    let image = folder.join("image");
    let Some(server) = nbdkit(&folder, &format!("file {}", image.display())) else {
        return;
    };
    // An NBD server in front of the client, without TLS.
    let socket = server.socket().display().to_string();
    let line = format!(
        "--object tls-creds-x509,id=tls0,dir=client \
         --blockdev nbd,node-name=d,server.type=unix,server.path={socket},tls-creds=tls0,tls-hostname=localhost \
         --nbd-server addr.type=unix,addr.path=front --export nbd,id=e,node-name=d,writable=on"
    );
    let (program, _client) = start(&folder, &line);
    let noise = (0u32..10 << 20).flat_map(|n| n.wrapping_mul(2_654_435_761).to_le_bytes());
    let noise: Vec<u8> = noise.collect();
    fs::write(folder.join("noise"), &noise).unwrap();
    let uri = "nbd+unix:///d?socket=front";
    for (from, to) in [("noise", uri), (uri, "copy")] {
        let mut command = Command::new("nbdcopy");
        command.args(["--connections=2", "--request-size=33554432", "--flush"]);
        command.args([from, to]).current_dir(folder.path());
        let output = Process::spawn(command).ended();
        assert!(output.code == Some(0), "{output:?}");
    }
    assert!(fs::read(&image).unwrap() == noise);
    assert!(fs::read(folder.join("copy")).unwrap() == noise);
    program.stop();
}

#[test]
fn servers_that_are_not_the_right_ones_are_refused() {
    let folder = Folder::new();
    let Some(authority) = certificates(&folder) else {
        return;
    };
    let other = Authority::new(&folder.join("other-authority")).unwrap();
    other.issue(&folder.join("stranger"), Side::Client, "/CN=client");
    fs::create_dir(folder.join("anonymous")).unwrap();
    let [from, to] = ["client", "anonymous"].map(|name| folder.join(name).join("ca-cert.pem"));
    fs::copy(from, to).unwrap();
    let Some(server) = nbdkit(&folder, "memory 1M") else {
        return;
    };
    let fails_with = |line: &str, expected: &str| folder.run(line).assert_fails_naming(&[expected]);
    let right = line(&server, "client", "", "");
    let to_elsewhere =
        |line: &str| line.replace("tls-hostname=localhost", "tls-hostname=elsewhere");
    let of_server = right.replace("endpoint=client", "endpoint=server");
    for (line, expected) in [
        (
            line(&server, "stranger", "", ""),
            "not signed by the authority in ca-cert.pem",
        ),
        (to_elsewhere(&right), "elsewhere"),
        // By its alert, or by what is known if the connection ends before that is read.
        (
            line(&server, "anonymous", "", ""),
            "a certificate of the client",
        ),
        (
            crate::line(&server, "", ""),
            "it requires TLS: set tls-creds",
        ),
        (
            of_server.replace("dir=client", "dir=server"),
            "Expecting TLS credentials with a client endpoint",
        ),
    ] {
        fails_with(&line, expected);
    }
    // The same disk is served with the right ones, also to a client that does not check the server.
    for line in [
        right.clone(),
        to_elsewhere(&right.replace("endpoint=client", "endpoint=client,verify-peer=off")),
    ] {
        folder.start(&line, SOCKET).stop();
    }
    drop(server);
    authority.issue_expired(&folder.join("server"), Side::Server, "/CN=localhost");
    let Some(expired) = nbdkit(&folder, "memory 1M") else {
        return;
    };
    fails_with(&line(&expired, "client", "", ""), "certificate has expired");
    drop(expired);
    let Some(plain) = NbdServer::nbdkit(&folder, "memory 1M") else {
        return;
    };
    fails_with(
        &line(&plain, "client", "", ""),
        "the server does not offer TLS",
    );
}

//! Exports of NBD servers (`driver=nbd`), and their URIs as disks of `serve`; bitmaps of exports.

use std::path::Path;

use options::{
    Directive, Driver, ExportKind, ExportedBitmap, Invocation, NbdOptions, NbdServerType,
    ServeDisk, parse,
};

/// The options of a node of this driver.
fn node(options: &str) -> Result<NbdOptions, String> {
    let options = format!("nbd,node-name=d,{options}");
    let daemon = match parse(["--blockdev", &options].iter().map(Into::into)) {
        Ok(Invocation::Daemon(daemon)) => daemon,
        Ok(other) => panic!("{other:?}"),
        Err(error) => return Err(error.to_string()),
    };
    match daemon.directives.into_iter().next_back() {
        Some(Directive::Blockdev(node)) => match node.driver {
            Driver::Nbd(nbd) => Ok(nbd),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

/// The disk of `serve` with this URI.
fn disk(uri: &str) -> Result<ServeDisk, String> {
    match parse(["serve", uri, "--socket", "/s"].iter().map(Into::into)) {
        Ok(Invocation::Serve(mut serve)) => Ok(serve.disks.remove(0)),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_server_is_reached_by_tcp_or_by_a_socket() {
    let inet = node("server.type=inet,server.host=h,server.port=10809,export=e").unwrap();
    assert_eq!(inet.server_type, NbdServerType::Inet);
    assert_eq!((inet.host.as_deref(), inet.port), (Some("h"), Some(10809)));
    assert_eq!(inet.export.as_deref(), Some("e"));
    assert_eq!((inet.reconnect_delay, inet.open_timeout), (0, 0));
    assert_eq!(inet.stop_timeout, 10);
    let unix = node("server.type=unix,server.path=/s,reconnect-delay=10,open-timeout=5").unwrap();
    assert_eq!(unix.path.as_deref(), Some(Path::new("/s")));
    assert_eq!((unix.reconnect_delay, unix.open_timeout), (10, 5));
}

#[test]
fn serve_takes_uris_and_shows_them_as_they_were() {
    for uri in [
        "nbd://host:10809",
        "nbd://host:10809/disk",
        "nbd://host:1234/a/b",
        "nbd://[::1]:10809/disk",
        "nbd+unix://?socket=/run/nbd.sock",
        "nbd+unix:///disk?socket=/run/nbd.sock",
    ] {
        match disk(uri).unwrap() {
            ServeDisk::Nbd(nbd) => assert_eq!(nbd.uri(), uri),
            other => panic!("{other:?}"),
        }
    }
    for (uri, same) in [
        ("nbd://host/", "nbd://host:10809"),
        ("nbd+unix:///?socket=/s", "nbd+unix://?socket=/s"),
    ] {
        assert_eq!(disk(uri), disk(same));
    }
    match disk("nbd+unix:///a%20b?socket=/c%25").unwrap() {
        ServeDisk::Nbd(nbd) => {
            assert_eq!(nbd.export.as_deref(), Some("a b"));
            assert_eq!(nbd.path.as_deref(), Some(Path::new("/c%")));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(disk("./nbd:x").unwrap(), ServeDisk::Path("./nbd:x".into()));
}

#[test]
fn bitmaps_of_an_export_are_names_or_groups() {
    let bitmaps = |options: &str| {
        let options = format!("nbd,id=e,node-name=d{options}");
        let before =
            "--blockdev null-co,node-name=d --nbd-server addr.type=unix,addr.path=/n --export";
        let words = before.split(' ').chain([&*options]);
        let daemon = match parse(words.map(Into::into)) {
            Ok(Invocation::Daemon(daemon)) => daemon,
            Ok(other) => panic!("{other:?}"),
            Err(error) => return Err(error.to_string()),
        };
        match daemon.directives.into_iter().next_back() {
            Some(Directive::Export(export)) => match export.kind {
                ExportKind::Nbd(nbd) => Ok(nbd.bitmaps),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let bitmap = |node: Option<&str>, name: &str| ExportedBitmap {
        node: node.map(str::to_owned),
        name: name.to_owned(),
    };
    assert_eq!(bitmaps(""), Ok(vec![]));
    let both = bitmaps(",bitmaps.0=a,bitmaps.1.node=d,bitmaps.1.name=b").unwrap();
    assert_eq!(both, [bitmap(None, "a"), bitmap(Some("d"), "b")]);
}

/// Reads an NBD server's options after objects for TLS.
fn server(options: &str) -> Result<options::NbdServerOptions, String> {
    let words = [
        "--object",
        "tls-creds-x509,id=creds,dir=/d,endpoint=server",
        "--object",
        "authz-list,id=list",
        "--nbd-server",
        options,
    ];
    match options::parse(words.into_iter().map(Into::into)) {
        Ok(options::Invocation::Daemon(mut daemon)) => match daemon.directives.pop() {
            Some(options::Directive::NbdServer(server)) => Ok(server),
            other => panic!("{other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn a_network_is_served_with_tls_or_when_plaintext_is_allowed() {
    let network = "addr.type=inet,addr.host=0.0.0.0,addr.port=1";
    assert!(server(&format!("{network},allow-plaintext=on")).is_ok());
    let encrypted = server(&format!("{network},tls-creds=creds,tls-authz=list")).unwrap();
    assert_eq!(encrypted.settings.tls_creds.as_deref(), Some("creds"));
    assert_eq!(encrypted.settings.tls_authz.as_deref(), Some("list"));
}

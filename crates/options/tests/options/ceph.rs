//! Images of Ceph (`driver=rbd`), and secrets. Refused ones are in `golden/command-lines.txt`.

use std::path::PathBuf;

use options::{
    BlockdevOptions, ConfigFileWithOptions, DaemonSettingsAndDirectives, Directive, Driver,
    Invocation, Locking, MAX_SECRET_BYTES, ObjectOptions, RbdAuthMode, RbdOptions, SecretOptions,
    ServeDisk, ServeSettings, parse,
};

fn run(args: &[&str]) -> Result<DaemonSettingsAndDirectives, String> {
    match parse(args.iter().map(Into::into)) {
        Ok(Invocation::Daemon(daemon)) => Ok(daemon),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

/// A node, after a secret that it can refer to.
fn node(options: &str) -> Result<BlockdevOptions, String> {
    let secret = ["--object", "secret,id=key0,file=/key"];
    let daemon = run(&[&secret[..], &["--blockdev", options]].concat())?;
    match daemon.directives.into_iter().next_back() {
        Some(Directive::Blockdev(node)) => Ok(node),
        other => panic!("{other:?}"),
    }
}

fn rbd(node: &BlockdevOptions) -> &RbdOptions {
    match &node.driver {
        Driver::Rbd(rbd) => rbd,
        other => panic!("{other:?}"),
    }
}

fn secret(options: &str) -> Result<SecretOptions, String> {
    match run(&["--object", options])?.directives.remove(0) {
        Directive::Object(ObjectOptions::Secret(secret)) => Ok(secret),
        other => panic!("{other:?}"),
    }
}

fn serve(args: &[&str]) -> Result<ServeSettings, String> {
    match parse(std::iter::once("serve".into()).chain(args.iter().map(Into::into))) {
        Ok(Invocation::Serve(serve)) => Ok(serve),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

const LEAST: &str = "driver=rbd,node-name=n,pool=vms,image=disk";

#[test]
fn qemus_options_of_an_image_are_read_in_both_notations() {
    let text = format!(
        "{LEAST},namespace=ns,conf=/c,user=vm,key-secret=key0,auth-client-required.0=cephx,\
         auth-client-required.1=none,server.0.host=mon,server.0.port=3300,server.1.host=::1,server.1.port=6789"
    );
    let json = r#"{"driver": "rbd", "node-name": "n", "pool": "vms", "image": "disk", "namespace": "ns", "conf": "/c",
        "user": "vm", "key-secret": "key0", "auth-client-required": ["cephx", "none"],
        "server": [{"host": "mon", "port": "3300"}, {"host": "::1", "port": "6789"}]}"#;
    let read = node(&text).unwrap();
    assert_eq!(node(json).as_ref(), Ok(&read));
    let rbd = rbd(&read);
    assert_eq!(rbd.image_spec(), "vms/ns/disk");
    assert_eq!(rbd.conf, Some(PathBuf::from("/c")));
    assert_eq!(rbd.user.as_deref(), Some("vm"));
    assert_eq!(read.driver.secret_id(), Some("key0"));
    assert_eq!(
        rbd.auth_client_required,
        [RbdAuthMode::Cephx, RbdAuthMode::None]
    );
    let servers: Vec<String> = rbd.server.iter().map(ToString::to_string).collect();
    assert_eq!(servers, ["mon:3300", "[::1]:6789"]);
    assert_eq!(rbd.locking, Locking::Auto);
}

#[test]
fn a_snapshot_makes_its_node_read_only() {
    for settings in ["", ",read-only=on", ",read-only=off,auto-read-only=on"] {
        let read = node(&format!("{LEAST},snapshot=s{settings}")).unwrap();
        assert!(read.settings.read_only, "{settings}");
        assert_eq!(rbd(&read).image_spec(), "vms/disk@s");
    }
}

#[test]
fn a_secret_is_read_from_a_file_or_given() {
    let file = secret("secret,id=s,file=/key,format=base64").unwrap();
    assert_eq!(file.file, Some(PathBuf::from("/key")));
    assert_eq!(file.decode_data(), None);
    assert_eq!(file.decode(b"aGVs\nbG8=\n").unwrap().as_bytes(), b"hello");
    let raw = secret("secret,id=s,data=hel,,lo").unwrap();
    assert_eq!(raw.decode_data().unwrap().unwrap().as_bytes(), b"hel,lo");
    let given = secret("secret,id=s,data=aGVsbG8=,format=base64").unwrap();
    let bytes = given.decode_data().unwrap().unwrap();
    assert_eq!(bytes.as_bytes(), b"hello");
    assert_eq!(bytes.to_base64(), "aGVsbG8=");
    let long = vec![b'x'; MAX_SECRET_BYTES + 1];
    assert!(file.decode(&long).is_err());
    assert!(file.decode(b"").is_err());
}

/// Neither as it was written nor decoded.
#[test]
fn the_content_of_a_secret_is_in_no_output() {
    let options = "secret,id=s,data=dG9wc2VjcmV0,format=base64";
    let with_file = ["--config", "/f", "--object", options];
    let unread = parse(with_file.iter().map(Into::into)).unwrap();
    let read = secret(options).unwrap();
    let decoded = read.decode_data().unwrap();
    let wrong = secret("secret,id=s,data=dG9wc2VjcmV0,format=base65").unwrap_err();
    let number = secret(r#"{"qom-type": "secret", "id": "s", "data": 9876}"#).unwrap_err();
    let file = "[secret.s]\ndata = 'dG9wc2VjcmV0x'\nformat = 'base64'\n[secret.t]\ndata = 9876\n";
    let file = ConfigFileWithOptions::for_path("f")
        .parse(file)
        .unwrap_err();
    let unclosed = "[secret.s]\ndata = 'dG9wc2VjcmV0\n";
    let unclosed = ConfigFileWithOptions::for_path("f").parse(unclosed);
    let unclosed = unclosed.unwrap_err();
    for shown in [
        format!("{unread:?}"),
        format!("{read:?} {decoded:?}"),
        wrong,
        number,
        format!("{file}{file:?}{unclosed}{unclosed:?}"),
    ] {
        for part in ["dG9w", "topsecret", "9876"] {
            assert!(!shown.contains(part), "{shown}");
        }
    }
}

#[test]
fn secrets_have_tables_in_configuration_files() {
    let text = "[blockdev.d]\ndriver = 'rbd'\npool = 'vms'\nimage = 'disk'\nkey-secret = 'key0'\n\
                auth-client-required = ['cephx']\nserver = [{ host = 'mon', port = 3300 }]\n\
                [secret.key0]\nfile = '/key'\nformat = 'base64'\n";
    let daemon = ConfigFileWithOptions::for_path("f").parse(text).unwrap();
    let names: Vec<&str> = daemon
        .directives
        .iter()
        .map(|directive| match directive {
            Directive::Object(object) => object.id(),
            Directive::Blockdev(node) => &node.node_name,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(names, ["key0", "d"], "secrets come first");
}

#[test]
fn serve_takes_images_as_qemu_and_ceph_write_them() {
    let image = |word: &str| match serve(&[word])?.disks.remove(0) {
        ServeDisk::Rbd { image, .. } => Ok(*image),
        other => Err(format!("{other:?}")),
    };
    let plain = image("rbd:vms/disk").unwrap();
    assert_eq!((plain.pool.as_str(), plain.image.as_str()), ("vms", "disk"));
    let full = image("rbd:vms/ns/disk@snap:conf=/etc/ceph/b.conf:id=vm").unwrap();
    assert_eq!(full.image_spec(), "vms/ns/disk@snap");
    assert_eq!(full.conf, Some(PathBuf::from("/etc/ceph/b.conf")));
    assert_eq!(full.user.as_deref(), Some("vm"));
    let escaped = image(r"rbd:a\:b/c\@d\\:conf=e\:f").unwrap();
    assert_eq!(
        (escaped.pool.as_str(), escaped.image.as_str()),
        ("a:b", r"c@d\")
    );
    assert_eq!(escaped.conf, Some(PathBuf::from("e:f")));
    let file = serve(&["./rbd:vms/disk"]).unwrap().disks;
    assert_eq!(file, [ServeDisk::Path(PathBuf::from("./rbd:vms/disk"))]);
    let socket = serve(&["rbd:vms/disk@s"]).unwrap().socket_path_or_default();
    assert_eq!(socket, PathBuf::from("disk.sock"));
}

#[test]
fn serve_takes_the_file_of_a_key() {
    for (word, expected) in [
        ("rbd:a/b:id=vm", None),
        (r"rbd:a/b:keyfile=/c\:d:id=vm", Some("/c:d")),
    ] {
        let disk = serve(&[word]).unwrap().disks.remove(0);
        let ServeDisk::Rbd { image, key_file } = disk else {
            panic!("{disk:?}");
        };
        assert_eq!(image.user.as_deref(), Some("vm"));
        assert_eq!(key_file, expected.map(PathBuf::from));
    }
}

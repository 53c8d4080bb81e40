//! Secrets, throttle groups, servers and nodes: what their options say beyond the values that `golden/` records.

use options::{
    ConfigFileWithOptions, Directive, Driver, MAX_SECRET_BYTES, ObjectOptions, SecretOptions,
    ThrottleGroupOptions,
};

use crate::{invocation, last_directive};

fn secret(options: &str) -> Result<SecretOptions, String> {
    match last_directive(&["--object", options])? {
        Directive::Object(ObjectOptions::Secret(secret)) => Ok(secret),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_secret_is_read_from_a_file_or_given() {
    let file = secret("secret,id=s,file=/key,format=base64").unwrap();
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
    let unread = invocation(&["--config", "/f", "--object", options]).unwrap();
    let read = secret(options).unwrap();
    let decoded = read.decode_data().unwrap();
    let in_file = |text: &str| {
        let parsed = ConfigFileWithOptions::for_path("f").parse(text);
        let error = parsed.unwrap_err();
        format!("{error}{error:?}")
    };
    for shown in [
        format!("{unread:?}"),
        format!("{read:?} {decoded:?}"),
        secret("secret,id=s,data=dG9wc2VjcmV0,format=base65").unwrap_err(),
        secret(r#"{"qom-type": "secret", "id": "s", "data": 9876}"#).unwrap_err(),
        in_file("[secret.s]\ndata = 'dG9wc2VjcmV0x'\nformat = 'base64'\n[secret.t]\ndata = 9876\n"),
        in_file("[secret.s]\ndata = 'dG9wc2VjcmV0\n"),
    ] {
        for part in ["dG9w", "topsecret", "9876"] {
            assert!(!shown.contains(part), "{shown}");
        }
    }
}

/// The limits that are set: name, rate, burst rate, seconds.
fn limits(group: &ThrottleGroupOptions) -> Vec<(&'static str, u64, u64, u64)> {
    let set = group.limits().into_iter().filter(|limit| limit.rate > 0);
    set.map(|limit| {
        (
            limit.name,
            limit.rate,
            limit.burst_rate,
            limit.burst_seconds,
        )
    })
    .collect()
}

#[test]
fn limits_of_a_group_are_what_its_options_and_those_of_serve_say() {
    let text = "throttle-group,id=g,limits.iops-total=100,limits.iops-total-max=200,limits.iops-total-max-length=30,\
        limits.bps-read=1M,limits.bps-write=5,limits.bps-write-max=7";
    let Directive::Object(ObjectOptions::ThrottleGroup(group)) =
        last_directive(&["--object", text]).unwrap()
    else {
        panic!("a group");
    };
    let words = "disk.img --iops 100,max=200,length=30 --bps write:5,max=7 --bps read:1M";
    let words: Vec<&str> = words.split(' ').collect();
    for group in [group, *crate::serve(&words).unwrap().limits.unwrap()] {
        let expected = [
            ("iops-total", 100, 200, 30),
            ("bps-read", 1 << 20, 0, 1),
            ("bps-write", 5, 7, 1),
        ];
        assert_eq!(limits(&group), expected);
    }
}

#[test]
fn versions_of_ip_choose_addresses() {
    for (versions, addresses) in [
        ("", &["127.0.0.1:1", "[::1]:1"][..]),
        (",addr.ipv4=on", &["127.0.0.1:1"]),
        (",addr.ipv4=off", &["[::1]:1"]),
        (",addr.ipv6=on", &["[::1]:1"]),
        (",addr.ipv4=on,addr.ipv6=on", &["127.0.0.1:1", "[::1]:1"]),
    ] {
        let server = format!("addr.type=inet,addr.host=localhost,addr.port=1{versions}");
        let Ok(Directive::NbdServer(server)) = last_directive(&["--nbd-server", &server]) else {
            panic!("{server}");
        };
        let found = server.addr.tcp_addresses();
        let found: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert_eq!(found, addresses, "{versions}");
    }
}

#[test]
fn a_chardev_that_listens_waits_by_default() {
    for (text, waits) in [
        ("path=p", false),
        ("path=p,server=on", true),
        ("path=p,server=on,wait=off", false),
    ] {
        let text = format!("socket,id=c,{text}");
        let Ok(Directive::Chardev(chardev)) = last_directive(&["--chardev", &text]) else {
            panic!("{text}");
        };
        assert_eq!(chardev.waits_for_client(), waits, "{text}");
    }
}

#[test]
fn a_node_written_inside_another_is_described_with_its_present_options() {
    let node = |text: &str| match last_directive(&["--blockdev", text]) {
        Ok(Directive::Blockdev(node)) => node,
        other => panic!("{other:?}"),
    };
    let outer = node("raw,node-name=n,file.driver=file,file.node-name=f,file.filename=/f");
    let now = node("file,node-name=f,filename=/f,aio=threads");
    let current = |name: &str| (name == "f").then_some(&now);
    let description = outer.to_json(&current).unwrap();
    assert_eq!(description["file"]["aio"], "threads");
    assert_eq!(description["file"]["filename"], "/f");
}

#[test]
fn certificate_of_an_nbd_server_has_the_given_name_or_the_hosts() {
    let creds = "tls-creds-x509,id=tls0,dir=/d,endpoint=client";
    let name = |options: &str| {
        let node =
            format!("nbd,node-name=d,server.type=inet,server.port=1,tls-creds=tls0,{options}");
        match last_directive(&["--object", creds, "--blockdev", &node]) {
            Ok(Directive::Blockdev(node)) => match node.driver {
                Driver::Nbd(nbd) => nbd.tls_server_name().map(str::to_owned),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(name("server.host=::1").as_deref(), Some("::1"));
    let both = name("server.host=::1,tls-hostname=store");
    assert_eq!(both.as_deref(), Some("store"));
}

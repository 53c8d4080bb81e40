//! `--chardev` and `--monitor`.

use std::path::PathBuf;

use options::{CommonChardevOptions, Directive, Invocation, MonitorOptions, SocketAddr, parse};

fn directives(line: &str) -> Result<Vec<Directive>, String> {
    match parse(line.split_whitespace().map(Into::into)) {
        Ok(Invocation::Daemon(daemon)) => Ok(daemon.directives),
        Ok(other) => panic!("{line}: {other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn unix(path: &str) -> SocketAddr {
    SocketAddr::Unix {
        path: PathBuf::from(path),
    }
}

#[test]
fn a_chardev_listens_or_connects_and_waits_by_default() {
    for (text, addr, server, wait) in [
        ("path=p", unix("p"), false, false),
        ("path=p,server=off", unix("p"), false, false),
        ("path=p,server=on", unix("p"), true, true),
        ("path=p,server=on,wait=off", unix("p"), true, false),
        (
            "fd=7,server=on,wait=on",
            SocketAddr::Fd { fd: 7 },
            true,
            true,
        ),
    ] {
        let found = directives(&format!("--chardev socket,id=c,{text}"));
        let Ok([Directive::Chardev(chardev)]) = found.as_deref() else {
            panic!("{text}: {found:?}");
        };
        assert_eq!(chardev.addr, addr, "{text}");
        let CommonChardevOptions {
            id,
            server: listens,
            users,
            ..
        } = &chardev.settings;
        assert_eq!((&**id, *listens, users), ("c", server, &None), "{text}");
        assert_eq!(chardev.waits_for_client(), wait, "{text}");
    }
}

#[test]
fn a_chardev_may_be_limited_to_users() {
    let users = |text: &str| match directives(&format!("--chardev socket,id=c,path=p,{text}")) {
        Ok(directives) => match directives.into_iter().next() {
            Some(Directive::Chardev(chardev)) => Ok(chardev.settings.users),
            other => panic!("{other:?}"),
        },
        Err(error) => Err(error.to_string()),
    };
    assert_eq!(users("server=on"), Ok(None));
    assert_eq!(users("server=on,users=0"), Ok(Some(vec![0])));
    assert_eq!(
        users("server=on,users=7:4294967295"),
        Ok(Some(vec![7, u32::MAX]))
    );
}

#[test]
fn a_monitor_names_its_chardev() {
    let chardev = "--chardev socket,id=c,path=p,server=on";
    for (text, pretty) in [
        ("c", false),
        ("chardev=c,mode=control", false),
        ("c,pretty=on", true),
    ] {
        let found = directives(&format!("{chardev} --monitor {text}")).unwrap();
        let chardev = "c".to_owned();
        let expected = Directive::Monitor(MonitorOptions { chardev, pretty });
        assert_eq!(found[1], expected, "{text}");
    }
}

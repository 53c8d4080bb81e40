//! Options of qemu-storage-daemon, as scripts that call it use them. Those of each object are in `golden/`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;

use options::{Directive, Invocation, parse};

use crate::{daemon, help, invocation, last_directive};

#[test]
fn directives_keep_the_order_of_the_command_line() {
    let daemon = daemon(&[
        "--daemonize",
        "--object",
        "iothread,id=io0",
        "--pidfile=/run/x.pid",
        "--blockdev",
        "file,node-name=f,filename=/a",
        "--chardev=socket,id=c,path=/q",
        "--blockdev=raw,node-name=r,file=f",
        "--export",
        "vhost-user-blk,id=e,node-name=r,addr.type=unix,addr.path=/s",
    ])
    .unwrap();
    let names = daemon.directives.iter().map(|directive| match directive {
        Directive::Object(object) => object.id(),
        Directive::Blockdev(node) => &node.node_name,
        Directive::Chardev(chardev) => &chardev.settings.id,
        Directive::Export(export) => &export.id,
        other => panic!("{other:?}"),
    });
    assert_eq!(names.collect::<Vec<_>>(), ["io0", "f", "c", "r", "e"]);
    assert!(daemon.daemonize);
}

#[test]
fn help_version_and_bad_options_come_before_everything_else() {
    let text = help(&["--help"]);
    for args in [
        &["-h"][..],
        &["--he"],
        &["--blockdev", "nonsense", "stray", "-h"],
        &["-hV"],
        &[],
    ] {
        assert_eq!(help(args), text, "{args:?}");
    }
    let version = format!("blockplane version {}\n", env!("CARGO_PKG_VERSION"));
    for args in [
        &["-V"][..],
        &["--version"],
        &["--object", "nonsense", "-Vh"],
    ] {
        let expected = Ok(Invocation::Version(version.clone()));
        assert_eq!(invocation(args), expected, "{args:?}");
    }
}

#[test]
fn the_help_lists_every_key_that_is_accepted() {
    let text = help(&["--help"]);
    for (option, kind) in [
        ("--object", "iothread"),
        ("--blockdev", "file"),
        ("--blockdev", "raw"),
        ("--blockdev", "null-co"),
        ("--export", "vhost-user-blk"),
    ] {
        let known = last_directive(&[option, &format!("{kind},zz=1")]).unwrap_err();
        let (_, keys) = known.split_once("Known: ").unwrap();
        for key in keys.split(", ") {
            assert!(text.contains(&format!("  {key}=")), "{kind}: {key}");
        }
    }
}

#[test]
fn values_that_are_not_utf_8_are_refused() {
    let value = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let node = value(b"null-co,node-name=\xff");
    let error = parse(["--blockdev".into(), node].into_iter()).unwrap_err();
    assert!(error.to_string().contains("not valid UTF-8"), "{error}");
    let path = value(b"/run/\xff");
    let read = parse(["--pidfile".into(), path.clone()].into_iter());
    let Ok(Invocation::Daemon(daemon)) = read else {
        panic!("{read:?}");
    };
    assert_eq!(daemon.pidfile, Some(path.into()));
}

//! Command lines that are refused: status 1, one message that names the option, and nothing created. All refusals are in
//! `crates/options/tests/options/golden/command-lines.txt`.

use crate::process::Folder;

#[test]
fn a_refused_command_line_creates_nothing() {
    let first = "--blockdev null-co,node-name=d --export vhost-user-blk,id=e,node-name=d,addr.type=unix,addr.path=s";
    let second = "--export vhost-user-blk,id=f,node-name=d,addr.type=unix,addr.path=no/such/folder";
    for (line, words) in [
        ("disk.img", &["disk.img", "blockplane serve disk.img"][..]),
        // Also when the last of several options is wrong.
        (&format!("{first} --pidfile p --nonsense"), &["--nonsense"]),
        (
            &format!("{first},num-queues=0"),
            &["--export", "num-queues"],
        ),
        // When files and sockets are opened.
        (
            &format!("{first} --blockdev file,node-name=f,filename=missing.img"),
            &["missing.img"],
        ),
        (&format!("{first} {second}"), &["no/such/folder"]),
        (
            &format!("{first} --pidfile no/such/folder"),
            &["--pidfile", "no/such/folder"],
        ),
    ] {
        let folder = Folder::new();
        eprintln!("blockplane {line}");
        folder.run(line).assert_fails_naming(words);
        assert_eq!(folder.names(), [""; 0], "{line}");
    }
}

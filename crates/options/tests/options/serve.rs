//! `blockplane serve`, beyond the meanings of its options, which `golden/command-lines.txt` records.

use options::{LogLevel, ServeDevice, ServeDisk};

use crate::{help, invocation, serve};

#[test]
fn the_default_socket_is_named_after_the_first_disk() {
    for (words, socket) in [
        (&["/dev/vg0/guest"][..], "guest.sock"),
        (&["null-co:"], "null-co.sock"),
        (&["d", "-s", "/x/y"], "/x/y"),
        (&["rbd:vms/disk@s"], "disk.sock"),
        (&["--device", "virtio-scsi", "/d/b", "null-co:"], "b.sock"),
    ] {
        let path = serve(words).unwrap().socket_path_or_default();
        assert_eq!(path.to_str(), Some(socket), "{words:?}");
    }
}

#[test]
fn nbd_uris_are_shown_as_they_were() {
    for uri in [
        "nbd://host:10809",
        "nbd://host:10809/disk",
        "nbd://host:1234/a/b",
        "nbd://[::1]:10809/disk",
        "nbd+unix://?socket=/run/nbd.sock",
        "nbd+unix:///disk?socket=/run/nbd.sock",
    ] {
        match serve(&[uri, "--socket", "/s"]).unwrap().disks.remove(0) {
            ServeDisk::Nbd(nbd) => assert_eq!(nbd.uri(), uri),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn virtio_scsi_numbers_luns_and_lsi53c895a_numbers_targets() {
    let places = |device: ServeDevice, disks: [u16; 4]| disks.map(|n| device.target_and_lun(n));
    let scsi = places(ServeDevice::VirtioScsi, [0, 1, 2, 255]);
    assert_eq!(scsi, [(0, 0), (0, 1), (0, 2), (0, 255)]);
    let lsi = places(ServeDevice::Lsi53c895a, [0, 6, 7, 14]);
    assert_eq!(lsi, [(0, 0), (6, 0), (8, 0), (15, 0)]);
}

#[test]
fn the_number_of_disks_is_limited_by_the_device() {
    for (device, most, next) in [
        ("virtio-blk", 1, "--device virtio-scsi"),
        ("virtio-scsi", 256, "another --socket"),
        ("lsi53c895a", 15, "--device virtio-scsi, which has 256"),
    ] {
        let disks =
            |number| serve(&[&["--device", device][..], &vec!["null-co:"; number]].concat());
        assert_eq!(disks(most).unwrap().disks.len(), most);
        let error = disks(most + 1).unwrap_err();
        assert!(error.contains(next), "{error}");
    }
}

#[test]
fn help_of_serve_is_the_same_however_it_is_asked_for() {
    let text = help(&["serve", "--help"]);
    assert_eq!(help(&["help", "serve"]), text);
    assert_eq!(help(&["serve", "d", "--help"]), text);
}

/// Examples in help texts have to be accepted.
#[test]
fn examples_of_both_help_texts_parse() {
    let mut seen = 0;
    for words in [&["--help"][..], &["serve", "--help"]] {
        let text = help(words).replace(",\\\n", ",").replace("\\\n", " ");
        let lines = text.lines();
        for line in lines.filter_map(|line| line.trim().strip_prefix("blockplane ")) {
            // Not examples, but what may be written; and the version in the first line.
            let is_form = ["DISK", "FILE", "[OPTIONS]", "…"]
                .iter()
                .any(|word| line.contains(word));
            if is_form || line.starts_with("0.") {
                continue;
            }
            let words: Vec<&str> = line.split_whitespace().collect();
            invocation(&words).unwrap_or_else(|error| panic!("{line}: {error}"));
            seen += 1;
        }
    }
    assert_eq!(seen, 10, "examples were found");
}

#[test]
fn log_levels_have_standard_names() {
    for (name, level) in [
        ("error", LogLevel::Error),
        ("warn", LogLevel::Error),
        ("Warning", LogLevel::Error),
        ("INFO", LogLevel::Info),
        ("debug", LogLevel::Debug),
        ("trace", LogLevel::Trace),
    ] {
        assert_eq!(LogLevel::from_name(name), Some(level), "{name}");
    }
    assert_eq!(LogLevel::from_name("loud"), None);
}

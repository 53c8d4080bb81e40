//! `serve --device`: several disks, their targets and LUNs, and options that a device does not support.

use std::path::{Path, PathBuf};

use options::{Invocation, ServeDevice, ServeDisk, ServeSettings, parse};

fn run(words: &str) -> Result<ServeSettings, String> {
    let words = words.split_whitespace().map(Into::into);
    match parse(std::iter::once("serve".into()).chain(words)) {
        Ok(Invocation::Serve(serve)) => Ok(serve),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn disks_keep_their_order_and_the_first_names_the_socket() {
    let serve =
        run("--device virtio-scsi /d/b null-co: a --serial X --serial Y --serial Z").unwrap();
    assert_eq!(serve.device, ServeDevice::VirtioScsi);
    let path = |path| ServeDisk::Path(PathBuf::from(path));
    assert_eq!(serve.disks, [path("/d/b"), ServeDisk::NullCo, path("a")]);
    assert_eq!(serve.serials, ["X", "Y", "Z"]);
    assert_eq!(serve.socket_path_or_default(), Path::new("b.sock"));
}

#[test]
fn virtio_scsi_numbers_luns_and_lsi53c895a_numbers_targets() {
    let scsi = ServeDevice::VirtioScsi;
    assert_eq!(
        [0, 1, 255].map(|disk| scsi.target_and_lun(disk)),
        [(0, 0), (0, 1), (0, 255)]
    );
    let lsi = ServeDevice::Lsi53c895a;
    let places = [0, 6, 7, 14].map(|disk| lsi.target_and_lun(disk));
    assert_eq!(places, [(0, 0), (6, 0), (8, 0), (15, 0)]);
}

#[test]
fn the_number_of_disks_is_limited_by_the_device() {
    for (device, most, next) in [
        ("virtio-blk", 1, "--device virtio-scsi"),
        ("virtio-scsi", 256, "another --socket"),
        ("lsi53c895a", 15, "--device virtio-scsi, which has 256"),
    ] {
        let disks = |number| run(&format!("--device {device} {}", " null-co:".repeat(number)));
        assert_eq!(disks(most).unwrap().disks.len(), most);
        let error = disks(most + 1).unwrap_err();
        assert!(error.contains(next), "{error}");
    }
}

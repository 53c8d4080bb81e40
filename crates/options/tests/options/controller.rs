//! `--export type=vhost-user-scsi`: a controller and its disks.

use options::{
    Directive, ExportKind, ExportOptions, Invocation, LunDeviceOptions, LunOptions, parse,
};

const BASE: [&str; 5] = [
    "--blockdev",
    "driver=null-co,node-name=n",
    "--blockdev",
    "driver=null-co,node-name=r,read-only=on",
    "--export",
];

fn read(rest: &str) -> Result<ExportOptions, String> {
    let text = format!("vhost-user-scsi,id=e,addr.type=unix,addr.path=/s{rest}");
    let words = BASE.iter().copied().chain([text.as_str()]);
    match parse(words.map(Into::into)) {
        Ok(Invocation::Daemon(mut daemon)) => match daemon.directives.pop() {
            Some(Directive::Export(export)) => Ok(export),
            other => panic!("not an export: {other:?}"),
        },
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn luns(rest: &str) -> Vec<LunOptions> {
    let export = read(rest).unwrap_or_else(|error| panic!("{error}"));
    let ExportKind::VhostUserScsi { luns, .. } = export.kind else {
        panic!("a controller");
    };
    luns
}

fn lun(target: u16, lun: u16) -> LunOptions {
    LunOptions {
        node_name: "n".to_owned(),
        target,
        lun,
        writable: false,
        device: LunDeviceOptions::defaults(),
    }
}

#[test]
fn a_single_node_is_target_0_lun_0() {
    assert_eq!(luns(",node-name=n"), [lun(0, 0)]);
    let named = LunOptions {
        writable: true,
        device: LunDeviceOptions {
            serial: Some("S1".to_owned()),
            ..LunDeviceOptions::defaults()
        },
        ..lun(0, 0)
    };
    assert_eq!(luns(",node-name=n,serial=S1,writable=on"), [named]);
    assert_eq!(luns(""), [], "units may come later");
}

#[test]
fn a_disk_has_identity_options_of_its_own() {
    let serial = "x".repeat(247);
    let device = LunDeviceOptions {
        logical_block_size: 512,
        serial: Some(serial.clone()),
        vendor: Some("QEMU".to_owned()),
        product: Some("QEMU HARDDISK".to_owned()),
        version: Some("2.5+".to_owned()),
        wwn: Some(0x5000_c500_1234_5678),
        device_id: Some("drive-scsi0-0-0-0".to_owned()),
        rotation_rate: 7200,
        pr_file: Some("/var/pr".into()),
    };
    let keys = [
        "vendor=QEMU",
        "product=QEMU HARDDISK",
        "ver=2.5+",
        "wwn=0x5000c50012345678",
        "device-id=drive-scsi0-0-0-0",
        "rotation-rate=7200",
        "pr-file=/var/pr",
    ];
    let named = LunOptions {
        device,
        ..lun(0, 0)
    };
    let with_serial = format!("serial={serial}");
    let keys = [keys.as_slice(), &[&with_serial]].concat();
    let alone = format!(",node-name=n,{}", keys.join(","));
    let listed = format!(",luns.0.node-name=n,luns.0.{}", keys.join(",luns.0."));
    for text in [alone, listed] {
        assert_eq!(luns(&text), std::slice::from_ref(&named));
    }
}

#[test]
fn disks_have_targets_and_luns() {
    let text = ",luns.0.node-name=n,luns.1.node-name=n,luns.2.node-name=n,luns.2.target=3,\
                luns.3.node-name=n,luns.3.lun=16383,luns.4.node-name=n";
    let expected = [lun(0, 0), lun(0, 1), lun(3, 0), lun(0, 16_383), lun(0, 2)];
    assert_eq!(luns(text), expected);
    let export = read(text).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(export.node_name, "n");
}

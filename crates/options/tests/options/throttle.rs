//! Throttle groups and nodes of driver `throttle` in each notation. Refused ones are in `golden/command-lines.txt`.

use options::{
    BlockdevOptions, ConfigFileWithOptions, Directive, Driver, GroupLimit, Invocation,
    ObjectOptions, ThrottleGroupOptions, parse,
};

fn directives(words: &[&str]) -> Result<Vec<Directive>, String> {
    match parse(words.iter().map(Into::into)) {
        Ok(Invocation::Daemon(daemon)) => Ok(daemon.directives),
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

fn group(text: &str) -> Result<ThrottleGroupOptions, String> {
    match directives(&["--object", text])?.pop() {
        Some(Directive::Object(ObjectOptions::ThrottleGroup(group))) => Ok(group),
        other => panic!("{other:?}"),
    }
}

/// The limits that are set: name, rate, burst rate, seconds.
fn limits(group: &ThrottleGroupOptions) -> Vec<(&'static str, u64, u64, u64)> {
    let set = group.limits().into_iter().filter(|limit| limit.rate > 0);
    set.map(|limit| {
        let GroupLimit {
            name,
            rate,
            burst_rate,
            burst_seconds,
        } = limit;
        (name, rate, burst_rate, burst_seconds)
    })
    .collect()
}

#[test]
fn each_limit_has_its_value_in_both_notations() {
    let text = "throttle-group,id=g,limits.iops-total=100,limits.iops-total-max=200,limits.iops-total-max-length=30,\
        limits.bps-read=1M,limits.bps-write=5,limits.bps-write-max=7,limits.iops-size=64k";
    let json = r#"{"qom-type": "throttle-group", "id": "g", "limits": {
        "iops-total": 100, "iops-total-max": 200, "iops-total-max-length": 30,
        "bps-read": 1048576, "bps-write": 5, "bps-write-max": 7, "iops-size": 65536}}"#;
    for text in [text, json] {
        let group = group(text).unwrap();
        let expected = [
            ("iops-total", 100, 200, 30),
            ("bps-read", 1 << 20, 0, 1),
            ("bps-write", 5, 7, 1),
        ];
        assert_eq!((group.id.as_str(), group.iops_size), ("g", 65536));
        assert_eq!(limits(&group), expected);
    }
    assert_eq!(limits(&group("throttle-group,id=g").unwrap()), []);
    const HIGHEST: u64 = 1_000_000_000_000_000;
    let text =
        format!("throttle-group,id=g,limits.bps-read={HIGHEST},limits.bps-read-max={HIGHEST}");
    assert_eq!(
        limits(&group(&text).unwrap()),
        [("bps-read", HIGHEST, HIGHEST, 1)]
    );
}

#[test]
fn a_node_names_a_group_that_is_defined_before_it() {
    let group = ["--object", "throttle-group,id=g"];
    let node = [
        "--blockdev",
        "throttle,node-name=t,throttle-group=g,file.driver=null-co,file.node-name=n",
    ];
    let read = directives(&[group, node].concat()).unwrap();
    let Some(Directive::Blockdev(BlockdevOptions { driver, .. })) = read.last() else {
        panic!("{read:?}");
    };
    assert!(matches!(driver, Driver::Throttle { .. }), "{driver:?}");
    assert_eq!(driver.throttle_group(), Some("g"));
    assert_eq!(
        driver
            .child_with_key()
            .map(|(key, node)| (key, node.node_name())),
        Some(("file", "n"))
    );
}

#[test]
fn a_file_has_groups_as_tables_in_any_order() {
    let text = r#"
        [blockdev.d]
        driver = "throttle"
        throttle-group = "tenant"
        file = { driver = "null-co" }
        [throttle-group.tenant]
        limits = { iops-total = 2000, bps-read = "100M" }
    "#;
    let daemon = ConfigFileWithOptions::for_path("f").parse(text).unwrap();
    let Directive::Object(ObjectOptions::ThrottleGroup(group)) = &daemon.directives[0] else {
        panic!("{daemon:?}");
    };
    assert_eq!(
        limits(group),
        [("iops-total", 2000, 0, 1), ("bps-read", 100 << 20, 0, 1)]
    );
}

fn served_limits(options: &[&str]) -> Result<Vec<(&'static str, u64, u64, u64)>, String> {
    let words = ["serve", "disk.img"].iter().chain(options);
    match parse(words.map(Into::into)) {
        Ok(Invocation::Serve(serve)) => {
            Ok(serve.limits.map(|group| limits(&group)).unwrap_or_default())
        }
        Ok(other) => panic!("{other:?}"),
        Err(error) => Err(error.to_string()),
    }
}

#[test]
fn serve_takes_limits_for_both_directions_or_for_each() {
    assert_eq!(served_limits(&[]), Ok(vec![]));
    assert_eq!(
        served_limits(&[
            "--iops",
            "2000,max=20000,length=30",
            "--bps",
            "write:50M",
            "--bps",
            "read:1G,max=2G"
        ]),
        Ok(vec![
            ("iops-total", 2000, 20000, 30),
            ("bps-read", 1 << 30, 2 << 30, 1),
            ("bps-write", 50 << 20, 0, 1),
        ])
    );
}

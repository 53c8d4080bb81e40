//! Throttle groups and nodes of driver `throttle` in each notation: which limits are accepted, and the errors of the others.

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
fn wrong_limits_are_refused_in_words_of_qemu_with_the_keys_and_the_remedy() {
    let total_and_part =
        "bps/iops/max total values and read/write values cannot be used at the same time";
    for (limits, parts) in [
        (
            "iops-total=1,limits.iops-read=1",
            [
                total_and_part,
                "leave out 'limits.iops-read' or 'limits.iops-total'",
            ],
        ),
        (
            "bps-total=1,limits.bps-write=1",
            [
                total_and_part,
                "leave out 'limits.bps-write' or 'limits.bps-total'",
            ],
        ),
        (
            "bps-total-max=1,limits.bps-write-max=1",
            [
                total_and_part,
                "leave out 'limits.bps-write-max' or 'limits.bps-total-max'",
            ],
        ),
        (
            "iops-size=1",
            [
                "iops size requires an iops value to be set",
                "'limits.iops-size' needs 'limits.iops-total'",
            ],
        ),
        (
            "bps-read=1,limits.bps-read-max-length=2",
            [
                "burst length set without burst rate",
                "'limits.bps-read-max-length' needs 'limits.bps-read-max'",
            ],
        ),
        (
            "bps-read=1,limits.bps-read-max=1000000000000000,limits.bps-read-max-length=2",
            [
                "burst length too high for this burst rate",
                "lower 'limits.bps-read-max-length' to 1 or less",
            ],
        ),
        (
            "iops-write-max=2",
            [
                "bps_max/iops_max require corresponding bps/iops values",
                "'limits.iops-write-max' needs 'limits.iops-write'",
            ],
        ),
        (
            "iops-write=3,limits.iops-write-max=2",
            [
                "bps_max/iops_max cannot be lower than bps/iops",
                "raise 'limits.iops-write-max' to 3 or more",
            ],
        ),
        (
            "iops-total=1000000000000001",
            [
                "'limits.iops-total' value must be in range",
                "[0, 1000000000000000]",
            ],
        ),
        (
            "bps-write=1,limits.bps-write-max=1000000000000001",
            [
                "'limits.bps-write-max' value must be in range",
                "[0, 1000000000000000]",
            ],
        ),
        (
            "iops-total=1,limits.iops-size=1000000000000001",
            [
                "'limits.iops-size' value must be in range",
                "[0, 1000000000000000]",
            ],
        ),
        (
            "iops-read=-1",
            [
                "'limits.iops-read' value must be in range",
                "[0, 1000000000000000]",
            ],
        ),
        (
            "iops-total-max-length=0",
            ["'limits.iops-total-max-length'", "[1, 4294967295]"],
        ),
        (
            "iops-totl=1",
            ["'limits.iops-totl'", "did you mean 'limits.iops-total'?"],
        ),
        (
            "iops-total=100M",
            ["'limits.iops-total'", "expected a whole number"],
        ),
    ] {
        let error = group(&format!("throttle-group,id=g,limits.{limits}")).unwrap_err();
        for part in parts {
            assert!(error.contains(part), "{limits}: {error}");
        }
    }
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

    let error = directives(&node).unwrap_err();
    assert!(
        error.contains("'throttle-group' names the throttle-group 'g'"),
        "{error}"
    );
    let thread = ["--object", "iothread,id=g"];
    let error = directives(&[thread, node].concat()).unwrap_err();
    assert!(error.contains("names the throttle-group 'g'"), "{error}");
    let error = directives(&[thread, group].concat()).unwrap_err();
    assert!(error.contains("there is already an object 'g'"), "{error}");
    for (options, missing) in [("file=n", "throttle-group"), ("throttle-group=g", "file")] {
        let node = format!("throttle,node-name=t,{options}");
        let null = ["--blockdev", "null-co,node-name=n"];
        let words = [group, null, ["--blockdev", &node]].concat();
        let error = directives(&words).unwrap_err();
        assert!(
            error.contains(&format!("'{missing}' is missing")),
            "{error}"
        );
    }
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

    let wrong = "[throttle-group.g]\nlimits.iops-total = 2\nlimits.iops-total-max = 1\n";
    let error = ConfigFileWithOptions::for_path("f")
        .parse(wrong)
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("f: one problem\nf:3:8: bps_max/iops_max cannot be lower"),
        "{error}"
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
    for (options, part) in [
        (
            &["--iops", "writes:5"][..],
            "'writes' is no direction: expected read: or write:",
        ),
        (
            &["--iops", "5,burst=6"],
            "'burst=6' is unknown: expected max=… or length=…",
        ),
        (
            &["--iops", "5,max=6,max=7"],
            "max and length can be given once",
        ),
        (&["--iops", "x"], "'limits.iops-total' cannot be 'x'"),
        (
            &["--iops", "5", "--iops", "6"],
            "--iops is given twice for 'total'",
        ),
        (
            &["--iops", "5", "--iops", "read:6"],
            "leave out 'limits.iops-read' or 'limits.iops-total'",
        ),
        (
            &["--bps", "5,length=3"],
            "burst length set without burst rate",
        ),
    ] {
        let error = served_limits(options).unwrap_err();
        assert!(error.contains(part), "{options:?}: {error}");
    }
}

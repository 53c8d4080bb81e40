//! `blockplane-bench compare` on images of a Ceph cluster.
#![allow(clippy::unwrap_used, missing_docs)] // a test panics on what it did not expect

use bench::cli::{Cli, run};
use clap::Parser;
use serde_json::Value;
use test_support::ceph::{Auth, Cluster, ClusterOptions, ObjectStore};

/// The quickest to start.
const IN_MEMORY: ClusterOptions = ClusterOptions {
    store: ObjectStore::MemStore,
    auth: Auth::None,
    manager: false,
    watch_timeout: 5,
};

/// The comparison's JSON, or its error.
fn compare(cluster: &Cluster, image: &str, options: &str) -> Result<Value, String> {
    let conf = cluster.conf();
    let line = format!(
        "bench compare --backing rbd:{image}:conf={} --depth 4 --client blocking --time 200ms --warm-up 10ms \
         --repetitions 2 --no-pinning --json {options}",
        conf.display()
    );
    let cli = Cli::try_parse_from(line.split_whitespace()).map_err(|error| error.to_string())?;
    let mut out = Vec::new();
    run(&cli, &mut out).map_err(|error| error.to_string())?;
    Ok(serde_json::from_slice(&out).unwrap())
}

#[test]
fn compare_loads_all_images_through_every_contender() {
    let Some(cluster) = Cluster::start_or_report(IN_MEMORY) else {
        return;
    };
    let images = ["rbd/disk", "rbd/disk-2", "rbd/disk-3"];
    for image in &images[..2] {
        cluster.create_image(image, 4 << 20);
    }
    // Which engine the host's files have means nothing here.
    let contenders = "--servers ours,raw,raw:io_uring --disks 2 --iothreads 2";
    for pattern in ["randrw", "randread"] {
        let load = format!("{contenders} --pattern {pattern} --destroy-data");
        let report = compare(&cluster, images[0], &load).unwrap();
        let part = &report["compare"][0];
        assert_eq!(part["disks"], 2);
        let servers = part["rows"][0]["servers"].as_object().unwrap();
        assert!(servers.keys().eq(["ours", "raw:librbd"]), "{part:#}");
        for figure in servers.values() {
            for key in ["iops", "cpu_ns_per_io", "latency_p50_us"] {
                assert!(
                    figure[key]["median"].as_f64().unwrap() > 0.0,
                    "{key}: {part:#}"
                );
            }
        }
    }
    for image in &images[..2] {
        let written = cluster.rbd(["diff", image]);
        assert!(written.contains("data"), "{image}: {written}");
    }

    // All images are closed again: one that is open for writing has a watcher.
    for image in &images[..2] {
        let status = cluster.rbd(["status", image]);
        assert!(status.contains("Watchers: none"), "{image}: {status}");
    }

    let error = compare(&cluster, images[0], "--servers raw --disks 3").unwrap_err();
    assert!(error.contains("rbd/disk-3"), "{error}");
    let error = compare(&cluster, images[0], "--servers raw --pattern randwrite").unwrap_err();
    assert!(error.contains("--destroy-data"), "{error}");
    let error = compare(&cluster, images[0], "--servers raw --queues 65").unwrap_err();
    assert!(error.contains("260 requests in flight"), "{error}");
}

//! Tests of the command line and its help.

use super::*;
use clap::CommandFactory;

#[test]
fn command_line_definitions_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn examples_in_help_of_every_command_are_valid() {
    let mut all = Cli::command();
    all.build();
    let with_options = all.get_subcommands_mut();
    for command in with_options.filter(|command| command.get_name() != "help") {
        let help = command.render_long_help().to_string();
        let examples = command.get_after_long_help().unwrap().to_string();
        assert!(help.contains(&examples), "a line is too long: {examples}");
        assert!(help.lines().all(|line| line.chars().count() <= 80));
        let help = help.replace(" \\\n     ", "");
        let lines = help.lines().map(str::trim);
        let examples: Vec<&str> = lines
            .filter_map(|line| line.strip_prefix("blockplane-bench "))
            .collect();
        assert!(!examples.is_empty(), "{help}");
        for example in examples {
            let args = std::iter::once("bench").chain(example.split(' '));
            let parsed = Cli::try_parse_from(args);
            assert!(parsed.is_ok(), "{example}: {}", parsed.unwrap_err());
            assert!(example.starts_with(command.get_name()), "{example}");
        }
    }
}

#[test]
fn invalid_command_lines_are_refused_before_measuring() {
    for nonsense in [
        "handlers --registered 0",
        "idle --queues 0",
        "idle --queue-size 100",
        "run",
        "run socket --depth 0",
        "run socket --depth 513",
        "run socket --bs 100",
        "run socket --bs 2M",
        "run socket --time 0",
        "run socket --queues 0",
        "run socket --pattern backwards",
        "run socket --rwmixread 101",
        "targets --only everything",
        "compare --depth 513",
        "compare --servers spdk",
        "compare --servers raw:spdk",
        "compare --client both",
        "compare --aio spdk",
        "compare --iothreads 0",
        "compare --size 0",
        "compare --disks 0",
        "compare --backing rbd:disk",
        "compare --size 1000",
        "run socket --span 0",
        "batch-limit --limit 65537",
        "batch-limit --limit 8,some",
        "batch-limit --tmpfs --folder x",
        "notify --repetitions 0",
        "completion-ring --queues 0",
        "completion-ring --aio spdk",
        "handlers --idle-disks 0",
        "monitors --clients 1",
        "monitors --clients 129",
        "monitors --rate often",
        "monitors --clients-nice 20",
        "scsi --depth 65",
        "scsi --block-kib 2",
        "scsi --piece-kib 0",
        "throttle --limit iops-write=1",
        "throttle --after 0",
        "throttle --servers raw",
        "neighbours --repetitions 0",
        "backup --depth 513",
        "backup --pattern backwards",
        "backup --repetitions 0",
    ] {
        let args = std::iter::once("bench").chain(nonsense.split(' '));
        assert!(Cli::try_parse_from(args).is_err(), "{nonsense}");
    }
}

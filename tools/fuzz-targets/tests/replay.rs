//! The corpora in `fuzz/corpora`, through their targets, without a fuzzer: what was once found or reached is right, and so is what
//! is near it.
//!
//! `cargo xtask fuzz` looks for new inputs.

use std::path::Path;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use test_support::corpus;

/// Targets have threads, whose panics do not end the test.
static HAS_PANICKED: AtomicBool = AtomicBool::new(false);

fn note_panics() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            HAS_PANICKED.store(true, SeqCst);
            usual(panic);
        }));
    });
}

/// How often each input is changed by one seed.
const ROUNDS: usize = 4;

/// The seed of changes that are tried each time.
const FIXED_SEED: u64 = 1;

/// The environment's seed of further changes, another one for each commit.
const SEED: &str = "BLOCKPLANE_FUZZ_SEED";

/// How often each input is changed by the environment's seed: less where that takes seconds.
fn rounds_by_environment(target: &str) -> usize {
    match target {
        "lsi-adapter" | "lsi-chip" => 1,
        _ => ROUNDS,
    }
}

/// Changes some bytes of an input, as a fuzzer would, and lets it end as another one does: the same for the same seed.
fn mutated(input: &[u8], other: &[u8], seed: &mut u64) -> Vec<u8> {
    let mut below = |limit: usize| {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        usize::try_from(*seed >> 33).expect("64 bits") % limit.max(1)
    };
    let mut bytes = input.to_vec();
    if below(2) == 0 {
        bytes.truncate(below(input.len()));
        bytes.extend_from_slice(&other[below(other.len())..]);
    }
    for _ in 0..below(8) {
        let at = below(bytes.len());
        if let Some(byte) = bytes.get_mut(at) {
            *byte = below(256).to_le_bytes()[0];
        }
    }
    bytes
}

/// All inputs, changed so often by a seed.
fn all_mutated(inputs: &[Vec<u8>], rounds: usize, mut seed: u64) -> Vec<Vec<u8>> {
    let mut changed = Vec::new();
    for distance in 1..=rounds {
        let others = inputs.iter().cycle().skip(distance);
        for (input, other) in inputs.iter().zip(others) {
            changed.push(mutated(input, other, &mut seed));
        }
    }
    changed
}

fn replay(test: &str, name: &str) {
    note_panics();
    let target = fuzz_targets::find(name).expect("a target");
    let corpora = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpora");
    let inputs = corpus::read(&corpora.join(name).with_extension("corpus")).expect("a corpus");
    assert!(!inputs.is_empty());
    let mut changed = all_mutated(&inputs, ROUNDS, FIXED_SEED);
    if let Some(seed) = std::env::var_os(SEED) {
        let seed = seed.to_str().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or_else(|| panic!("{SEED} is a number"));
        changed.extend(all_mutated(&inputs, rounds_by_environment(name), seed));
        eprintln!("repeat it: {SEED}={seed} cargo test -p fuzz-targets {test}");
    }
    for (number, input) in inputs.iter().chain(&changed).enumerate() {
        // Shown if it fails.
        eprintln!("{name}: input {number}: {input:?}");
        target(input);
        let has_panicked = HAS_PANICKED.load(SeqCst);
        assert!(
            !has_panicked,
            "a thread has panicked, of this target or of another one"
        );
    }
}

macro_rules! replayed {
    ($($test:ident: $name:literal,)*) => {
        $(#[test]
        fn $test() {
            replay(stringify!($test), $name);
        })*

        #[test]
        fn every_target_is_replayed() {
            assert_eq!([$($name),*], fuzz_targets::TARGETS.map(|(name, _)| name));
        }
    };
}

replayed! {
    corpus_of_configuration_files_is_handled: "config",
    corpus_of_lsi_adapter_is_handled: "lsi-adapter",
    corpus_of_lsi_chip_is_handled: "lsi-chip",
    corpus_of_nbd_client_is_handled: "nbd-client",
    corpus_of_nbd_server_is_handled: "nbd-server",
    corpus_of_command_lines_is_handled: "options",
    corpus_of_qmp_is_handled: "qmp",
    corpus_of_packed_rings_is_handled: "ring-packed",
    corpus_of_split_rings_is_handled: "ring-split",
    corpus_of_scsi_commands_is_handled: "scsi",
    corpus_of_vfio_user_is_handled: "vfio-user",
    corpus_of_vhost_user_is_handled: "vhost-user",
    corpus_of_virtio_blk_is_handled: "virtio-blk",
    corpus_of_virtio_scsi_is_handled: "virtio-scsi",
}

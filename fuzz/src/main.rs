//! libFuzzer with a target of [`fuzz_targets`]: the variable `FUZZ_TARGET` names it.
#![no_main]

use std::sync::LazyLock;

static TARGET: LazyLock<fn(&[u8])> = LazyLock::new(|| {
    let name = std::env::var("FUZZ_TARGET").unwrap_or_default();
    fuzz_targets::find(&name).unwrap_or_else(|| panic!("FUZZ_TARGET: no target '{name}'"))
});

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| TARGET(bytes));

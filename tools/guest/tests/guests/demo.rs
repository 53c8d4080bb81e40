//! The demonstration.

#[test]
#[ignore = "full run only"]
fn demonstration_shows_both_guests_without_data_loss() {
    let mut out = Vec::new();
    guest::demo(&guest::blockplane().unwrap(), &mut out).unwrap();
    let text = String::from_utf8(out).unwrap();
    for expected in [
        "1073741824",
        "ok     write_files",
        "ok     verify_files",
        "All 24 checksums",
    ] {
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

//! Power failures of a real file, in every way that a disk may have failed.

use sim::real_file::{Images, power_failures};
use test_support::report::not_run;

const NO_DIRECT_IO: &str = "the file system has no direct I/O of sectors";

struct Folder(std::path::PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        // Beside what is compiled: on a disk that is written anyway.
        let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).expect("a folder");
        Folder(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn all(folder: &Folder, seeds: u64) -> Result<Images, String> {
    let mut sum = Images::default();
    let mut unfit = 0;
    for seed in 0..seeds {
        let Some(Images { moments, images }) = power_failures(&folder.0, seed)? else {
            unfit += 1;
            continue;
        };
        sum.moments += moments;
        sum.images += images;
    }
    if unfit > 0 {
        not_run(&format!("{NO_DIRECT_IO}: {unfit} of {seeds} runs"));
    }
    Ok(sum)
}

#[test]
fn flushed_data_survives_a_power_failure() {
    let folder = Folder::new("flushed");
    println!("{:?}", all(&folder, 40).unwrap());
}

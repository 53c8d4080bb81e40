//! The simulator: that it finds nothing, what it has once found, and power failures of a real file.

mod campaign;
mod findings;
mod real_file;

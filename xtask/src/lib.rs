//! Project chores that tests use as well.

pub mod package;

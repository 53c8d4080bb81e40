//! The commands for operators, for the program and for tests.

pub mod operator;

//! Operator commands, as a library for the program and for tests.

pub mod operator;

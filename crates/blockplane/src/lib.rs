//! The commands for operators (`blockplane qmp`, `info`, `top`, `backup`, `mirror`, `bitmap`, `upgrade`), as a library for the program
//! and for tests.

pub mod operator;

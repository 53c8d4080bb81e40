//! Parts common to the commands of the program.
//!
//! - [`main`]: from words to an exit status, and [`complaint`]: what is said of words that are wrong;
//! - [`signals`]: being told to end, to stop for a while, and to go on;
//! - [`time`]: times as people write them;
//! - [`xml`]: text in pictures.
//!
//! It does nothing by itself, and knows of no command.

mod program;
pub mod signals;
pub mod time;
pub mod xml;

pub use program::{HELP_COLUMNS, complaint, main, printable, printable_path};

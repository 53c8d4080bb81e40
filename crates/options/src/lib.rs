//! The command line: option strings into checked settings.

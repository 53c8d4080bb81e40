//! The options that name a monitor, which most commands take.

use std::path::PathBuf;
use std::time::Duration;

use crate::operator::client::Client;
use crate::operator::error::Result;

/// The monitor's socket and time limit, which most commands take.
#[derive(Clone, Debug, clap::Args)]
pub struct MonitorArgs {
    /// The socket of the daemon's monitor: path=… of its --chardev
    #[arg(value_name = "SOCKET", value_hint = clap::ValueHint::FilePath)]
    pub socket: PathBuf,
    /// Time limit for each reply, but not for jobs; 0: no limit
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = commands::time::parse_duration)]
    pub timeout: Duration,
}

impl MonitorArgs {
    /// Connects to the monitor.
    pub(crate) fn connect(&self) -> Result<Client> {
        let timeout = (!self.timeout.is_zero()).then_some(self.timeout);
        Client::connect(&self.socket, timeout)
    }
}

//! Changes of the state: typed arguments in, what happened out. The monitor, configurations and live upgrades call them.

pub(crate) mod activation;
pub(crate) mod export;
pub(crate) mod node;
pub(crate) mod reopen;
pub(crate) mod resize;
pub(crate) mod upgrade;

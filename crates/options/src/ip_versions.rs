//! The versions of IP that addresses of a host may have: the keys `ipv4` and `ipv6` of TCP addresses.

use std::net::IpAddr;

use crate::Problem;

/// The versions of IP that are used, as QEMU has them: a version that is switched on excludes the other one, unless that is on as well.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IpVersions {
    /// `ipv4`
    pub v4: Option<bool>,
    /// `ipv6`
    pub v6: Option<bool>,
}

impl IpVersions {
    /// Whether IPv4 addresses may be used.
    #[must_use]
    pub fn allow_v4(self) -> bool {
        self.v4.unwrap_or(self.v6 != Some(true))
    }

    /// Whether IPv6 addresses may be used.
    #[must_use]
    pub fn allow_v6(self) -> bool {
        self.v6.unwrap_or(self.v4 != Some(true))
    }

    /// Whether an address may be used.
    #[must_use]
    pub fn allow(self, address: &IpAddr) -> bool {
        match address {
            IpAddr::V4(_) => self.allow_v4(),
            IpAddr::V6(_) => self.allow_v6(),
        }
    }

    /// Refuses values that leave no address.
    pub(crate) fn check(self) -> Result<Self, Problem> {
        match (self.v4, self.v6) {
            (Some(false), Some(false)) => {
                let reason = "'ipv4=off' and 'ipv6=off' leave no address; leave one of them out";
                let reason = reason.to_owned();
                Err(Problem::Conflict { reason })
            }
            _ => Ok(self),
        }
    }
}

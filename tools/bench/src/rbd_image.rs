//! Images of Ceph RBD on the command line, and as options of a server's disk.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// What introduces an image where files can be named as well.
pub(crate) const PREFIX: &str = "rbd:";

/// An image that exists already, and the cluster that it is in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RbdImage {
    pool: String,
    image: String,
    conf: Option<PathBuf>,
    user: Option<String>,
}

impl RbdImage {
    /// The image of one of several disks, counted from 0: `IMAGE`, `IMAGE-2`, `IMAGE-3` and so on.
    #[must_use]
    pub fn of_disk(&self, index: u16) -> RbdImage {
        let image = match index {
            0 => self.image.clone(),
            _ => format!("{}-{}", self.image, u32::from(index) + 1),
        };
        RbdImage {
            image,
            ..self.clone()
        }
    }

    /// Keys and values of the driver `rbd`, as qemu-storage-daemon has them too.
    pub(crate) fn driver_options(&self) -> Vec<(&'static str, String)> {
        let mut options = vec![("pool", self.pool.clone()), ("image", self.image.clone())];
        let conf = self.conf.as_ref();
        options.extend(conf.map(|path| ("conf", path.display().to_string())));
        options.extend(self.user.clone().map(|user| ("user", user)));
        options
    }
}

/// `POOL/IMAGE[:conf=FILE][:id=USER]`, without [`PREFIX`].
impl FromStr for RbdImage {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut parts = text.split(':');
        let named = parts.next().and_then(|name| name.split_once('/'));
        let (pool, image) = named
            .filter(|(pool, image)| !pool.is_empty() && !image.is_empty() && !image.contains('/'))
            .ok_or_else(expected)?;
        let mut parsed = RbdImage {
            pool: pool.to_owned(),
            image: image.to_owned(),
            conf: None,
            user: None,
        };
        for part in parts {
            match part.split_once('=') {
                Some(("conf", path)) if !path.is_empty() => parsed.conf = Some(path.into()),
                Some(("id", user)) if !user.is_empty() => parsed.user = Some(user.to_owned()),
                _ => return Err(expected()),
            }
        }
        Ok(parsed)
    }
}

fn expected() -> String {
    "rbd:POOL/IMAGE[:conf=FILE][:id=USER] is expected, the user without `client.`".to_owned()
}

/// As on the command line, without the cluster.
impl fmt::Display for RbdImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}/{}", self.pool, self.image)
    }
}

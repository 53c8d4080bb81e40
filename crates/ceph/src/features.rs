//! The features of an open image.

use engine::Errno;

use crate::errno::check;
use crate::ffi::ImagePointer;
use crate::library::Functions;

/// Whether an image has a feature, one of librbd's bits.
pub(crate) fn has_feature(
    functions: &'static Functions,
    image: ImagePointer,
    feature: u64,
) -> Result<bool, Errno> {
    let mut features = 0;
    // SAFETY: the image is open.
    check(unsafe { (functions.rbd_get_features)(image.0, &raw mut features) })?;
    Ok(features & feature != 0)
}

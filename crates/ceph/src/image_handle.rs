//! An `rbd_image_t` with its pool and the watch of its header: opened and closed on a thread for waiting calls.

use std::ffi::CString;
use std::sync::Arc;
use std::{mem, ptr};

use engine::Errno;

use crate::cluster_handle::ClusterHandle;
use crate::errno::check;
use crate::features::has_feature;
use crate::ffi::{ImagePointer, PoolPointer, c_str_or_null};
use crate::header_watch::{HeaderWatch, OnResize};
use crate::library::{Functions, ImageInfo, JOURNALING_FEATURE};
use crate::{ImageGeometry, ImageOptions};

/// The arguments of the calls that open an image and its pool.
pub(crate) struct OpenArguments {
    pool: CString,
    namespace: Option<CString>,
    image: CString,
    snapshot: Option<CString>,
    read_only: bool,
}

impl OpenArguments {
    pub(crate) fn new(options: &ImageOptions) -> Result<Self, std::ffi::NulError> {
        let optional = |name: &Option<String>| name.as_deref().map(CString::new).transpose();
        Ok(Self {
            pool: CString::new(options.pool.as_str())?,
            namespace: optional(&options.namespace)?,
            image: CString::new(options.image.as_str())?,
            snapshot: optional(&options.snapshot)?,
            read_only: options.read_only,
        })
    }
}

/// The step of opening that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenStep {
    Pool,
    Image,
    Geometry,
}

/// A pool with its namespace.
struct Pool {
    functions: &'static Functions,
    io: PoolPointer,
    /// Outlives the pool.
    _cluster: Arc<ClusterHandle>,
}

impl Pool {
    fn open(
        functions: &'static Functions,
        cluster: Arc<ClusterHandle>,
        arguments: &OpenArguments,
    ) -> Result<Self, Errno> {
        let mut io = ptr::null_mut();
        // SAFETY: the cluster is connected, the name a string.
        check(unsafe {
            (functions.rados_ioctx_create)(
                cluster.pointer().0,
                arguments.pool.as_ptr(),
                &raw mut io,
            )
        })?;
        if let Some(namespace) = &arguments.namespace {
            // SAFETY: the pool is open, the name a string.
            unsafe { (functions.rados_ioctx_set_namespace)(io, namespace.as_ptr()) };
        }
        // Without it, requests to a full pool wait until it is not full.
        // SAFETY: the pool is open.
        unsafe { (functions.rados_set_pool_full_try)(io) };
        Ok(Pool {
            functions,
            io: PoolPointer(io),
            _cluster: cluster,
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the image in it is closed.
        unsafe { (self.functions.rados_ioctx_destroy)(self.io.0) };
    }
}

/// An open image, closed when it is dropped, which waits for its requests.
pub(crate) struct ImageHandle {
    functions: &'static Functions,
    image: ImagePointer,
    /// The watch's handle in librbd, and what it refers to.
    watch: Option<(u64, Arc<HeaderWatch>)>,
    /// Outlives the image.
    pool: Pool,
}

impl ImageHandle {
    /// Opens an image, and watches its header.
    pub(crate) fn open(
        functions: &'static Functions,
        cluster: Arc<ClusterHandle>,
        arguments: &OpenArguments,
        on_resize: OnResize,
    ) -> Result<(Self, ImageGeometry, Arc<HeaderWatch>), (OpenStep, Errno)> {
        let pool =
            Pool::open(functions, cluster, arguments).map_err(|errno| (OpenStep::Pool, errno))?;
        let open_image = |read_only: bool| {
            let open = if read_only {
                functions.rbd_open_read_only
            } else {
                functions.rbd_open
            };
            let mut image = ptr::null_mut();
            // SAFETY: the pool is open, the arguments strings or null.
            let opened = unsafe {
                open(
                    pool.io.0,
                    arguments.image.as_ptr(),
                    &raw mut image,
                    c_str_or_null(&arguments.snapshot),
                )
            };
            check(opened).map(|()| image)
        };
        let opened = match &arguments.snapshot {
            // A client that watches the image notices that the snapshot is removed; another one would read zeroes. It needs the
            // permission for that.
            Some(_) => open_image(false).or_else(|_| open_image(true)),
            None => open_image(arguments.read_only),
        };
        let image = opened.map_err(|errno| (OpenStep::Image, errno))?;
        let mut handle = ImageHandle {
            functions,
            image: ImagePointer(image),
            watch: None,
            pool,
        };
        handle
            .watch_and_measure(on_resize)
            .map(|(geometry, watch)| (handle, geometry, watch))
            .map_err(|errno| (OpenStep::Geometry, errno))
    }

    /// Starts the watch before the size is read, so that no change is missed.
    fn watch_and_measure(
        &mut self,
        on_resize: OnResize,
    ) -> Result<(ImageGeometry, Arc<HeaderWatch>), Errno> {
        let watch = Arc::new(HeaderWatch::new(self.functions, self.pointer(), on_resize));
        let handle = watch.start()?;
        self.watch = Some((handle, Arc::clone(&watch)));
        let geometry = self.geometry()?;
        watch.set_first_size(geometry.size);
        Ok((geometry, watch))
    }

    fn geometry(&self) -> Result<ImageGeometry, Errno> {
        // SAFETY: integers and characters may be zero.
        let mut info: ImageInfo = unsafe { mem::zeroed() };
        let (mut stripe_unit, mut stripe_count) = (0, 0);
        // SAFETY: the image is open, and the structure as large as named.
        check(unsafe {
            (self.functions.rbd_stat)(self.image.0, &raw mut info, size_of::<ImageInfo>())
        })?;
        // SAFETY: the image is open.
        check(unsafe { (self.functions.rbd_get_stripe_unit)(self.image.0, &raw mut stripe_unit) })?;
        // SAFETY: the image is open.
        check(unsafe {
            (self.functions.rbd_get_stripe_count)(self.image.0, &raw mut stripe_count)
        })?;
        Ok(ImageGeometry {
            size: info.size,
            object_bytes: info.object_bytes,
            stripe_unit,
            stripe_count,
            reads_need_lock: self.reads_need_lock()?,
        })
    }

    /// Whether librbd reads from the image only while it has the lock.
    fn reads_need_lock(&self) -> Result<bool, Errno> {
        has_feature(self.functions, self.image, JOURNALING_FEATURE)
    }

    /// The pool, valid until this is dropped.
    pub(crate) fn pool(&self) -> PoolPointer {
        self.pool.io
    }

    /// The pointer, valid until this is dropped.
    pub(crate) fn pointer(&self) -> ImagePointer {
        self.image
    }
}

impl Drop for ImageHandle {
    fn drop(&mut self) {
        if let Some((handle, _watch)) = &self.watch {
            // Waits for a callback that runs.
            // SAFETY: the image is open, and the handle that of its watch.
            unsafe { (self.functions.rbd_update_unwatch)(self.image.0, *handle) };
        }
        // SAFETY: the image is open, and nothing uses it later.
        let closed = check(unsafe { (self.functions.rbd_close)(self.image.0) });
        if let Err(errno) = closed {
            tracing::warn!(%errno, "librbd reports an error of closing an image");
        }
    }
}

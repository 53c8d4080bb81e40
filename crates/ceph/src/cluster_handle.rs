//! A `rados_t`: created and configured, then connected; shut down when it is dropped, by a thread for waiting calls.

use std::ffi::{CStr, CString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use engine::Errno;

use crate::errno::check;
use crate::exit::OpenConnection;
use crate::ffi::{ClusterPointer, c_str_or_null};
use crate::library::Functions;
use crate::log::LogPipe;
use crate::thread_launcher::has_launcher;
use crate::{ClusterOptions, ConnectError};

/// Bytes of a cluster's identity with the zero byte.
const FSID_BYTES: usize = 37;

/// Bytes for the value of an option, such as a list of monitors; a longer one is not shown.
const VALUE_BYTES: usize = 4096;

/// More than queues ever have in flight, for limits of librados.
const UNLIMITED: &str = "1099511627776";

/// A `rados_t`.
pub(crate) struct ClusterHandle {
    functions: &'static Functions,
    rados: ClusterPointer,
    // Fields are dropped in this order, after the shutdown.
    _log: LogPipe,
    open: OpenConnection,
}

impl ClusterHandle {
    /// A handle with these options, not connected.
    pub(crate) fn new(
        functions: &'static Functions,
        options: &ClusterOptions,
        log: LogPipe,
    ) -> Result<Self, ConnectError> {
        let user = options.user.as_deref().map(CString::new).transpose()?;
        let open = OpenConnection::count();
        let mut rados = ptr::null_mut();
        // SAFETY: the user's name is a string or null, and the handle is written on success only.
        let created = unsafe { (functions.rados_create)(&raw mut rados, c_str_or_null(&user)) };
        check(created).map_err(|errno| ConnectError::Option {
            option: "id",
            errno,
        })?;
        let log_path = log.path();
        let cluster = ClusterHandle {
            functions,
            rados: ClusterPointer(rados),
            _log: log,
            open,
        };
        cluster.read_configuration(options)?;
        cluster.set_options(options, &log_path)?;
        Ok(cluster)
    }

    fn read_configuration(&self, options: &ClusterOptions) -> Result<(), ConnectError> {
        let path = options
            .conf
            .as_deref()
            .map(|path| CString::new(path.as_os_str().as_bytes()))
            .transpose()?;
        // SAFETY: the handle is valid, and the path a string or null.
        let read =
            unsafe { (self.functions.rados_conf_read_file)(self.rados.0, c_str_or_null(&path)) };
        match (check(read), &options.conf) {
            (Err(errno), Some(path)) => Err(ConnectError::ConfigurationFile {
                path: path.clone(),
                errno,
            }),
            // Options may suffice without a file.
            (Err(_), None) | (Ok(()), _) => Ok(()),
        }
    }

    /// Sets what is ours to set, after the file.
    fn set_options(&self, options: &ClusterOptions, log_path: &str) -> Result<(), ConnectError> {
        // Whole seconds, and 0 is for ever.
        let seconds = options
            .connect_timeout
            .as_secs()
            .saturating_add(u64::from(options.connect_timeout.subsec_nanos() > 0))
            .clamp(1, u64::from(u32::MAX))
            .to_string();
        for (option, value) in [
            ("client_mount_timeout", seconds.as_str()),
            ("rados_mon_op_timeout", &seconds),
            // An OSD that comes back is a pause for the guest, not an error.
            ("rados_osd_op_timeout", "0"),
            // The guest has a cache. With this one, a write is complete before it is stable, and a lack of space shows at the
            // flush. An image's own setting (`rbd config image set`) has precedence: its cache then keeps no write that is complete.
            ("rbd_cache", "false"),
            ("rbd_cache_policy", "writethrough"),
            // Requests of a killed owner of a lock may still be on their way when the lock is broken.
            ("rbd_blocklist_on_break_lock", "true"),
            // A guest may change its buffer while it is sent, which would break the checksum.
            ("rbd_disable_zero_copy_writes", "true"),
            // Without the scheduler, writes to one object do not wait for each other to be merged. A queue merges those that arrive
            // together.
            ("rbd_io_scheduler", "none"),
            // One thread completes requests, in batches where it has many. A second one shares locks with it at each request.
            ("librados_thread_count", "1"),
            // The thread that completes requests would wait for the room of others: one image on an OSD that does not answer would
            // stop all images of the connection. Each queue has limits of its own.
            ("objecter_inflight_ops", UNLIMITED),
            ("objecter_inflight_op_bytes", UNLIMITED),
            ("log_to_stderr", "false"),
            ("err_to_stderr", "false"),
            ("log_file", log_path),
        ] {
            self.set(option, &CString::new(value)?)?;
        }
        if has_launcher() {
            // The sandbox, for which there is a launcher, would forbid the socket that a configuration asks for.
            self.set("admin_socket", c"")?;
        }
        if !options.monitors.is_empty() {
            self.set("mon_host", &CString::new(options.monitors.join(","))?)?;
        }
        if !options.auth.is_empty() {
            let accepted: Vec<_> = options.auth.iter().map(|mode| mode.as_str()).collect();
            self.set("auth_client_required", &CString::new(accepted.join(","))?)?;
        }
        if let Some(key) = &options.key {
            self.set("key", key.as_c_str())?;
        }
        Ok(())
    }

    fn set(&self, option: &'static str, value: &CStr) -> Result<(), ConnectError> {
        let name = CString::new(option)?;
        // SAFETY: the handle is valid, and both are strings.
        let set =
            unsafe { (self.functions.rados_conf_set)(self.rados.0, name.as_ptr(), value.as_ptr()) };
        check(set).map_err(|errno| ConnectError::Option { option, errno })
    }

    /// The addresses of monitors, as configured; empty if there are none.
    pub(crate) fn monitors(&self) -> String {
        self.get(c"mon_host")
    }

    /// The files of which the first one that can be opened is the keyring; empty if a key is configured.
    pub(crate) fn keyring_files(&self) -> Vec<PathBuf> {
        if [c"key", c"keyfile"]
            .iter()
            .any(|option| !self.get(option).is_empty())
        {
            return Vec::new();
        }
        let files = self.get(c"keyring");
        let files = files.split([',', ';']);
        files
            .filter(|file| !file.is_empty())
            .map(PathBuf::from)
            .collect()
    }

    /// The value of an option; empty if it has none.
    fn get(&self, option: &CStr) -> String {
        let mut text = [0_u8; VALUE_BYTES];
        // SAFETY: the handle is valid, the name a string, and the buffer has room for as many bytes as named.
        let got = unsafe {
            (self.functions.rados_conf_get)(
                self.rados.0,
                option.as_ptr(),
                text.as_mut_ptr().cast(),
                text.len(),
            )
        };
        match (check(got), CStr::from_bytes_until_nul(&text)) {
            (Ok(()), Ok(text)) => text.to_string_lossy().into_owned(),
            _ => String::new(),
        }
    }

    /// Connects; waits for the cluster.
    pub(crate) fn connect(&mut self) -> Result<(), Errno> {
        // SAFETY: the handle is valid, and not connected.
        check(unsafe { (self.functions.rados_connect)(self.rados.0) })?;
        self.open.set_established();
        Ok(())
    }

    /// The cluster's identity. The handle is connected.
    pub(crate) fn fsid(&self) -> Result<String, Errno> {
        let mut text = [0_u8; FSID_BYTES];
        // SAFETY: the handle is connected, and the buffer has room for as many bytes as named.
        let got = unsafe {
            (self.functions.rados_cluster_fsid)(self.rados.0, text.as_mut_ptr().cast(), text.len())
        };
        check(got)?;
        let text = CStr::from_bytes_until_nul(&text).map_err(|_| Errno::IO)?;
        Ok(text.to_string_lossy().into_owned())
    }

    /// The number that the cluster gave this client. The handle is connected.
    pub(crate) fn client_id(&self) -> u64 {
        // SAFETY: the handle is connected.
        unsafe { (self.functions.rados_get_instance_id)(self.rados.0) }
    }

    /// The pointer, valid until this is dropped.
    pub(crate) fn pointer(&self) -> ClusterPointer {
        self.rados
    }
}

impl Drop for ClusterHandle {
    fn drop(&mut self) {
        // SAFETY: the handle is valid, and nothing uses it later: images are closed before.
        unsafe { (self.functions.rados_shutdown)(self.rados.0) };
    }
}

//! Switches the process to another user and its groups (`--user`), for a daemon that was started as root.

use std::ffi::CString;
use std::io;
use std::mem::MaybeUninit;

use rustix::process::{Gid, Uid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Why the process cannot switch to a user.
#[derive(Debug, thiserror::Error)]
pub enum UserError {
    /// No user has that name or number.
    #[error("--user: there is no user '{0}' here; give the name or number of one that exists")]
    Unknown(String),
    /// The kernel refuses: only root may switch.
    #[error(
        "--user: cannot become '{user}': {error}; only root can, so start as that user instead"
    )]
    Refused {
        /// The name or number as it was given.
        user: String,
        /// The kernel's error.
        error: io::Error,
    },
}

/// A user of the system, as in passwd(5).
struct PasswdUser {
    uid: u32,
    gid: u32,
    name: CString,
}

/// Switches to the user of this name or number, with the user's groups. The process must have one thread.
///
/// # Errors
/// [`UserError`].
pub fn become_user(name: &str) -> Result<(), UserError> {
    let unknown_user = || UserError::Unknown(name.to_owned());
    let user = find_user(name).ok_or_else(unknown_user)?;
    if rustix::process::geteuid().as_raw() == user.uid && user.uid != 0 {
        return Ok(());
    }
    let switch_ids = || -> io::Result<()> {
        set_thread_groups(&groups_of_user(&user))?;
        let gid = Gid::from_raw(user.gid);
        set_thread_res_gid(gid, gid, gid)?;
        let uid = Uid::from_raw(user.uid);
        set_thread_res_uid(uid, uid, uid)?;
        Ok(())
    };
    switch_ids().map_err(|error| UserError::Refused {
        user: name.to_owned(),
        error,
    })
}

/// Looks a user up: getpwnam_r(3), or with a number getpwuid_r(3).
fn find_user(name: &str) -> Option<PasswdUser> {
    let c_name = CString::new(name).ok()?;
    let mut buffer = vec![0; 16 << 10];
    let mut entry = MaybeUninit::<libc::passwd>::uninit();
    let mut found = std::ptr::null_mut();
    // SAFETY: all pointers are valid during the calls, and the buffer has the given size.
    let result = unsafe {
        match name.parse::<u32>() {
            Ok(uid) => libc::getpwuid_r(
                uid,
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            ),
            Err(_) => libc::getpwnam_r(
                c_name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            ),
        }
    };
    if result != 0 || found.is_null() {
        return None;
    }
    // SAFETY: the user was found, so the entry is filled, and its name lies in the buffer.
    unsafe {
        let entry = entry.assume_init();
        Some(PasswdUser {
            uid: entry.pw_uid,
            gid: entry.pw_gid,
            name: std::ffi::CStr::from_ptr(entry.pw_name).to_owned(),
        })
    }
}

/// A user's groups: getgrouplist(3).
fn groups_of_user(user: &PasswdUser) -> Vec<Gid> {
    let mut groups = vec![0; 64];
    loop {
        let mut count = libc::c_int::try_from(groups.len()).unwrap_or(libc::c_int::MAX);
        // SAFETY: the list has `count` elements.
        let result = unsafe {
            libc::getgrouplist(
                user.name.as_ptr(),
                user.gid,
                groups.as_mut_ptr(),
                &raw mut count,
            )
        };
        let count = usize::try_from(count).unwrap_or(0);
        // A negative result: the list is too short, and `count` is how many there are.
        if result >= 0 {
            groups.truncate(count);
            return groups.into_iter().map(Gid::from_raw).collect();
        }
        groups.resize(count.max(groups.len() * 2), 0);
    }
}

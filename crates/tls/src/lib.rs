//! TLS: sessions over any stream, the certificates that they use, and lists of peers that are let in.
//!
//! | module | has |
//! |---|---|
//! | `access_list` | lists of names of peers, each with the decision on it |
//! | `credentials` | certificates and keys in QEMU's files, read and checked |
//! | `distinguished_name` | the name of a certificate's owner as text |
//! | `record_scanner` | scanner for record headers in received bytes |
//! | `session` | a session, without a stream of its own |
//! | `socket` | a socket that does not block, as such a stream |
//! | `stream` | a session with a stream that blocks |

mod access_list;
mod credentials;
mod distinguished_name;
mod record_scanner;
mod session;
mod socket;
mod stream;

pub use access_list::{AccessList, AccessRule, NameMatch, Verdict};
pub use credentials::{
    ClientCredentials, CredentialFiles, CredentialsError, MAX_FILE_BYTES, ServerCredentials,
};
pub use distinguished_name::distinguished_name;
pub use session::{ServerName, Session};
pub use socket::{NonBlockingSocket, socket_errno};
pub use stream::Stream;

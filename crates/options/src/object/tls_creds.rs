//! `--object tls-creds-x509`: options of certificates for TLS, with QEMU's keys.

use std::path::PathBuf;

use crate::{
    Problem,
    fields::Fields,
    form::{FilePathForm, ID_FORM, SwitchForm},
    key::{UnsupportedName, ValueType},
    settings::{settings, words},
    tree::Object,
};

settings! {
    /// `--object tls-creds-x509,…`
    pub struct TlsCredsOptions {
        /// its name, for tls-creds of nodes and of the NBD server
        pub id: String = "id", ID_FORM, required("write id=NAME, such as id=tls0");
        /// folder with ca-cert.pem, perhaps ca-crl.pem, and server-cert.pem and server-key.pem, or client-cert.pem and
        /// client-key.pem (a client without a certificate has neither); they are read once when the object is created
        pub dir: PathBuf = "dir", FilePathForm, required("write dir=PATH, a folder with ca-cert.pem");
        /// the side that they are for (default client)
        pub endpoint: TlsEndpoint = "endpoint", TlsEndpoint::FORM, default(TlsEndpoint::Client);
        /// a server requires a certificate of each client, a client checks the server's (default on)
        pub verify_peer: bool = "verify-peer", SwitchForm, default(true);
        /// refuse an own certificate that has expired, or that ca-cert.pem has not signed (default on)
        pub sanity_check: bool = "sanity-check", SwitchForm, default(true);
    }
    beside {
        /// the type; its key may be omitted
        "qom-type", "tls-creds-x509", ValueType::Named("qom-type"), required;
    }
}

words! {
    /// The side of a connection that certificates are for.
    pub enum TlsEndpoint {
        /// A client, such as a node of driver `nbd`.
        Client = "client",
        /// A server.
        Server = "server",
    }
}

const UNSUPPORTED_KEYS: &[UnsupportedName] = &[
    UnsupportedName {
        name: "priority",
        instead: "leave it out: TLS 1.3 is used, all of whose ciphers are secure",
    },
    UnsupportedName {
        name: "passwordid",
        instead: "leave it out: decrypt the key with `openssl pkey -in KEY -out server-key.pem` and protect it by permissions",
    },
    UnsupportedName {
        name: "loaded",
        instead: "leave it out",
    },
];

/// Reads the tree of an `--object tls-creds-x509`.
pub(super) fn read_tls_creds(object: Object) -> Result<TlsCredsOptions, Problem> {
    let mut fields =
        Fields::with_known_keys(object, "", &[TlsCredsOptions::KEYS], UNSUPPORTED_KEYS)?;
    fields.take_raw("qom-type");
    let creds = TlsCredsOptions::read(&mut fields, None)?;
    fields.debug_assert_all_taken();
    Ok(creds)
}

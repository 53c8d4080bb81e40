//! Certificates for TLS, made by `openssl`, in folders as QEMU, libnbd and nbdkit expect them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The side that a certificate is for.
#[derive(Clone, Copy)]
pub enum Side {
    /// `client-cert.pem` and `client-key.pem`
    Client,
    /// `server-cert.pem` and `server-key.pem`, for `localhost` and `127.0.0.1`
    Server,
}

/// An authority that signs certificates.
pub struct Authority {
    folder: PathBuf,
}

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";

impl Authority {
    /// An authority whose files are in a new folder; `None`, with a report, if `openssl` is not installed.
    #[track_caller]
    pub fn new(folder: &Path) -> Option<Self> {
        if !crate::report::installed("openssl") {
            return None;
        }
        fs::create_dir(folder).unwrap();
        let authority = Authority {
            folder: folder.to_owned(),
        };
        let usage = "-addext keyUsage=critical,keyCertSign,cRLSign";
        authority.openssl(&format!(
            "req -x509 {NEW_KEY} -keyout ca-key.pem -out ca-cert.pem -days 10 -subj /CN=authority {usage}"
        ));
        Some(authority)
    }

    /// Puts the authority's certificate, and one for a side with its key, into a folder, which is made if it is missing. The
    /// subject is as `/O=Example/CN=host`. With negative days it has expired.
    pub fn issue(&self, to: &Path, side: Side, subject: &str, days: i32) {
        let (name, usage) = match side {
            Side::Client => ("client", "extendedKeyUsage=clientAuth"),
            Side::Server => (
                "server",
                "extendedKeyUsage=serverAuth\nsubjectAltName=DNS:localhost,IP:127.0.0.1",
            ),
        };
        fs::create_dir_all(to).unwrap();
        fs::copy(self.folder.join("ca-cert.pem"), to.join("ca-cert.pem")).unwrap();
        let extensions = format!("basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n{usage}\n");
        fs::write(self.folder.join("extensions"), extensions).unwrap();
        let to = to.display();
        self.openssl(&format!(
            "req -new {NEW_KEY} -keyout {to}/{name}-key.pem -out request -subj {subject}"
        ));
        self.openssl(&format!(
            "x509 -req -in request -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -extfile extensions \
             -days {days} -out {to}/{name}-cert.pem"
        ));
    }

    /// Writes `ca-crl.pem`, by which the client's certificate in `of` is revoked, into a folder.
    pub fn revoke(&self, of: &Path, into: &Path) {
        let config = "[ca]\ndefault_ca=a\n[a]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=10\n\
             crlnumber=number\ncrl_extensions=e\n[e]\nauthorityKeyIdentifier=keyid:always\n";
        fs::write(self.folder.join("config"), config).unwrap();
        fs::write(self.folder.join("index"), "").unwrap();
        fs::write(self.folder.join("number"), "01").unwrap();
        let (of, into) = (of.display(), into.display());
        let ca = "ca -config config -keyfile ca-key.pem -cert ca-cert.pem";
        self.openssl(&format!("{ca} -revoke {of}/client-cert.pem"));
        self.openssl(&format!("{ca} -gencrl -out {into}/ca-crl.pem"));
    }

    fn openssl(&self, line: &str) {
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace());
        let output = command.current_dir(&self.folder).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {line}: {error}");
    }
}

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
    /// subject is as `/O=Example/CN=host`.
    pub fn issue(&self, to: &Path, side: Side, subject: &str) {
        let certificate = self.request(to, side, subject);
        self.openssl(&format!(
            "x509 -req -in request -CA ca-cert.pem -CAkey ca-key.pem -CAcreateserial -extfile extensions \
             -days 10 -out {certificate}"
        ));
    }

    /// As [`issue`](Self::issue), but it has expired. It has only the subject's `CN`.
    pub fn issue_expired(&self, to: &Path, side: Side, subject: &str) {
        let validity = "-startdate 200101000000Z -enddate 200102000000Z";
        self.issue_with_validity(to, side, subject, validity);
    }

    /// As [`issue_expired`](Self::issue_expired), but it expires only so many seconds from now.
    pub fn issue_for_seconds(&self, to: &Path, side: Side, subject: &str, seconds: u32) {
        let end = format!("--date=now + {seconds} seconds");
        let mut date = Command::new("date");
        let end = date.args(["--utc", &end, "+%y%m%d%H%M%SZ"]).output();
        let end = String::from_utf8(end.unwrap().stdout).unwrap();
        self.issue_with_validity(to, side, subject, &format!("-enddate {end}"));
    }

    fn issue_with_validity(&self, to: &Path, side: Side, subject: &str, validity: &str) {
        let certificate = self.request(to, side, subject);
        self.write_config();
        self.openssl(&format!(
            "ca -batch -config config -keyfile ca-key.pem -cert ca-cert.pem -in request -extfile extensions \
             {validity} -notext -out {certificate}"
        ));
    }

    /// Makes a key and a request for a certificate, and copies the authority's own; where the certificate will be.
    fn request(&self, to: &Path, side: Side, subject: &str) -> String {
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
        format!("{to}/{name}-cert.pem")
    }

    /// Writes `ca-crl.pem`, by which the client's certificate in `of` is revoked, into a folder.
    pub fn revoke(&self, of: &Path, into: &Path) {
        self.write_config();
        let (of, into) = (of.display(), into.display());
        let ca = "ca -config config -keyfile ca-key.pem -cert ca-cert.pem";
        self.openssl(&format!("{ca} -revoke {of}/client-cert.pem"));
        self.openssl(&format!("{ca} -gencrl -out {into}/ca-crl.pem"));
    }

    /// What `openssl ca` needs besides the authority.
    fn write_config(&self) {
        let config = "[ca]\ndefault_ca=a\n[a]\ndatabase=index\ndefault_md=sha256\ndefault_crl_days=10\n\
             crlnumber=number\ncrl_extensions=e\nrand_serial=yes\nnew_certs_dir=.\npolicy=p\n\
             [e]\nauthorityKeyIdentifier=keyid:always\n[p]\ncommonName=supplied\n";
        fs::write(self.folder.join("config"), config).unwrap();
        fs::write(self.folder.join("index"), "").unwrap();
        fs::write(self.folder.join("number"), "01").unwrap();
    }

    fn openssl(&self, line: &str) {
        let mut command = Command::new("openssl");
        command.args(line.split_whitespace());
        let output = command.current_dir(&self.folder).output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "openssl {line}: {error}");
    }
}

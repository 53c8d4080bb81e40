//! Certificates and keys: the content of QEMU's files, checked, as the settings of sessions.

use std::fmt;
use std::sync::Arc;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::client::danger::{ServerCertVerified, ServerCertVerifier};
use rustls::client::{WebPkiServerVerifier, verify_server_cert_signed_by_trust_anchor};
use rustls::crypto::{CryptoProvider, ring};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::pki_types::{ServerName, UnixTime};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{ParsedCertificate, VerifierBuilderError, WebPkiClientVerifier};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme};

/// Most bytes of a file.
pub const MAX_FILE_BYTES: usize = 1 << 20;

/// The content of the files of one side, in PEM.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct CredentialFiles {
    /// `ca-cert.pem`: authorities whose certificates are accepted.
    pub ca: Vec<u8>,
    /// `ca-crl.pem`: certificates that they have revoked.
    pub crl: Option<Vec<u8>>,
    /// `server-cert.pem` or `client-cert.pem`, with intermediate ones.
    pub certificate: Option<Vec<u8>>,
    /// `server-key.pem` or `client-key.pem`.
    pub key: Option<Vec<u8>>,
}

impl fmt::Debug for CredentialFiles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CredentialFiles(…)")
    }
}

/// Why files cannot be used: the name of one, and the problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{file}: {problem}")]
pub struct CredentialsError {
    file: &'static str,
    problem: String,
}

fn error_of(file: &'static str, problem: impl fmt::Display) -> CredentialsError {
    let problem = problem.to_string();
    CredentialsError { file, problem }
}

/// A certificate with those that lead to its authority, and its key.
type CertificateAndKey = (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>);

/// Settings of the sessions of a server.
#[derive(Clone)]
pub struct ServerCredentials(Arc<ServerConfig>);

impl ServerCredentials {
    /// From the files of a server. With `verify_peer` each client needs a certificate of the authority. With `check` the server's own
    /// certificate has to be one that clients accept now.
    ///
    /// # Errors
    /// A file is missing, has another content, or does not fit another one.
    pub fn new(
        files: &CredentialFiles,
        verify_peer: bool,
        check: bool,
    ) -> Result<Self, CredentialsError> {
        let (cert_file, key_file) = ("server-cert.pem", "server-key.pem");
        let provider = Arc::new(ring::default_provider());
        let (roots, crls) = read_authorities(files)?;
        let own = read_certificate_and_key(files, cert_file, key_file)?;
        let (chain, key) = own.ok_or_else(|| error_of(cert_file, "it is missing"))?;
        if check {
            check_server_certificate(&chain, &roots, &provider)
                .map_err(|error| own_certificate_error(cert_file, &error))?;
        }
        let config = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error_of(cert_file, error))?;
        let config = match verify_peer {
            true => config.with_client_cert_verifier(client_verifier(
                roots,
                crls,
                provider,
                "ca-cert.pem",
            )?),
            false => config.with_no_client_auth(),
        };
        let config = config.with_single_cert(chain, key);
        let mut config = config.map_err(|error| error_of(key_file, error))?;
        // Each session is negotiated anew, so that nothing is kept of old ones.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
        Ok(ServerCredentials(Arc::new(config)))
    }

    pub(crate) fn config(&self) -> &Arc<ServerConfig> {
        &self.0
    }
}

/// Settings of the sessions of a client.
#[derive(Clone)]
pub struct ClientCredentials(Arc<ClientConfig>);

impl ClientCredentials {
    /// From the files of a client, whose own certificate may be missing. Without `verify_peer` any server is accepted. With `check`
    /// the client's own certificate has to be one that servers accept now.
    ///
    /// # Errors
    /// As for [`ServerCredentials::new`].
    pub fn new(
        files: &CredentialFiles,
        verify_peer: bool,
        check: bool,
    ) -> Result<Self, CredentialsError> {
        let (cert_file, key_file) = ("client-cert.pem", "client-key.pem");
        let provider = Arc::new(ring::default_provider());
        let (roots, crls) = read_authorities(files)?;
        let own = read_certificate_and_key(files, cert_file, key_file)?;
        if let (Some((chain, _)), true) = (&own, check) {
            let verifier = client_verifier(
                Arc::clone(&roots),
                Vec::new(),
                Arc::clone(&provider),
                cert_file,
            )?;
            check_client_certificate(chain, &*verifier)
                .map_err(|error| own_certificate_error(cert_file, &error))?;
        }
        let config = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()
            .map_err(|error| error_of(cert_file, error))?;
        let config = match verify_peer {
            true => {
                let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
                let verifier = verifier
                    .with_crls(crls)
                    .allow_unknown_revocation_status()
                    .build()
                    .map_err(|error| verifier_error("ca-cert.pem", &error))?;
                config.with_webpki_verifier(verifier)
            }
            false => config
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyServer(provider))),
        };
        let mut config = match own {
            Some((chain, key)) => config
                .with_client_auth_cert(chain, key)
                .map_err(|error| error_of(key_file, error))?,
            None => config.with_no_client_auth(),
        };
        config.resumption = rustls::client::Resumption::disabled();
        Ok(ClientCredentials(Arc::new(config)))
    }

    pub(crate) fn config(&self) -> &Arc<ClientConfig> {
        &self.0
    }
}

impl fmt::Debug for ClientCredentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientCredentials(…)")
    }
}

/// The authorities, and the lists of certificates that they have revoked.
type Authorities = (
    Arc<RootCertStore>,
    Vec<CertificateRevocationListDer<'static>>,
);

fn read_authorities(files: &CredentialFiles) -> Result<Authorities, CredentialsError> {
    let file = "ca-cert.pem";
    let mut roots = RootCertStore::empty();
    for certificate in read_certificates(&files.ca, file)? {
        roots
            .add(certificate)
            .map_err(|error| error_of(file, error))?;
    }
    let crls = match &files.crl {
        None => Vec::new(),
        Some(crl) => CertificateRevocationListDer::pem_slice_iter(crl)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| error_of("ca-crl.pem", error))?,
    };
    if files.crl.is_some() && crls.is_empty() {
        let problem = "it has no list (PEM, `BEGIN X509 CRL`)";
        return Err(error_of("ca-crl.pem", problem));
    }
    Ok((Arc::new(roots), crls))
}

/// All certificates of a file, at least one.
fn read_certificates(
    pem: &[u8],
    file: &'static str,
) -> Result<Vec<CertificateDer<'static>>, CredentialsError> {
    let found = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
    let found = found.map_err(|error| error_of(file, error))?;
    match found.is_empty() {
        true => Err(error_of(
            file,
            "it has no certificate (PEM, `BEGIN CERTIFICATE`)",
        )),
        false => Ok(found),
    }
}

/// The own certificate and its key; `None` if both files are missing.
fn read_certificate_and_key(
    files: &CredentialFiles,
    cert_file: &'static str,
    key_file: &'static str,
) -> Result<Option<CertificateAndKey>, CredentialsError> {
    let (certificate, key) = match (&files.certificate, &files.key) {
        (None, None) => return Ok(None),
        (Some(certificate), Some(key)) => (certificate, key),
        (None, Some(_)) => return Err(error_of(cert_file, "it is missing, and its key is not")),
        (Some(_), None) => {
            return Err(error_of(
                key_file,
                "it is missing, and its certificate is not",
            ));
        }
    };
    let chain = read_certificates(certificate, cert_file)?;
    let key = PrivateKeyDer::from_pem_slice(key).map_err(|_| {
        let problem = "it has no key that is not encrypted (PEM, `BEGIN PRIVATE KEY`); decrypt it with `openssl pkey`";
        error_of(key_file, problem)
    })?;
    Ok(Some((chain, key)))
}

/// Checks the certificates of clients.
fn client_verifier(
    roots: Arc<RootCertStore>,
    crls: Vec<CertificateRevocationListDer<'static>>,
    provider: Arc<CryptoProvider>,
    file: &'static str,
) -> Result<Arc<dyn ClientCertVerifier>, CredentialsError> {
    WebPkiClientVerifier::builder_with_provider(roots, provider)
        .with_crls(crls)
        .allow_unknown_revocation_status()
        .build()
        .map_err(|error| verifier_error(file, &error))
}

/// The error for authorities that cannot be used, or for what they have revoked.
fn verifier_error(file: &'static str, error: &VerifierBuilderError) -> CredentialsError {
    match error {
        VerifierBuilderError::InvalidCrl(error) => error_of(
            "ca-crl.pem",
            format!(
                "{error:?}: a list of version 2 is needed, with a number and the identifier of the authority's key"
            ),
        ),
        error => error_of(file, error),
    }
}

/// The error for an own certificate that others would not accept.
fn own_certificate_error(file: &'static str, error: &rustls::Error) -> CredentialsError {
    use rustls::{CertificateError, Error};
    match error {
        Error::InvalidCertificate(
            CertificateError::Expired | CertificateError::ExpiredContext { .. },
        ) => error_of(file, "it has expired"),
        Error::InvalidCertificate(
            CertificateError::BadSignature | CertificateError::UnknownIssuer,
        ) => error_of(file, "it is not signed by the authority in ca-cert.pem"),
        error => error_of(file, error),
    }
}

/// Checks that clients would accept a certificate now, whatever name they expect.
fn check_server_certificate(
    chain: &[CertificateDer<'static>],
    roots: &RootCertStore,
    provider: &CryptoProvider,
) -> Result<(), rustls::Error> {
    let (own, intermediates) = chain
        .split_first()
        .unwrap_or_else(|| unreachable!("one is there"));
    verify_server_cert_signed_by_trust_anchor(
        &ParsedCertificate::try_from(own)?,
        roots,
        intermediates,
        UnixTime::now(),
        provider.signature_verification_algorithms.all,
    )
}

/// Checks that servers would accept a certificate now.
fn check_client_certificate(
    chain: &[CertificateDer<'static>],
    verifier: &dyn ClientCertVerifier,
) -> Result<(), rustls::Error> {
    let (own, intermediates) = chain
        .split_first()
        .unwrap_or_else(|| unreachable!("one is there"));
    let verified = verifier.verify_client_cert(own, intermediates, UnixTime::now());
    verified.map(|_| ())
}

/// Accepts the certificate of any server, as `verify-peer=off` says. That the server has its key is checked.
#[derive(Debug)]
struct AnyServer(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

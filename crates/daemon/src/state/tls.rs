//! Certificates for TLS and lists of clients in the daemon's state: reads the files of certificates when they are added, finds them for
//! nodes and for the NBD server, and removes them when nothing uses them.

use std::io;
use std::sync::Arc;

use nbd::client::{ClientTls, ServerName};
use options::{
    AuthzListOptions, AuthzPolicy, AuthzRule, BlockdevOptions, Driver, NodeRef, TlsCredsOptions,
    TlsEndpoint,
};
use tls::{AccessList, AccessRule, NameMatch, Verdict};
use tls::{
    ClientCredentials, CredentialFiles, CredentialsError, MAX_FILE_BYTES, ServerCredentials,
};

use super::DaemonObjects;
use super::secret::{SecretFiles, read_at_most, warn_if_readable_by_all};
use crate::error::BoxError;

/// Certificates, as they were read.
pub(crate) struct TlsCreds {
    pub options: TlsCredsOptions,
    /// Their content, for the successor of a live upgrade.
    pub files: CredentialFiles,
    credentials: Credentials,
}

enum Credentials {
    Client(ClientCredentials),
    Server(ServerCredentials),
}

impl TlsCreds {
    /// Checks the content of the files: that of the old process in a live upgrade, else what the folder has now.
    fn new(
        options: &TlsCredsOptions,
        handed_over: Option<CredentialFiles>,
        which: SecretFiles,
    ) -> Result<Self, BoxError> {
        let is_handed_over = handed_over.is_some();
        let files = match handed_over {
            Some(files) => files,
            None => read_files(options, which)?,
        };
        let mut credentials = Credentials::new(options, &files, options.sanity_check);
        if let Err(error) = &credentials
            && is_handed_over
            && options.sanity_check
            && options.endpoint == TlsEndpoint::Server
        {
            // It may have expired while the old process used it. (Without that of a client, disks would lose their connections.)
            let unchecked = Credentials::new(options, &files, false);
            if unchecked.is_ok() {
                warn_of_own_certificate(&options.id, error);
                credentials = unchecked;
            }
        }
        let (id, dir) = (&options.id, options.dir.display());
        Ok(TlsCreds {
            options: options.clone(),
            files,
            credentials: credentials
                .map_err(|error| format!("tls-creds-x509 '{id}': {dir}: {error}"))?,
        })
    }
}

impl Credentials {
    fn new(
        options: &TlsCredsOptions,
        files: &CredentialFiles,
        check: bool,
    ) -> Result<Self, CredentialsError> {
        let verify_peer = options.verify_peer;
        Ok(match options.endpoint {
            TlsEndpoint::Client => {
                Credentials::Client(ClientCredentials::new(files, verify_peer, check)?)
            }
            TlsEndpoint::Server => {
                Credentials::Server(ServerCredentials::new(files, verify_peer, check)?)
            }
        })
    }
}

fn warn_of_own_certificate(id: &str, error: &CredentialsError) {
    tracing::warn!(
        tls_creds = id,
        %error,
        advice = "create another object with new certificates, and use it in its place",
        "this daemon's certificate is no longer valid: others may refuse its connections"
    );
}

/// Reads the files of a folder.
fn read_files(options: &TlsCredsOptions, which: SecretFiles) -> Result<CredentialFiles, BoxError> {
    let (id, dir) = (&options.id, &options.dir);
    let read = |name: &str| -> Result<Option<Vec<u8>>, BoxError> {
        let path = dir.join(name);
        let shown = path.display();
        match read_at_most(&path, MAX_FILE_BYTES + 1, which) {
            Ok(content) if content.len() > MAX_FILE_BYTES => {
                Err(format!("tls-creds-x509 '{id}': {shown} has more than 1 MiB").into())
            }
            Ok(content) => Ok(Some(content)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => {
                Err(format!("tls-creds-x509 '{id}': cannot read {shown}: {error}").into())
            }
        }
    };
    let side = match options.endpoint {
        TlsEndpoint::Client => "client",
        TlsEndpoint::Server => "server",
    };
    let key = format!("{side}-key.pem");
    warn_if_readable_by_all(id, &dir.join(&key));
    let ca = read("ca-cert.pem")?.ok_or_else(|| {
        let shown = dir.display();
        format!("tls-creds-x509 '{id}': there is no {shown}/ca-cert.pem, the authority whose certificates are accepted")
    })?;
    Ok(CredentialFiles {
        ca,
        crl: read("ca-crl.pem")?,
        certificate: read(&format!("{side}-cert.pem"))?,
        key: read(&key)?,
    })
}

/// A list of clients.
pub(crate) struct AuthzList {
    pub options: AuthzListOptions,
}

/// Converts a list as the server has it.
fn to_access_list(options: &AuthzListOptions) -> AccessList {
    let verdict = |policy| match policy {
        AuthzPolicy::Allow => Verdict::Allow,
        AuthzPolicy::Deny => Verdict::Deny,
    };
    let to_rule = |rule: &AuthzRule| AccessRule {
        names: match rule.is_glob {
            true => NameMatch::Glob(rule.name.clone()),
            false => NameMatch::Exact(rule.name.clone()),
        },
        verdict: verdict(rule.policy),
    };
    AccessList {
        rules: options.rules.iter().map(to_rule).collect(),
        otherwise: verdict(options.policy),
    }
}

/// Encryption of the connections of a node that a command opens, on any thread. The certificates cannot be removed meanwhile.
#[derive(Clone)]
pub(crate) struct TlsOfNewNode(Option<(Arc<TlsCreds>, ClientTls)>);

impl TlsOfNewNode {
    /// Finds the certificates of a node, or of the one at the bottom of those that are defined inside it.
    pub fn find(options: &BlockdevOptions, objects: &DaemonObjects) -> Result<Self, BoxError> {
        if let Some((_, NodeRef::Inline(inside))) = options.driver.child_with_key() {
            return Self::find(inside, objects);
        }
        let Driver::Nbd(nbd) = &options.driver else {
            return Ok(TlsOfNewNode(None));
        };
        let (Some(id), Some(name)) = (&nbd.tls_creds, nbd.tls_server_name()) else {
            return Ok(TlsOfNewNode(None));
        };
        let creds = objects.require_tls_creds(id)?;
        let Credentials::Client(credentials) = &creds.credentials else {
            return Err(endpoint_error(id, "client"));
        };
        let server_name = ServerName::try_from(name.to_owned()).map_err(|_| {
            format!("node '{}': '{name}' is not a name or address that a certificate has: set tls-hostname", options.node_name)
        })?;
        let tls = ClientTls {
            credentials: credentials.clone(),
            server_name,
        };
        Ok(TlsOfNewNode(Some((creds.clone(), tls))))
    }

    /// The settings of its connections; `None`: they are not encrypted.
    pub fn client_tls(&self) -> Option<ClientTls> {
        self.0.as_ref().map(|(_, tls)| tls.clone())
    }
}

/// The error for certificates of the other side, with QEMU's words.
fn endpoint_error(id: &str, endpoint: &str) -> BoxError {
    format!("Expecting TLS credentials with a {endpoint} endpoint: create '{id}' with endpoint={endpoint}").into()
}

impl DaemonObjects {
    /// Adds certificates. Their content is that of the old process in a live upgrade, else it is read now.
    pub fn read_and_add_tls_creds(
        &mut self,
        options: &TlsCredsOptions,
        which: SecretFiles,
    ) -> Result<(), BoxError> {
        self.check_id_is_no_default_iothread(&options.id, "tls-creds-x509")?;
        let handed_over = self.handover_tls_files.remove(&options.id);
        let creds = TlsCreds::new(options, handed_over, which)?;
        self.tls_creds.push(Arc::new(creds));
        Ok(())
    }

    /// Adds a list of clients.
    pub fn add_authz_list(&mut self, options: &AuthzListOptions) -> Result<(), BoxError> {
        self.check_id_is_no_default_iothread(&options.id, "authz-list")?;
        let options = options.clone();
        self.authz_lists.push(AuthzList { options });
        Ok(())
    }

    /// The certificates of this id; an error with QEMU's text if there are none.
    fn require_tls_creds(&self, id: &str) -> Result<&Arc<TlsCreds>, BoxError> {
        let found = self.tls_creds.iter().find(|creds| creds.options.id == id);
        found.ok_or_else(|| format!("No TLS credentials with id '{id}'").into())
    }

    /// What clients of the NBD server have to show; `None`: its connections are not encrypted.
    pub fn find_server_tls(
        &self,
        settings: &options::NbdServerSettings,
    ) -> Result<Option<Arc<nbd_server::ServerTls>>, BoxError> {
        let Some(id) = &settings.tls_creds else {
            return Ok(None);
        };
        let Credentials::Server(credentials) = &self.require_tls_creds(id)?.credentials else {
            return Err(endpoint_error(id, "server"));
        };
        let access = match &settings.tls_authz {
            None => None,
            Some(list) => {
                let found = self
                    .authz_lists
                    .iter()
                    .find(|found| found.options.id == *list);
                let found = found.ok_or_else(|| format!("there is no authz-list '{list}'"))?;
                Some(to_access_list(&found.options))
            }
        };
        if access.is_some() && !self.require_tls_creds(id)?.options.verify_peer {
            return Err(format!(
                "tls-authz needs the certificates of clients: create '{id}' with verify-peer=on"
            )
            .into());
        }
        Ok(Some(Arc::new(nbd_server::ServerTls {
            credentials: credentials.clone(),
            access,
        })))
    }

    /// Removes certificates or a list of clients, if nothing uses it. `None`: there is none of this id.
    pub fn remove_tls_object(&mut self, id: &str) -> Option<Result<(), BoxError>> {
        let creds = self.tls_creds.iter().position(|c| c.options.id == id);
        let list = self.authz_lists.iter().position(|l| l.options.id == id);
        if creds.is_none() && list.is_none() {
            return None;
        }
        if let Some(user) = self.user_of_tls_object(id) {
            let text = format!("object '{id}' is in use, can not be deleted: {user}");
            return Some(Err(text.into()));
        }
        creds.map(|index| self.tls_creds.remove(index));
        list.map(|index| self.authz_lists.remove(index));
        Some(Ok(()))
    }

    /// What uses certificates or a list of clients.
    fn user_of_tls_object(&self, id: &str) -> Option<String> {
        if let Some(server) = &self.nbd_server {
            let settings = &server.options.settings;
            if [&settings.tls_creds, &settings.tls_authz].contains(&&Some(id.to_owned())) {
                return Some("the NBD server needs it".to_owned());
            }
        }
        let mut nodes = self.nodes.iter();
        if let Some(open) = nodes.find(|open| open.options.driver.tls_creds_id() == Some(id)) {
            return Some(format!("node '{}' needs it", open.node.name()));
        }
        // Commands that open nodes have copies.
        let mut creds = self.tls_creds.iter();
        let creds = creds.find(|creds| creds.options.id == id)?;
        (Arc::strong_count(creds) > 1)
            .then(|| "a node is being opened with it; try again when that is done".to_owned())
    }
}

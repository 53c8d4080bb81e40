//! The files of certificates in the message of a live upgrade: they may have changed since they were read, and the new process may not
//! read them.

use options::SecretBytes;
use serde_json::{Value, json};
use tls::CredentialFiles;

/// Describes the files of certificates.
pub(super) fn to_json(id: &str, files: &CredentialFiles) -> Value {
    let base64 = |file: &Vec<u8>| SecretBytes::from_bytes(file.clone()).to_base64();
    json!({
        "id": id,
        "ca": base64(&files.ca),
        "crl": files.crl.as_ref().map(base64),
        "certificate": files.certificate.as_ref().map(base64),
        "key": files.key.as_ref().map(base64),
    })
}

/// Reads [`to_json`].
pub(super) fn from_json(json: &Value) -> Option<CredentialFiles> {
    let decode = |text: &str| Some(SecretBytes::from_base64(text)?.as_bytes().to_vec());
    let optional = |name: &str| match &json[name] {
        Value::Null => Some(None),
        text => decode(text.as_str()?).map(Some),
    };
    Some(CredentialFiles {
        ca: decode(json["ca"].as_str()?)?,
        crl: optional("crl")?,
        certificate: optional("certificate")?,
        key: optional("key")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_read_back_unchanged() {
        let files = CredentialFiles {
            ca: b"ca".to_vec(),
            crl: None,
            certificate: Some(b"certificate".to_vec()),
            key: Some(b"key".to_vec()),
        };
        let described = to_json("creds", &files);
        assert!(from_json(&described) == Some(files), "{described}");
    }
}

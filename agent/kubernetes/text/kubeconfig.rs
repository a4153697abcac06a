//! Kubeconfig files: who a component is, and where the API answers.

use serde_json::json;

use super::yaml;
use crate::desired::{File, Owner};
use crate::kubernetes::spec::words::Secret;

/// How a component shows who it is.
pub(in crate::kubernetes) enum Identity<'a> {
    /// A certificate and its key.
    Certificate {
        /// Path of the certificate.
        certificate: &'a str,
        /// Path of the key.
        key: &'a str,
    },
    /// A bearer token: the file is a secret then.
    Token(&'a Secret),
    /// Nothing: the API asks for nothing (TLS_DISABLED).
    Nobody,
}

/// A kubeconfig of root's with one cluster, one user and one context.
pub(in crate::kubernetes) fn file(path: &str, server: &str, ca: Option<&str>, user: &str, identity: &Identity<'_>) -> File {
    let mut cluster = json!({"server": server});
    if let (Some(ca), Some(cluster)) = (ca, cluster.as_object_mut()) {
        cluster.insert("certificate-authority".to_owned(), json!(ca));
    }
    let credentials = match identity {
        Identity::Certificate { certificate, key } => json!({"client-certificate": certificate, "client-key": key}),
        Identity::Token(token) => json!({"token": token.reveal()}),
        Identity::Nobody => json!({}),
    };
    let document = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "kubernetes", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "default", "context": {"cluster": "kubernetes", "user": user}}],
        "current-context": "default",
    });
    let secret = matches!(identity, Identity::Token(_));
    File { path: path.to_owned(), mode: 0o600, owner: Owner::root(), content: yaml::document(&document), secret }
}

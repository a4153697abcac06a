//! The file that configures the node in the place of a deployment: Magnum's heat-params, as the one deployment that it stands for.

use serde_json::{Map, Value, json};

use crate::digest;
use crate::error::{Context, Error, Result};
use crate::freshness::{Freshness, ListAnswer};

/// Where Magnum's user data leaves the parameters of a node (magnum-node.md 3).
pub const HEAT_PARAMS: &str = "/etc/sysconfig/heat-params";

/// What makes parameters of the file's text, with what its reader should know.
pub type ParameterReader = fn(&str) -> Result<(Map<String, Value>, Vec<String>)>;

/// How the ids of its deployments begin. Heat's are UUIDs.
const PREFIX: &str = "heat-params-";

/// Whether a deployment is of the file, where a file configures the node.
#[must_use]
pub fn is_of_file(id: &str) -> bool {
    id.starts_with(PREFIX)
}

/// The file as it was read last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFile {
    /// Its deployment; `None` before the first good reading.
    pub id: Option<String>,
    /// When it was read last; `None` where it could not be read in this run of the agent.
    pub answer: Option<ListAnswer>,
}

impl NodeFile {
    /// How new that is. The file itself says what is asked for: nobody else is waited for.
    #[must_use]
    pub fn freshness(&self) -> Freshness {
        self.answer.map_or(Freshness::Awaited, Freshness::Answered)
    }
}

/// The document that the file's bytes stand for, with what its reader should know.
///
/// # Errors
/// If it is no text, has a line that is no assignment, or no parameter.
pub(super) fn document_of(bytes: &[u8], read: ParameterReader) -> Result<(Map<String, Value>, Vec<String>)> {
    let (parameters, warnings) = parameters(bytes, read).context(|| format!("reading {HEAT_PARAMS}"))?;
    Ok((document(&parameters), warnings))
}

fn parameters(bytes: &[u8], read: ParameterReader) -> Result<(Map<String, Value>, Vec<String>)> {
    let text = std::str::from_utf8(bytes).map_err(|_| Error::permanent("it is not text in UTF-8"))?;
    let (parameters, warnings) = read(text)?;
    // Whoever writes it may have emptied it for that.
    if parameters.is_empty() {
        return Err(Error::permanent("it has no parameters"));
    }
    Ok((parameters, warnings))
}

/// As a document with one deployment. Its id is that of the parameters: comments and the order of lines are no change.
fn document(parameters: &Map<String, Value>) -> Map<String, Value> {
    let mut sorted: Vec<_> = parameters.iter().collect();
    sorted.sort_unstable_by_key(|(name, _)| *name);
    let id = format!("{PREFIX}{}", digest::key_of(&json!(sorted).to_string()));
    let entry = json!({"id": id, "name": "heat-params", "group": "kubernetes-node", "config": parameters});
    Map::from_iter([("deployments".to_owned(), Value::Array(vec![entry]))])
}

/// What is wrong where there is no file.
pub(super) fn missing() -> Error {
    Error::permanent("there is no such file")
        .context(format!("reading {HEAT_PARAMS}"))
        .rule("[node] source = \"heat-params\" in agent.toml: this file has the node's parameters")
        .remedy("have cloud-init write it (write_files in the server's user data), or remove [node] source from agent.toml")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_parameters_are_the_same_deployment_and_others_another_one() {
        let id = |entries: &[(&str, &str)]| {
            let parameters = entries.iter().map(|(name, value)| ((*name).to_owned(), json!(value))).collect();
            document(&parameters)["deployments"][0]["id"].as_str().unwrap().to_owned()
        };
        let one = id(&[("ROLE", "master"), ("KUBE_TAG", "v1.20.2")]);
        assert!(is_of_file(&one) && !is_of_file("5f1c3a52-8d0e-4c61-9b0e-2f6f6e1d7a10"), "{one}");
        assert_eq!(one, id(&[("KUBE_TAG", "v1.20.2"), ("ROLE", "master")]));
        assert_ne!(one, id(&[("ROLE", "master"), ("KUBE_TAG", "v1.20.3")]));
        assert_ne!(id(&[("A", "b=c")]), id(&[("A=b", "c")]));
    }

    #[test]
    fn what_is_no_file_of_parameters_is_one_error_with_its_place() {
        let read: ParameterReader = |text| {
            let odd = || Error::permanent("line 1: is not an assignment");
            let parameters = text.split_once('=').map(|(name, value)| Map::from_iter([(name.to_owned(), json!(value))]));
            if text.contains('!') { Err(odd()) } else { Ok((parameters.unwrap_or_default(), Vec::new())) }
        };
        for (content, expected) in [
            (&b"\xff"[..], "it is not text in UTF-8"),
            (b"", "it has no parameters"),
            (b"reboot!", "line 1: is not an assignment"),
        ] {
            let found = document_of(content, read).unwrap_err().to_string();
            assert_eq!(found, format!("reading {HEAT_PARAMS}: {expected}"));
        }
        assert!(document_of(b"A=b", read).is_ok() && missing().to_string().contains(HEAT_PARAMS));
    }
}

//! The node's wait condition: who it is for Heat, and what Heat is sent.

use crate::kubernetes;
use crate::metadata::Deployment;
use crate::signal::{Handle, WaitSignal};

/// A wait condition and what it is to be sent.
#[derive(Debug)]
pub(in crate::daemon) struct Wait {
    pub(in crate::daemon) handle: Handle,
    pub(in crate::daemon) signal: WaitSignal,
}

/// A host name as a node's name: without the domain that a DHCP server appended.
fn short(hostname: &str) -> String {
    hostname.split('.').next().unwrap_or_default().to_ascii_lowercase()
}

/// An id of this server's own that is no number, and the same at every try and boot: Heat counts ids, and numbers signals
/// without one (heat-protocol.md 7.6). A host name may be that of another server too, or change with a lease.
pub(crate) fn wait_id(deployment: &Deployment, hostname: &str) -> String {
    let given = kubernetes::readable_parameters(deployment);
    match given.get("WAIT_ID").or(given.get("INSTANCE_NAME")) {
        Some(number) if number.bytes().all(|byte| byte.is_ascii_digit()) => format!("node-{number}"),
        Some(id) => id.to_owned(),
        None => format!("node-{}", deployment.text_input("deploy_server_id").map_or_else(|| short(hostname), str::to_owned)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_id_of_a_wait_condition_is_the_servers_own_and_no_number() {
        let server = ("deploy_server_id", "0e2c4c34");
        for (inputs, id) in [
            (vec![("WAIT_ID", "m0"), ("INSTANCE_NAME", "n"), server], "m0"),
            (vec![("wait_id", "7"), server], "node-7"),
            (vec![("INSTANCE_NAME", "master-0"), server], "master-0"),
            (vec![("INSTANCE_NAME", "12"), server], "node-12"),
            (vec![("WAIT_ID", ""), server], "node-0e2c4c34"),
            (vec![server], "node-0e2c4c34"),
            (vec![], "node-localhost"),
        ] {
            let inputs: Vec<Value> = inputs.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
            let entry = json!({"id": "new at every update", "group": "kubernetes-node", "inputs": inputs});
            let deployment = Deployment::parse(&entry).unwrap().unwrap();
            assert_eq!(wait_id(&deployment, "Localhost.localdomain"), id, "{inputs:?}");
        }
    }
}

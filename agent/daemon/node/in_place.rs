//! What the node in place was asked to be: read and rendered once, and again where the parameters or the machine changed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use crate::desired::Desired;
use crate::error::Result;
use crate::kubernetes::{self, ImagePolicy, MachineFacts, NodeSpec};
use crate::metadata::Deployment;

/// What an entry that was carried out asks for, whatever the image permits today; `None` where this version of the agent cannot read it.
pub(in crate::daemon) fn spec_of(entry: &Value) -> Option<NodeSpec> {
    let deployment = Deployment::parse(entry).ok().flatten()?;
    kubernetes::node_of(&deployment, &ImagePolicy::everything()).ok()
}

/// The node that an entry asks for on this machine.
#[derive(Debug)]
pub(super) struct InPlace {
    entry: Arc<Value>,
    facts: MachineFacts,
    pub(super) spec: NodeSpec,
    pub(super) desired: Desired,
}

impl InPlace {
    fn new(entry: &Arc<Value>, facts: MachineFacts) -> Result<Option<Self>> {
        let Some(spec) = spec_of(entry) else { return Ok(None) };
        let desired = kubernetes::render(&spec, &facts)?;
        Ok(Some(Self { entry: Arc::clone(entry), facts, spec, desired }))
    }
}

/// The newest of them.
#[derive(Debug, Default)]
pub(super) struct Rendered(RefCell<Option<Rc<InPlace>>>);

impl Rendered {
    /// What an entry asks for; `None` where this version of the agent cannot read it any more. What is given back stays as it is: whoever
    /// keeps it does not see what is rendered later.
    ///
    /// # Errors
    /// If the machine cannot be made such a node.
    pub(super) fn get(&self, entry: &Arc<Value>, facts: MachineFacts) -> Result<Option<Rc<InPlace>>> {
        let mut newest = self.0.borrow_mut();
        // An entry that is the same one in memory is equal: comparing texts of a megabyte would take longer than it saves.
        let is_same = |known: &Rc<InPlace>| Arc::ptr_eq(&known.entry, entry) && known.facts == facts;
        let is_known = newest.as_ref().is_some_and(is_same);
        if !is_known {
            *newest = InPlace::new(entry, facts)?.map(Rc::new);
        }
        Ok(newest.clone())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn entry(name: &str) -> Arc<Value> {
        let volume = "8c2b6d4e-5a8f-4c43-9d6a-1f6f4c1c2a11";
        let config = json!({"KUBE_NODE_IP": "192.0.2.5", "INSTANCE_NAME": name, "KUBE_TAG": "v1.28.9", "CLUSTER_UUID": volume,
            "CERTIFICATES": "given", "CA_CERTIFICATE": "/ca.crt", "CA_KEY": "/ca.key", "CONTAINER_RUNTIME": "containerd",
            "KEYSTONE_AUTH_ENABLED": "false", "ETCD_VOLUME": volume});
        Arc::new(json!({"id": "i", "group": "kubernetes-node", "config": config}))
    }

    #[test]
    fn a_node_is_rendered_again_where_its_parameters_or_the_machine_changed_and_only_there() {
        let (rendered, facts) = (Rendered::default(), MachineFacts::default());
        let get = |entry: &Arc<Value>, facts: &MachineFacts| rendered.get(entry, facts.clone()).unwrap().unwrap();
        let (one, other) = (entry("node-1"), entry("node-2"));
        let first = get(&one, &facts);
        assert!(Rc::ptr_eq(&first, &get(&one, &facts)));
        let swapping = MachineFacts { unified_cgroups: true, ..facts.clone() };
        let second = get(&one, &swapping);
        assert!(!Rc::ptr_eq(&first, &second));
        assert_eq!(second.desired, kubernetes::render(&second.spec, &swapping).unwrap());
        let third = get(&other, &swapping);
        assert!(third.desired != second.desired && Rc::ptr_eq(&third, &get(&other, &swapping)));
        assert_eq!(get(&one, &facts).desired, first.desired);
    }

    #[test]
    fn an_entry_that_cannot_be_read_is_no_node_and_keeps_none() {
        let rendered = Rendered::default();
        let facts = MachineFacts::default();
        assert!(rendered.get(&entry("node-1"), facts.clone()).unwrap().is_some());
        let unread = Arc::new(json!({"id": "i", "group": "kubernetes-node", "config": {"ROLE": "x"}}));
        assert!(rendered.get(&unread, facts.clone()).unwrap().is_none());
        assert!(rendered.0.borrow().is_none());
    }
}

//! What the node in place was asked to be: read and rendered once, and again where the parameters or the machine changed.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::Value;

use crate::desired::Desired;
use crate::error::{Error, Result};
use crate::kubernetes::{self, ImagePolicy, MachineFacts, NodeSpec};
use crate::metadata::Deployment;

/// What an entry that was carried out asks for, whatever the image permits today.
///
/// # Errors
/// If this version of the agent does not accept it: an older one has, and rules are added.
pub(in crate::daemon) fn spec_of(entry: &Value) -> Result<NodeSpec> {
    let refused = |why: &str| {
        Error::permanent(format!("this version of the agent does not accept these parameters: {why}")).remedy(
            "correct them in the template and update the stack: until then the node is not checked, repaired or rolled back, \
             and its certificates are not renewed",
        )
    };
    let deployment = Deployment::parse(entry).ok().flatten().ok_or_else(|| refused("they are no deployment"))?;
    kubernetes::node_of(&deployment, &ImagePolicy::everything()).map_err(|mistakes| match mistakes.first() {
        Some(first) => refused(&first.what()).rule(first.rule.clone()),
        None => refused("no reason was given"),
    })
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
    pub(super) fn new(entry: &Arc<Value>, facts: MachineFacts) -> Result<Self> {
        let spec = spec_of(entry)?;
        let desired = kubernetes::render(&spec, &facts)?;
        Ok(Self { entry: Arc::clone(entry), facts, spec, desired })
    }
}

/// The newest of them.
#[derive(Debug, Default)]
pub(super) struct Rendered(RefCell<Option<Rc<InPlace>>>);

impl Rendered {
    /// What an entry asks for. What is given back stays as it is: whoever keeps it does not see what is rendered later.
    ///
    /// # Errors
    /// If this version of the agent does not accept it any more, or the machine cannot be made such a node.
    pub(super) fn get(&self, entry: &Arc<Value>, facts: MachineFacts) -> Result<Rc<InPlace>> {
        let mut newest = self.0.borrow_mut();
        // An entry that is the same one in memory is equal: comparing texts of a megabyte would take longer than it saves.
        let is_same = |known: &Rc<InPlace>| Arc::ptr_eq(&known.entry, entry) && known.facts == facts;
        if let Some(known) = newest.as_ref().filter(|known| is_same(known)) {
            return Ok(Rc::clone(known));
        }
        // Nobody asks for the one before again.
        *newest = None;
        Ok(Rc::clone(newest.insert(Rc::new(InPlace::new(entry, facts)?))))
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
        let get = |entry: &Arc<Value>, facts: &MachineFacts| rendered.get(entry, facts.clone()).unwrap();
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
    fn an_entry_that_is_not_accepted_is_no_node_and_keeps_none() {
        let rendered = Rendered::default();
        let facts = MachineFacts::default();
        assert!(rendered.get(&entry("node-1"), facts.clone()).is_ok());
        let unread = Arc::new(json!({"id": "i", "group": "kubernetes-node", "config": {"ROLE": "x"}}));
        let error = rendered.get(&unread, facts.clone()).unwrap_err();
        assert!(error.cause().contains("ROLE") && error.suggested_remedy().is_some(), "{error}");
        assert!(rendered.0.borrow().is_none());
    }
}

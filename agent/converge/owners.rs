//! Names of users and groups to numbers, by the target tree's own `etc/passwd` and `etc/group`: a tree below
//! `apply --root` has other users than the machine that writes it, and NSS would ask the network.

use std::collections::BTreeMap;
use std::path::Path;

use crate::desired::Owner;
use crate::error::Result;
use crate::files::{READ_LIMIT, Tree};

/// The users and groups of one tree.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    users: BTreeMap<String, u32>,
    groups: BTreeMap<String, u32>,
}

impl Owners {
    /// Reads `etc/passwd` and `etc/group` of a tree; what is not there is empty.
    ///
    /// # Errors
    /// If one of them is unreadable.
    pub fn read(tree: &Tree) -> Result<Self> {
        let table = |path: &str| -> Result<BTreeMap<String, u32>> {
            let bytes = tree.read(Path::new(path), READ_LIMIT)?.unwrap_or_default();
            Ok(parse(&String::from_utf8_lossy(&bytes)))
        };
        Ok(Self { users: table("etc/passwd")?, groups: table("etc/group")? })
    }

    /// Numbers of user and group; `None` if the tree lacks one of them. root is 0 everywhere unless the tree says otherwise.
    #[must_use]
    pub fn resolve(&self, owner: &Owner) -> Option<(u32, u32)> {
        let find = |table: &BTreeMap<String, u32>, name: &str| table.get(name).copied().or_else(|| (name == "root").then_some(0));
        Some((find(&self.users, &owner.user)?, find(&self.groups, &owner.group)?))
    }
}

/// Name and number: first and third field of each line. A malformed line is nobody's; the first of a name counts, as in glibc.
fn parse(text: &str) -> BTreeMap<String, u32> {
    let mut table = BTreeMap::new();
    for line in text.lines() {
        let mut fields = line.split(':');
        if let (Some(name), Some(_), Some(Ok(number))) = (fields.next(), fields.next(), fields.next().map(str::parse)) {
            table.entry(name.to_owned()).or_insert(number);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::Attributes;

    #[test]
    fn names_are_resolved_by_the_trees_own_files() {
        let dir = tempfile::tempdir().unwrap();
        let tree = Tree::open(dir.path()).unwrap();
        assert_eq!(Owners::read(&tree).unwrap().resolve(&Owner::root()), Some((0, 0)));
        tree.create_dir(Path::new("etc"), Attributes::mode(0o755)).unwrap();
        let passwd =
            "# a comment\nroot:x:0:0::/root:/bin/sh\n+::::::\nbroken:x\nodd:x:minus:1\netcd:x:101:102:::\netcd:x:7:7:::\n";
        tree.write(Path::new("etc/passwd"), passwd.as_bytes(), Attributes::mode(0o644)).unwrap();
        tree.write(Path::new("etc/group"), b"root:x:0:\nkube:x:55:a,b\n", Attributes::mode(0o644)).unwrap();
        let owners = Owners::read(&tree).unwrap();
        let owner = |user: &str, group: &str| owners.resolve(&Owner { user: user.into(), group: group.into() });
        assert_eq!(owner("etcd", "kube"), Some((101, 55)));
        assert_eq!(owner("root", "root"), Some((0, 0)));
        for (user, group) in [("etcd", "etcd"), ("broken", "root"), ("odd", "root"), ("", "root")] {
            assert_eq!(owner(user, group), None, "{user}:{group}");
        }
    }
}

//! Transient units: a process of its own cgroup outside the agent's sandbox, and mounts.

use std::time::Duration;

use zbus::zvariant::Value;

use super::names::exec_argument;

/// A program that systemd runs once, for us. It outlives the agent.
///
/// It is `Type=oneshot`, so that its start job ends with the process; its whole cgroup is ended with it, and it is
/// forgotten when it ends, however it ends: whoever wants its result has the program write it. Nothing from metadata
/// goes in here: anybody on the machine can read a unit's properties.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransientService {
    /// `heat-deployment-….service`.
    pub name: String,
    /// What `systemctl status` shows.
    pub description: String,
    /// Program (an absolute path) and its arguments.
    pub exec: Vec<String>,
    /// systemd ends it after this time; `None`: never.
    pub timeout: Option<Duration>,
}

/// What became of a request to start a transient service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TransientStart {
    /// systemd took it; it runs or is about to.
    Started,
    /// A unit of this name runs already (an earlier start whose answer was lost, or an agent before this one).
    AlreadyThere,
}

/// Name and value of a unit's property.
pub(super) type Property = (&'static str, Value<'static>);

/// How much a systemd understands of transient units.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// 236 and later.
    Full,
    /// Before: no `CollectMode`, no start timeout. A failed unit stays until it is reset.
    Old,
}

pub(super) fn service_properties(service: &TransientService, dialect: Dialect) -> Vec<Property> {
    let program = service.exec.first().cloned().unwrap_or_default();
    // argv[0] is expanded like the rest; the path itself is not.
    let arguments: Vec<String> = service.exec.iter().map(|argument| exec_argument(argument)).collect();
    let ignore_failure = false;
    let mut properties: Vec<Property> = vec![
        ("Description", Value::from(service.description.clone())),
        ("Type", Value::from("oneshot")),
        ("RemainAfterExit", Value::from(false)),
        ("ExecStart", Value::from(vec![(program, arguments, ignore_failure)])),
    ];
    if dialect == Dialect::Full {
        properties.push(("CollectMode", Value::from("inactive-or-failed")));
        if let Some(timeout) = service.timeout {
            properties.push(("TimeoutStartUSec", Value::from(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX))));
        }
    }
    properties
}

pub(super) fn mount_properties(what: &str, fstype: &str, options: &str) -> Vec<Property> {
    vec![
        ("What", Value::from(what.to_owned())),
        ("Type", Value::from(fstype.to_owned())),
        ("Options", Value::from(options.to_owned())),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(dialect: Dialect) -> Vec<&'static str> {
        let service = TransientService {
            name: "x.service".into(),
            description: "x".into(),
            exec: vec!["/bin/echo".into(), "$HOME".into()],
            timeout: Some(Duration::from_secs(3)),
        };
        service_properties(&service, dialect).into_iter().map(|(name, _)| name).collect()
    }

    #[test]
    fn an_old_systemd_is_asked_only_what_it_knows() {
        assert_eq!(names(Dialect::Old), ["Description", "Type", "RemainAfterExit", "ExecStart"]);
        assert_eq!(names(Dialect::Full)[4..], ["CollectMode", "TimeoutStartUSec"]);
    }
}

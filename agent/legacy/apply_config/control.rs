//! The file beside a template that says how its output is written (heat-protocol.md 6.3).

use nix::unistd::{Gid, Group, Uid, User};
use serde_json::Value;

use crate::budgets::yaml;
use crate::error::{Error, Result};

/// How the output of a template is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Control {
    /// Whether an empty output is a file too.
    pub(super) allow_empty: bool,
    /// Permission bits.
    pub(super) mode: Option<u32>,
    /// Numeric owner.
    pub(super) owner: Option<u32>,
    /// Numeric group.
    pub(super) group: Option<u32>,
}

impl Default for Control {
    fn default() -> Self {
        Self { allow_empty: true, mode: None, owner: None, group: None }
    }
}

impl Control {
    /// Reads such a file; one that says nothing leaves everything as it is.
    ///
    /// # Errors
    /// If it is no map of known names, a value is of another type than its name wants, or nobody has the owner's or group's name.
    pub(super) fn read(text: &str) -> Result<Self> {
        let mut control = Self::default();
        let value = yaml::read(text)?.root.to_json();
        let Some(members) = value.as_object() else {
            let says_nothing = match &value {
                Value::Bool(value) => !value,
                Value::Number(number) => number.as_f64() == Some(0.0),
                Value::String(text) => text.is_empty(),
                Value::Array(items) => items.is_empty(),
                Value::Null | Value::Object(_) => true,
            };
            return if says_nothing { Ok(control) } else { Err(Error::permanent("it is not a map")) };
        };
        for (name, value) in members {
            let wants = |what: &str| Error::permanent(format!("{name} must be {what}"));
            match name.as_str() {
                "allow_empty" => control.allow_empty = value.as_bool().ok_or_else(|| wants("true or false"))?,
                "mode" => {
                    let mode = value.as_u64().and_then(|mode| u32::try_from(mode).ok()).filter(|mode| *mode <= 0o777);
                    control.mode = Some(mode.ok_or_else(|| wants("a number from 0 to 0777, such as 0640"))?);
                }
                "owner" => control.owner = Some(user(value)?.ok_or_else(|| wants("the name or number of a user that exists"))?),
                "group" => control.group = Some(group(value)?.ok_or_else(|| wants("the name or number of a group that exists"))?),
                _ => {
                    return Err(Error::permanent(format!("{name} has no meaning here"))
                        .remedy("allow_empty, mode, owner and group have one"));
                }
            }
        }
        Ok(control)
    }
}

fn user(value: &Value) -> Result<Option<u32>> {
    let found = match (value, number(value)) {
        (Value::String(name), _) => User::from_name(name)?,
        (_, Some(id)) => User::from_uid(Uid::from_raw(id))?,
        _ => None,
    };
    Ok(found.map(|user| user.uid.as_raw()))
}

fn group(value: &Value) -> Result<Option<u32>> {
    let found = match (value, number(value)) {
        (Value::String(name), _) => Group::from_name(name)?,
        (_, Some(id)) => Group::from_gid(Gid::from_raw(id))?,
        _ => None,
    };
    Ok(found.map(|group| group.gid.as_raw()))
}

fn number(value: &Value) -> Option<u32> {
    value.as_u64().and_then(|id| u32::try_from(id).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_files_are_read_as_yaml_1_1() {
        let usual = Control::default();
        for (text, control) in [
            ("", usual),
            ("# nothing\n", usual),
            ("[]", usual),
            ("{}", usual),
            ("allow_empty: no\n", Control { allow_empty: false, ..usual }),
            ("mode: 0640\n", Control { mode: Some(0o640), ..usual }),
            ("mode: 0x1ff", Control { mode: Some(0o777), ..usual }),
            ("{mode: 0, owner: root, group: 0}", Control { mode: Some(0), owner: Some(0), group: Some(0), ..usual }),
        ] {
            assert_eq!(Control::read(text), Ok(control), "{text}");
        }
        for text in [
            "- mode",
            "x",
            "5",
            "mode: '0640'",
            "mode: 755",
            "mode: -1",
            "mode:",
            "mode: true",
            "mode: 0o640",
            "allow_empty: 1",
            "allow_empty: 'no'",
            "owner: nobody-has-this-name",
            "owner: 4000000000",
            "owner:",
            "owner: [0]",
            "group: true",
            "modus: 0640",
            "mode: [",
            "mode: 0640\n---\nmode: 0600\n",
        ] {
            assert!(Control::read(text).is_err(), "{text}");
        }
    }
}

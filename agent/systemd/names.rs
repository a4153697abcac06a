//! Names: how systemd spells a path as a unit name and a unit name as an object path. Pure.

/// Below it every unit has its object.
pub(super) const UNIT_PATHS: &str = "/org/freedesktop/systemd1/unit";

/// What `systemd-escape --path` prints: `/var/lib/docker` becomes `var-lib-docker`.
#[must_use]
pub fn escape_path(path: &str) -> String {
    let mut parts = path.split('/').filter(|part| !part.is_empty() && *part != ".").peekable();
    if parts.peek().is_none() {
        return "-".to_owned();
    }
    let mut out = String::with_capacity(path.len());
    for part in parts {
        if !out.is_empty() {
            out.push('-');
        }
        for byte in part.bytes() {
            let plain = byte.is_ascii_alphanumeric() || matches!(byte, b':' | b'_') || (byte == b'.' && !out.is_empty());
            if plain {
                out.push(char::from(byte));
            } else {
                out.push_str(&escape(r"\x", byte));
            }
        }
    }
    out
}

/// The mount unit of a mount point: `var-lib-docker.mount`.
#[must_use]
pub fn mount_unit(mount_point: &str) -> String {
    format!("{}.mount", escape_path(mount_point))
}

fn escape(mark: &str, byte: u8) -> String {
    format!("{mark}{byte:02x}")
}

/// The object path of a unit. Reading a property of it makes systemd load the unit, so that no `LoadUnit` is needed.
pub(super) fn object_path(unit: &str) -> String {
    let mut out = format!("{UNIT_PATHS}/");
    if unit.is_empty() {
        out.push('_');
    }
    for (index, byte) in unit.bytes().enumerate() {
        if byte.is_ascii_alphabetic() || (index > 0 && byte.is_ascii_digit()) {
            out.push(char::from(byte));
        } else {
            out.push_str(&escape("_", byte));
        }
    }
    out
}

/// The unit that an object path is of.
pub(super) fn unit_of(path: &str) -> Option<String> {
    let label = path.strip_prefix(UNIT_PATHS)?.strip_prefix('/')?;
    let mut bytes = Vec::with_capacity(label.len());
    let mut rest = label.bytes();
    while let Some(byte) = rest.next() {
        if byte == b'_' {
            let (high, low) = (rest.next()?, rest.next()?);
            let digit = |byte| char::from(byte).to_digit(16);
            bytes.push(u8::try_from(digit(high)? * 16 + digit(low)?).ok()?);
        } else {
            bytes.push(byte);
        }
    }
    String::from_utf8(bytes).ok()
}

/// An argument for `ExecStart` over D-Bus: systemd expands `$` there too (`$$` gives `$`).
pub(super) fn exec_argument(argument: &str) -> String {
    argument.replace('$', "$$")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_as_systemd_escape_does() {
        for (path, unit) in [
            ("/var/lib/docker", "var-lib-docker"),
            ("//var/./lib//docker/", "var-lib-docker"),
            ("/", "-"),
            ("/.hidden/a.b", "\\x2ehidden-a.b"),
            ("/srv/my-data", "srv-my\\x2ddata"),
            ("/srv/a b/ü", "srv-a\\x20b-\\xc3\\xbc"),
        ] {
            assert_eq!(escape_path(path), unit, "{path}");
        }
        assert_eq!(mount_unit("/var/lib/etcd"), "var-lib-etcd.mount");
    }

    #[test]
    fn a_unit_name_and_its_object_path_lead_to_each_other() {
        for (unit, label) in [
            ("etcd.service", "etcd_2eservice"),
            ("0x.service", "_30x_2eservice"),
            ("srv-my\\x2ddata.mount", "srv_2dmy_5cx2ddata_2emount"),
        ] {
            let path = format!("{UNIT_PATHS}/{label}");
            assert_eq!(object_path(unit), path);
            assert_eq!(unit_of(&path).as_deref(), Some(unit));
        }
        for none in ["/org/freedesktop/systemd1", "/org/freedesktop/systemd1/unit/a_2", "/org/freedesktop/systemd1/unit/a_zz"] {
            assert_eq!(unit_of(none), None, "{none}");
        }
    }

    #[test]
    fn a_dollar_survives_execstart() {
        assert_eq!(exec_argument("/var/lib/a$b/${C}"), "/var/lib/a$$b/$${C}");
    }
}

//! What can be wrong with the place of a store while it is in use. Pure.

use crate::error::Error;

/// Bytes below which a store counts as full: etcd writes its log in pieces of 64 MB, and an engine fails in the middle of a
/// layer.
pub const LEAST_FREE: u64 = 64 << 20;

/// What was seen of the place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreObservation {
    /// The volume that it lies on, or lay; none: the root disk.
    pub volume: Option<String>,
    /// What `openstack server` calls this machine.
    pub server: String,
    /// No disk carries the volume's id any more.
    pub gone: bool,
    /// The mount is read-only.
    pub read_only: bool,
    /// Why the directory cannot be read.
    pub unreadable: Option<String>,
    /// Bytes that are free, where they are known.
    pub free: Option<u64>,
}

/// What is wrong with it, if anything is: in a few words, and with all that is known.
#[must_use]
pub fn problem(path: &str, signs: &StoreObservation) -> Option<(String, Error)> {
    let volume = signs.volume.as_deref();
    let disk = volume.map_or_else(|| "the root disk".to_owned(), |volume| format!("volume {volume}"));
    let again = match volume {
        Some(volume) => format!("detach volume {volume}, attach it again, and update the stack"),
        None => "reboot the server".to_owned(),
    };
    if signs.gone {
        let fact = format!("{disk} of {path} is no longer attached");
        return Some((
            fact.clone(),
            Error::permanent(fact).rule("a store's volume must stay attached while its services run").remedy(format!(
                "attach it: `openstack server add volume {} {}`; then `heat-node-agent repair` starts the services again",
                signs.server,
                volume.unwrap_or_default()
            )),
        ));
    }
    if let Some(why) = &signs.unreadable {
        let fact = format!("{path} on {disk} cannot be read");
        let error = Error::permanent(format!("{fact}: {why}"))
            .rule("a file system shuts itself down after I/O errors")
            .remedy(format!("check `journalctl -k` for the errors; {again}"));
        return Some((fact, error));
    }
    if signs.read_only {
        let fact = format!("{path} on {disk} is read-only");
        let error = Error::permanent(fact.clone())
            .rule("the kernel makes a file system read-only after I/O errors")
            .remedy(format!("check `journalctl -k` for the errors; {again}"));
        return Some((fact, error));
    }
    signs.free.filter(|free| *free < LEAST_FREE)?;
    let more = volume.map_or_else(
        || "use a volume for the store, or a larger root disk for the server".to_owned(),
        |volume| format!("extend the volume (`openstack --os-volume-api-version 3.42 volume set --size GIB {volume}`, where GIB is its new size) and set that size in the template too. Its file system grows by itself"),
    );
    let fact = format!("{path} on {disk} is full");
    let error = Error::permanent(format!("{fact}: less than {} MiB are free", LEAST_FREE >> 20))
        .rule(format!("a store needs {} MiB of free space", LEAST_FREE >> 20))
        .remedy(format!("delete nothing in it by hand, but {more}"));
    Some((fact, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_problem_has_its_cause_and_its_remedy() {
        let on_volume = StoreObservation { volume: Some("7c1f".into()), free: Some(1 << 30), ..StoreObservation::default() };
        for (signs, cause, remedy) in [
            (on_volume.clone(), "", ""),
            (StoreObservation { free: None, ..on_volume.clone() }, "", ""),
            // The first that explains the others.
            (
                StoreObservation { gone: true, read_only: true, unreadable: Some("EIO".into()), ..on_volume.clone() },
                "volume 7c1f of /s is no longer attached",
                "server add volume",
            ),
            (
                StoreObservation { unreadable: Some("EIO".into()), ..on_volume.clone() },
                "/s on volume 7c1f cannot be read: EIO",
                "detach volume 7c1f",
            ),
            (StoreObservation { read_only: true, ..on_volume.clone() }, "/s on volume 7c1f is read-only", "journalctl -k"),
            (
                StoreObservation { free: Some(63 << 20), ..on_volume },
                "/s on volume 7c1f is full: less than 64 MiB are free",
                "volume set --size",
            ),
            (
                StoreObservation { free: Some(0), ..StoreObservation::default() },
                "/s on the root disk is full",
                "use a volume for the store",
            ),
            (StoreObservation { read_only: true, ..StoreObservation::default() }, "/s on the root disk is read-only", "reboot"),
        ] {
            let found = problem("/s", &signs);
            assert_eq!(found.is_none(), cause.is_empty(), "{signs:?}");
            if let Some((fact, error)) = found {
                assert!(error.to_string().starts_with(cause) && error.to_string().starts_with(&fact), "{error}");
                assert!(error.suggested_remedy().unwrap().contains(remedy) && error.broken_rule().is_some(), "{error}");
            }
        }
    }
}

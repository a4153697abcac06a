//! A user name or password in a URL, whichever parameter brings it, is where its owner alone reads it.

use std::collections::BTreeSet;

use serde_json::json;

use super::fixtures::{parameters, problems, spec};
use super::injection_tests::sample;
use super::parameters::kinds::ParameterKind;
use super::parameters::table::{Parameter, TABLE};
use super::{ImagePolicy, MachineFacts, node_of, readable_parameters, render};
use crate::metadata::Deployment;

/// A password that no quoting leaves as it is, and one that all of them do.
const PASSWORDS: [&str; 3] = ["hush-hush", "hush'\"hush", "hush$hush%20`hush"];

/// Every parameter that may be a URL: by its kind, or because its value is free.
fn urls() -> Vec<&'static Parameter> {
    let may = |row: &&Parameter| {
        matches!(
            row.kind,
            ParameterKind::Url
                | ParameterKind::Text
                | ParameterKind::Word
                | ParameterKind::List
                | ParameterKind::HostPort
                | ParameterKind::Options
        )
    };
    TABLE.iter().filter(may).collect()
}

#[test]
fn no_password_of_a_url_is_where_others_can_read_it() {
    let mut written = BTreeSet::new();
    for row in urls() {
        for (sample_name, minor) in ["2026-master", "2026-worker"].into_iter().flat_map(|name| [(name, 9), (name, 28)]) {
            for password in PASSWORDS.into_iter().take(if row.kind == ParameterKind::Url { 3 } else { 1 }) {
                let url = format!("http://someone:{password}@h.example.org:1234/x");
                let mut config = sample(sample_name);
                config.insert("KUBE_TAG".to_owned(), json!(format!("v1.{minor}.1")));
                if minor > 9 {
                    config.insert("CONTAINERD_VERSION".to_owned(), json!("1.7.2"));
                } else {
                    config.insert("CONTAINER_RUNTIME".to_owned(), json!("docker"));
                }
                config.insert("REGISTRY_ENABLED".to_owned(), json!(true));
                let value = if row.kind == ParameterKind::Options { format!("--some-url={url}") } else { url.clone() };
                config.insert(row.name.to_owned(), json!(value));
                let deployment = Deployment::parse(&json!({"id": "i", "config": config})).unwrap().unwrap();
                let parameters = readable_parameters(&deployment);
                assert!(!format!("{parameters:?}").contains("hush"), "{}", row.name);
                let spec = match node_of(&deployment, &ImagePolicy::everything()) {
                    Ok(spec) => spec,
                    Err(mistakes) => {
                        for mistake in mistakes {
                            assert!(row.secret || !mistake.to_string().contains("hush"), "{}: {mistake}", row.name);
                        }
                        continue;
                    }
                };
                let desired = render(&spec, &MachineFacts::default()).unwrap();
                for file in desired.files.iter().filter(|file| file.content.contains("hush")) {
                    assert!(file.mode & 0o700 == file.mode && file.secret, "{}: {} {:o}", row.name, file.path, file.mode);
                    // systemd shows what units say to everybody, whatever the mode of their files.
                    assert!(!file.path.contains("/systemd/system/"), "{}: {}", row.name, file.path);
                    written.insert(row.name);
                }
                let rest = format!("{:?} {:?} {:?} {:?}", desired.directories, desired.units, desired.volumes, desired.gates);
                // A word or a list is no URL: what stands in a unit's or a volume's name is no secret.
                let may = matches!(row.kind, ParameterKind::Word | ParameterKind::List | ParameterKind::HostPort);
                assert!(may || !rest.contains("hush"), "{}", row.name);
                if row.kind == ParameterKind::Url && password == PASSWORDS[0] {
                    assert!(
                        parameters.given(row.name).is_none() || parameters.secrets().iter().any(|one| one == password),
                        "{}",
                        row.name
                    );
                }
            }
        }
    }
    for name in ["STATIC_POD_URL", "HTTP_PROXY", "HTTPS_PROXY", "AUTH_URL"] {
        assert!(written.contains(name), "{name} is in no file: the generator does not reach it: {written:?}");
    }
}

#[test]
fn the_signature_of_a_url_of_static_pods_is_for_root_alone() {
    for (tag, signature) in [
        ("v1.28.9", "temp_url_sig=0a1b2c3d4e5f&temp_url_expires=1999999999"),
        ("v1.9.1", "temp_url_sig=0a1b2c3d4e5f"),
        ("v1.9.1", "temp_url_sig=0a$1b`2c"),
    ] {
        let url = format!("https://store.example.org/v1/AUTH_p/pods?{signature}");
        let changes = [("KUBE_TAG", tag), ("CONTAINER_RUNTIME", "docker"), ("STATIC_POD_URL", url.as_str())];
        assert!(parameters(&changes).secrets().iter().any(|one| one == signature));
        let desired = render(&spec(&changes), &MachineFacts::default()).unwrap();
        let holding: Vec<_> = desired.files.iter().filter(|file| file.content.contains("temp_url_sig")).collect();
        assert!(!holding.is_empty());
        for file in holding {
            assert!(file.secret && file.mode.trailing_zeros() >= 6, "{tag} {signature} {}: {:o}", file.path, file.mode);
        }
    }
}

#[test]
fn a_password_that_could_only_stand_on_a_command_line_is_a_mistake() {
    for (tag, name, value, wrong) in [
        ("v1.9.1", "STATIC_POD_URL", "http://u:hush@h/pods", true),
        ("v1.9.1", "STATIC_POD_URL", "http://h/pods", false),
        ("v1.28.9", "STATIC_POD_URL", "http://u:hush@h/pods", false),
        ("v1.28.9", "KUBELET_OPTIONS", "--manifest-url=http://u:hush@h/pods", true),
    ] {
        let problems = problems(&[("KUBE_TAG", tag), (name, value)]);
        let found = problems.iter().any(|problem| problem.contains("would appear on a command line"));
        assert_eq!(found, wrong, "{tag} {value}: {problems:?}");
        assert!(!problems.concat().contains("hush"), "{problems:?}");
    }
}

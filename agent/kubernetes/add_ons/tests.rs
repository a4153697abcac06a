//! Nodes of the other systems, by the parameters that stand for them.

use crate::kubernetes::fixtures::{arguments, asked, assignments, content, file, master, node, problems, spec, value};

const CREATOR: &[(&str, &str)] = &[
    ("AUTH_URL", "https://keystone-v3.example.org:5000/v3"),
    ("USERNAME", "bay-owner"),
    ("PASSWORD", "p\"#;[Global]"),
    ("TENANT_NAME", "team blue"),
    ("REGION_NAME", "RegionOne"),
    ("EXTERNAL_NETWORK_ID", "e6f70819"),
];

/// seed-systems.md 6a, July 2015: names and values of a master's files, and etcd's first ports.
#[test]
fn kubernetes_ansibles_master_is_ours_with_other_ports() {
    let desired = master(
        2,
        &[("TLS_DISABLED", "true"), ("CERTIFICATES", ""), ("KUBE_API_PORT", "8080"), ("NODE_LAYOUT", "kubernetes-ansible")],
    );
    let mut etcd = assignments(content(&desired, "/etc/etcd/etcd.conf"));
    etcd.extend(assignments(content(&desired, "/etc/etcd/bootstrap.conf")));
    for (key, expected) in [
        ("ETCD_LISTEN_CLIENT_URLS", "http://192.0.2.11:4001,http://127.0.0.1:4001"),
        ("ETCD_ADVERTISE_CLIENT_URLS", "http://192.0.2.11:4001"),
        ("ETCD_LISTEN_PEER_URLS", "http://192.0.2.11:7001"),
        ("ETCD_INITIAL_ADVERTISE_PEER_URLS", "http://192.0.2.11:7001"),
        ("ETCD_INITIAL_CLUSTER", "blue-master-0=http://192.0.2.11:7001"),
        ("ETCD_DATA_DIR", "/var/lib/etcd/default.etcd"),
    ] {
        assert_eq!(etcd.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str()), Some(expected), "{key}");
    }
    assert_eq!(asked(&desired, "etcd"), Some("http://127.0.0.1:4001/health"));
    let mut variables = assignments(content(&desired, "/etc/kubernetes/config"));
    for path in ["apiserver", "controller-manager", "scheduler"] {
        variables.extend(assignments(content(&desired, &format!("/etc/kubernetes/{path}"))));
    }
    for (key, part) in [
        ("KUBE_LOGTOSTDERR", "--logtostderr=true"),
        ("KUBE_LOG_LEVEL", "--v=0"),
        ("KUBE_ALLOW_PRIV", "--allow-privileged=true"),
        ("KUBE_MASTER", "--master=http://127.0.0.1:8080"),
        ("KUBE_API_ADDRESS", "--insecure-bind-address=0.0.0.0"),
        ("KUBE_API_PORT", "--insecure-port=8080"),
        ("KUBE_ETCD_SERVERS", "--etcd-servers=http://127.0.0.1:4001"),
        ("KUBE_SERVICE_ADDRESSES", "--service-cluster-ip-range=10.254.0.0/16"),
        ("KUBE_API_ARGS", ""),
        ("KUBE_CONTROLLER_MANAGER_ARGS", "--leader-elect=true"),
        ("KUBE_SCHEDULER_ARGS", "--leader-elect=true"),
    ] {
        let found = variables.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
        assert!(found.is_some_and(|value| value.contains(part)), "{key}: {found:?}");
    }
}

/// seed-systems.md 5: every master runs all three, one of several leads, and workers reach them by HAProxy.
#[test]
fn openshifts_masters_stand_behind_haproxy() {
    let members = "m0=https://192.0.2.11:2380,m1=https://192.0.2.12:2380,m2=https://192.0.2.13:2380";
    let desired = master(7, &[("INSTANCE_NAME", "m0"), ("ETCD_INITIAL_CLUSTER", members)]);
    for unit in ["kube-controller-manager.service", "kube-scheduler.service"] {
        assert_eq!(value(&arguments(&desired, unit), "leader-elect"), Some("true"));
    }
    let worker = node(&[
        ("KUBE_TAG", "v1.7.4"),
        ("ROLE", "minion"),
        ("API_BALANCER", "haproxy"),
        ("MASTER_ADDRESSES", "192.0.2.11,192.0.2.12,192.0.2.13"),
        ("KUBE_API_PORT", "8443"),
        ("ETCD_SERVER_IP", "192.0.2.11"),
    ]);
    let settings = content(&worker, "/etc/haproxy/haproxy.cfg");
    assert!(settings.contains("    bind 127.0.0.1:8443\n") && settings.matches("    server master-").count() == 3);
    assert_eq!(asked(&worker, "haproxy"), Some("https://127.0.0.1:8443/healthz"));
}

/// seed-systems.md 7
#[test]
fn kubestack_is_there_only_where_it_is_asked_for() {
    for (minor, asked, flag) in [(2, "true", Some("127.0.0.1:4237")), (3, "true", Some("127.0.0.1:4237")), (3, "false", None)] {
        let changes: Vec<_> = CREATOR.iter().copied().chain([("KUBESTACK", asked)]).collect();
        let desired = master(minor, &changes);
        for unit in ["kube-controller-manager.service", "kubelet.service"] {
            assert_eq!(value(&arguments(&desired, unit), "network-provider"), flag, "{unit} {minor} {asked}");
        }
        assert_eq!(file(&desired, "/etc/kubestack.conf").is_some(), flag.is_some());
        assert_eq!(desired.units.iter().any(|unit| unit.name == "kubestack.service" && unit.enable), flag.is_some());
    }
    let desired =
        master(2, &CREATOR.iter().copied().chain([("KUBESTACK", "true"), ("KUBESTACK_BRIDGE", "br-pods")]).collect::<Vec<_>>());
    let settings = file(&desired, "/etc/kubestack.conf").unwrap();
    assert_eq!((settings.mode, settings.secret), (0o600, true));
    assert_eq!(
        settings.content,
        "# Made by heat-node-agent from the parameters of the deployment; it is written again when they change.\n\
         [Global]\nauth-url = \"https://keystone-v3.example.org:5000/v3\"\nusername = \"bay-owner\"\npassword = \"p\\\"#;[Global]\"\n\
         tenant-name = \"team blue\"\n\
         region = \"RegionOne\"\next-net-id = \"e6f70819\"\nkeystone-version = \"3\"\n\n\
         [LoadBalancer]\nlb-method = \"ROUND_ROBIN\"\ncreate-monitor = \"yes\"\nmonitor-delay = \"1m\"\nmonitor-timeout = \"30s\"\nmonitor-max-retries = \"3\"\n\n\
         [Plugin]\nplugin-name = \"ovs\"\nintegration-bridge = \"br-pods\"\n"
    );
    let drop_in = content(&desired, "/etc/systemd/system/kubestack.service.d/50-heat-node-agent.conf");
    for line in [
        "After=openvswitch.service openvswitch-switch.service\n",
        "ExecStartPre=ovs-vsctl --may-exist add-br br-pods\n",
        "RuntimeDirectory=netns\n",
    ] {
        assert!(drop_in.contains(line), "{line}: {drop_in}");
    }
    let modules = content(&desired, "/etc/modules-load.d/heat-node-agent.conf");
    assert!(modules.contains("\nopenvswitch\n"), "{modules}");
    let driver: Vec<_> = CREATOR.iter().copied().chain([("NETWORK_DRIVER", "kubestack")]).collect();
    let desired = master(3, &driver);
    assert!(desired.units.iter().any(|unit| unit.name == "kubestack.service"));
    assert!(desired.units.iter().all(|unit| unit.name != "flanneld.service" || !unit.enable));
    let odd: Vec<_> = driver.iter().copied().chain([("KUBE_TAG", "v1.3.2"), ("KUBESTACK_BRIDGE", "a/b")]).collect();
    assert_eq!(problems(&odd), ["KUBESTACK_BRIDGE is not a valid bridge name"]);
    // magnum-node.md 7.3 no. 29: a v3 in a host's name is none in the path.
    let old = [("AUTH_URL", "https://keystone-v3.example.org:5000/v2.0"), ("KUBESTACK", "true")];
    let desired = master(2, &CREATOR.iter().copied().chain(old).collect::<Vec<_>>());
    assert!(!content(&desired, "/etc/kubestack.conf").contains("keystone-version"));
}

/// Another build ends at the flag: said where it is certain, and where it is possible.
#[test]
fn kubestack_is_refused_where_no_build_knows_it() {
    let with = |tag| CREATOR.iter().copied().chain([("KUBE_TAG", tag), ("KUBESTACK", "true")]).collect::<Vec<_>>();
    assert_eq!(problems(&with("v1.4.0")), ["KUBESTACK is set with Kubernetes 1.4"]);
    let warnings = spec(&with("v1.3.2")).warnings;
    assert!(warnings.iter().any(|warning| warning.parameter == "KUBESTACK"), "{warnings:?}");
    let nobody = problems(&[("KUBE_TAG", "v1.3.2"), ("KUBESTACK", "true")]);
    assert_eq!(nobody, ["KUBESTACK is set, but there are no credentials for Neutron"]);
}

//! What must not stand on a command line, which every user of the machine can read.

use super::cluster::Checks;
use crate::http::has_userinfo;
use crate::kubernetes::parts::settings::Settings;
use crate::kubernetes::versions::{Component, ConfigKind};

/// Parameters whose words become words of a command line.
const OPTIONS: [&str; 5] =
    ["KUBELET_OPTIONS", "KUBEAPI_OPTIONS", "KUBECONTROLLER_OPTIONS", "KUBEPROXY_OPTIONS", "KUBESCHEDULER_OPTIONS"];

impl Checks<'_> {
    /// No user name or password of a URL.
    pub(in crate::kubernetes) fn command_lines(&mut self) {
        let settings = Settings::new(Component::Kubelet, ConfigKind::Kubelet, self.spec.minor, false);
        let by_flag = Some("STATIC_POD_URL").filter(|_| !settings.has_field("staticPodURL"));
        for name in OPTIONS.into_iter().chain(by_flag) {
            if self.parameters.get(name).is_some_and(has_userinfo) {
                self.wrong(
                    name,
                    "contains a URL with a user name or password, which would appear on a command line",
                    "every user on the machine can read command lines",
                    "give the URL without them",
                );
            }
        }
    }
}

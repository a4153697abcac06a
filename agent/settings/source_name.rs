//! The sources by name.

/// A source that this version knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SourceName {
    /// What cloud-init or Ignition left at first boot; unauthoritative for deployments.
    HeatLocal,
    /// What the operator left in /var/lib/os-collect-config/local-data.
    Local,
    /// heat-api-cfn.
    Cfn,
    /// heat-api, with a token of Keystone.
    Heat,
    /// An object in Swift behind a signed URL.
    Request,
    /// A queue of Zaqar, with a token of Keystone.
    Zaqar,
    /// The file given by `--metadata`.
    File,
    /// Magnum's `/etc/sysconfig/heat-params`, where `[node] source` says so: the node, and nothing else.
    HeatParams,
}

impl SourceName {
    /// All.
    pub const ALL: [Self; 8] =
        [Self::HeatLocal, Self::Local, Self::Cfn, Self::Heat, Self::Request, Self::Zaqar, Self::File, Self::HeatParams];

    /// Those whose documents are merged, weakest first.
    pub const ORDER: [Self; 7] = [Self::HeatLocal, Self::Local, Self::Cfn, Self::Heat, Self::Request, Self::Zaqar, Self::File];

    /// Those that are asked over the network.
    pub const REMOTE: [Self; 4] = [Self::Cfn, Self::Heat, Self::Request, Self::Zaqar];

    /// The word in settings, journal and file names.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::HeatLocal => "heat_local",
            Self::Local => "local",
            Self::Cfn => "cfn",
            Self::Heat => "heat",
            Self::Request => "request",
            Self::Zaqar => "zaqar",
            Self::File => "file",
            Self::HeatParams => "heat-params",
        }
    }

    /// Whether its list of deployments is what Heat asks for now; what was left on this machine is as old as its writing.
    #[must_use]
    pub fn speaks_for_heat(self) -> bool {
        !matches!(self, Self::HeatLocal | Self::Local | Self::HeatParams)
    }

    /// Whether it is asked over the network.
    #[must_use]
    pub fn is_remote(self) -> bool {
        Self::REMOTE.contains(&self)
    }

    /// The source of this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == word)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A source without a place in `ORDER` would be polled and never merged, and `sources.order` would reject its name.
    #[test]
    fn the_default_order_has_every_source_but_the_one_that_is_never_merged() {
        for source in SourceName::ALL {
            let places = SourceName::ORDER.iter().filter(|one| **one == source).count();
            assert_eq!(places, usize::from(source != SourceName::HeatParams), "{source:?}");
        }
        assert!(SourceName::REMOTE.iter().all(|source| SourceName::ALL.contains(source)));
    }
}

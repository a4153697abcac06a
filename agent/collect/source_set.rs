//! What a source is asked with: one whole set of settings, taken from one document (design.md 9: credentials travel whole).
//!
//! A [`SourceSet`] can only be made from one section of one document. So no credential is ever combined with an address that
//! another document named.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::endpoint::Endpoint;
use super::section::Section;
use super::{cfn, heat, request, zaqar};
use crate::digest;
use crate::error::{Context, Error, Result};
use crate::gather::Gather;
use crate::http::split;
use crate::openstack::aws_signature::Keys;
use crate::openstack::keystone::Credentials;
use crate::settings::source_name::SourceName;

/// Largest set in bytes: it is kept beside the document that it fetched, and no URL or path comes near this.
const LARGEST: usize = 64 * 1024;

/// The document that a set was taken from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HintOrigin {
    /// cloud-init's hint file: it names Heat's host and nobody's credentials.
    Hint,
    /// The boot copy of the metadata.
    BootCopy,
    /// os-collect-config.conf.
    Config,
    /// What a source answered last.
    Answer(SourceName),
    /// The document of `--metadata`.
    Given,
    /// An earlier document, by whose set the source answered last.
    Before,
}

impl fmt::Display for HintOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hint => f.write_str("cfn-metadata-server"),
            Self::BootCopy => f.write_str("cfn-init-data"),
            Self::Config => f.write_str("os-collect-config.conf"),
            Self::Answer(source) => write!(f, "the newest answer of source {}", source.as_str()),
            Self::Given => f.write_str("the given document"),
            Self::Before => f.write_str("the settings of the last answer"),
        }
    }
}

/// The settings that a source has.
pub(super) fn keys(source: SourceName) -> &'static [&'static str] {
    match source {
        SourceName::Cfn => cfn::KEYS,
        SourceName::Heat => heat::KEYS,
        SourceName::Request => request::KEYS,
        SourceName::Zaqar => zaqar::KEYS,
        SourceName::HeatLocal | SourceName::Local | SourceName::File | SourceName::HeatParams => &[],
    }
}

/// Those of them that a source cannot do without.
pub(super) fn needed(source: SourceName) -> &'static [&'static str] {
    match source {
        SourceName::Cfn => &cfn::NEEDED,
        SourceName::Heat => &heat::NEEDED,
        SourceName::Request => &request::NEEDED,
        SourceName::Zaqar => &zaqar::NEEDED,
        SourceName::HeatLocal | SourceName::Local | SourceName::File | SourceName::HeatParams => &[],
    }
}

/// How a whole set is stored beside what it fetched. It holds credentials.
#[derive(Clone, Serialize, Deserialize)]
pub(super) struct Stored(BTreeMap<String, Vec<String>>);

/// Endpoint and credentials of a source, all from one document.
#[derive(Clone)]
pub(super) struct SourceSet {
    pub(super) origin: HintOrigin,
    section: Section,
    endpoint: Endpoint,
}

impl fmt::Debug for SourceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SourceSet").field("origin", &self.origin).field("place", &self.place()).finish_non_exhaustive()
    }
}

impl SourceSet {
    /// The set that a document has for a source; nothing where it says nothing of it. `asked_for`: the same document asks for the
    /// source by its name.
    ///
    /// # Errors
    /// Permanent, if the document gives a part of what the source needs, or something that cannot be used.
    pub(super) fn of(source: SourceName, origin: HintOrigin, section: &Section, asked_for: bool) -> Result<Option<Self>> {
        let made = || -> Result<Option<Endpoint>> {
            if section.size() > LARGEST {
                return Err(Error::permanent(format!("the settings of {} are {} bytes long", source.as_str(), section.size()))
                    .rule(format!("at most {LARGEST} bytes"))
                    .remedy("correct the os-collect-config metadata of the server"));
            }
            let endpoint = match source {
                SourceName::Cfn => cfn::CfnEndpoint::new(section)?.map(Endpoint::Cfn),
                SourceName::Heat => heat::HeatEndpoint::new(section)?.map(Endpoint::Heat),
                SourceName::Request => request::TempUrlEndpoint::new(section).map(Endpoint::Request),
                SourceName::Zaqar => zaqar::QueueEndpoint::new(section)?.map(Endpoint::Zaqar),
                SourceName::HeatLocal | SourceName::Local | SourceName::File | SourceName::HeatParams => None,
            };
            // Heat leaves an address, or a region, where it takes credentials away: that alone names nothing.
            if endpoint.is_none() && asked_for && needed(source).iter().any(|key| section.get(key).is_some()) {
                section.check(source, needed(source))?;
            }
            Ok(endpoint)
        };
        let endpoint = made().context(|| format!("reading {origin}"))?;
        Ok(endpoint.map(|endpoint| Self { origin, section: section.clone(), endpoint }))
    }

    /// Takes what [`SourceSet::stored`] gave; nothing where it is of another version of the agent.
    pub(super) fn from_stored(source: SourceName, stored: Stored) -> Option<Self> {
        let mut section = Section::default();
        for (key, values) in stored.0 {
            section.take(keys(source).iter().find(|known| **known == key)?, values);
        }
        Self::of(source, HintOrigin::Before, &section, false).ok().flatten()
    }

    /// The settings themselves. Never shown: they hold credentials.
    pub(super) fn section(&self) -> &Section {
        &self.section
    }

    pub(super) fn stored(&self) -> Stored {
        Stored(self.section.values().iter().map(|(key, values)| ((*key).to_owned(), values.clone())).gather())
    }

    /// Whether both ask the same place with the same credentials, whichever document they are from.
    pub(super) fn is_same_way(&self, other: &Self) -> bool {
        self.section == other.section
    }

    /// Whether what is asked, and the credentials with it, travel encrypted.
    pub(super) fn is_https(&self) -> bool {
        split(self.endpoint.address()).is_some_and(|parts| parts.scheme == "https")
    }

    /// For people, without secrets.
    pub(super) fn place(&self) -> String {
        self.endpoint.place()
    }

    /// Tells it from others, together with what this machine's files add (a CA, and names of lists), without showing it.
    pub(super) fn key(&self, ca: Option<&str>, deployment_keys: &[String]) -> String {
        digest::of(&(self.section.values(), ca, deployment_keys))
    }

    /// Whom to ask. A CA that os-collect-config.conf names for the source is believed where the set has none.
    pub(super) fn endpoint(&self, ca: Option<&str>) -> Endpoint {
        let mut endpoint = self.endpoint.clone();
        let own = endpoint.ca_mut();
        *own = own.take().or_else(|| ca.map(str::to_owned));
        endpoint
    }

    /// With what signals may be signed afresh, and for whom.
    pub(super) fn signer(&self) -> Option<(String, Keys)> {
        match &self.endpoint {
            Endpoint::Cfn(endpoint) => Some(endpoint.signer()),
            Endpoint::Heat(_) | Endpoint::Request(_) | Endpoint::Zaqar(_) => None,
        }
    }

    /// The server's user, for tokens.
    pub(super) fn user(&self) -> Option<Credentials> {
        match &self.endpoint {
            Endpoint::Heat(endpoint) => Some(endpoint.user()),
            Endpoint::Zaqar(endpoint) => Some(endpoint.user()),
            Endpoint::Cfn(_) | Endpoint::Request(_) => None,
        }
    }
}

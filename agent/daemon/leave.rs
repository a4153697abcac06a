//! What the settings of the image give leave for.

use crate::kubernetes::Leave;
use crate::settings::Settings;

/// What the image lets parameters decide.
pub(crate) fn leave_of(settings: &Settings) -> Leave {
    Leave::of(settings.deploy.groups.as_deref(), &settings.allow_options)
}

//! A secret, as scripts and commands have it.

use serde::{Deserialize, Serialize};

use crate::Base64;

/// A secret of one script or one command. It is part of the request, so it is nowhere before that,
/// and what it belongs to is never in doubt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Secret {
    /// Its name: an ASCII identifier.
    pub name: String,
    /// Its value, at most [`MAX_SECRET_BYTES`](crate::limits::MAX_SECRET_BYTES), without NUL.
    pub value: Base64,
}

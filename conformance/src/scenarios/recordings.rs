//! The shipped recordings, as scenarios read them.

use crate::shipped::{self, Shipped, ShippedError};
use crate::suite::Trouble;

/// Reads a recording of the repository. Without a checkout, as in a published crate, the entry is skipped.
pub(crate) fn recording(name: &str) -> Result<Shipped, Trouble> {
    shipped::read(name).map_err(|error| match error {
        ShippedError::NoFolder { .. } => Trouble::Skip(error.to_string()),
        error => Trouble::fail(error.to_string()),
    })
}

//! The shipped recordings, as scenarios read them.

use parkade_conformance::suite::Trouble;
use parkade_oracle::shipped::{self, Shipped, ShippedError};

/// Reads a recording of the repository. Without a checkout, as in a published crate, the entry is skipped.
pub(crate) fn recording(name: &str) -> Result<Shipped, Trouble> {
    shipped::read(name).map_err(|error| match error {
        ShippedError::NoFolder { .. } => Trouble::Skip(error.to_string()),
        error => Trouble::fail(error.to_string()),
    })
}

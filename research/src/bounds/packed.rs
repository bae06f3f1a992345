//! Packings for bounds: found by the packer, checked by the checker.

use std::fmt;

use crate::packing::{self, Effort, Fault, Found, Instance, InstanceError};

/// Why a workload has no bounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum BoundsError {
    /// Its buffers are not an instance of the packing problem.
    Instance(InstanceError),
    /// The packer made an invalid packing: a bug in parkade.
    Packing(Fault),
}

impl fmt::Display for BoundsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BoundsError::Instance(error) => write!(f, "the workload has no bounds: {error}"),
            BoundsError::Packing(fault) => write!(f, "the packer made an invalid packing, a bug in parkade: {fault:?}"),
        }
    }
}

impl std::error::Error for BoundsError {}

/// The best packing found, after the checker has approved it.
pub(super) fn pack_checked(instance: &Instance, effort: &Effort) -> Result<Found, BoundsError> {
    let found = packing::pack(instance, effort);
    packing::check(instance, &found.packing).map_err(BoundsError::Packing)?;
    Ok(found)
}

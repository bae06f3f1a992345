//! The checks, as lists of entries: laws, policies, the device contract, PyTorch's own tests, and two devices in lockstep.

pub(crate) mod campaign;
pub mod contract;
pub mod laws_any_policy;
pub mod laws_pytorch;
pub mod lockstep;
mod policy_choices;
pub mod pytorch_tests;
mod simulated_device;

use crate::backend::AnyBackend;

#[cfg(feature = "cuda")]
use crate::backend::Cuda;
use crate::suite::Entry;
use laws_any_policy::Share;
pub use laws_pytorch::against_reference;

/// Returns every entry of the suite for a backend, by group.
#[must_use]
pub fn entries(backend: &AnyBackend) -> Vec<Entry> {
    [
        laws_pytorch::entries(backend),
        laws_any_policy::entries(backend, None, Share::Part),
        contract::entries(backend),
        pytorch_tests::entries(backend),
        lockstep::entries(backend),
        simulated_device::entries(backend),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the entries that exist only for CUDA devices: those about a host's second device.
#[cfg(feature = "cuda")]
#[must_use]
pub fn cuda_entries(cuda: &Cuda) -> Vec<Entry> {
    contract::neighbours::entries(cuda)
}

//! The reference policies: a second implementation of every policy in the catalogue, written from the documented rules.
//!
//! They are plain and slow: they scan the heap's lists from end to end and share no code with the policies. [`Paired`] asks a
//! policy and its reference policy the same questions about the same heap, and keeps the first difference between their answers.
//! For PyTorch's own policy, there is a reference allocator instead ([`reference_model`](crate::reference_model)).

mod bfc;
mod compaction;
mod cuda_async;
mod gmlake;
mod growing_region;
mod handles;
mod lists;
pub(crate) mod names;
mod paired;
pub(crate) mod plan;
mod rescue;
mod rmm_pool;
mod stalloc;

pub(crate) use cuda_async::CudaAsync;
pub(crate) use growing_region::GrowingRegion;
pub(crate) use paired::{Choices, Paired};
pub(crate) use rescue::Rescue;
pub(crate) use stalloc::Stalloc;

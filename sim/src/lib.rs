//! parkade's simulated GPU, recordings of real PyTorch runs, and their replay on the core.
#![forbid(unsafe_code)]

pub mod device;
pub mod ops;
pub mod recording;
pub mod replay;

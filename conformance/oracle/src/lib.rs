//! parkade's answers beside the real PyTorch allocator's.
//!
//! [`ops`] runs scripts of allocator operations and prints what the program around the real allocator prints, [`golden`] holds its
//! recorded answers, and [`shipped`] the recordings of real runs that ship with the repository.
#![forbid(unsafe_code)]

pub mod golden;
pub mod ops;
pub mod shipped;

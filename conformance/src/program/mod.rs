//! Programs: what a caller of an allocator does, how programs are drawn and shrunk, and what is compared while they run.

pub(crate) mod accounts;
pub(crate) mod beside;
pub(crate) mod player;
pub mod search;
pub(crate) mod step;
pub(crate) mod watched;

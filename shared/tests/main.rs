//! Tests one allocator that several threads share.

mod addresses;
mod order;
mod threads;

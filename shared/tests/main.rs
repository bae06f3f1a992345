//! One allocator for several threads.

mod addresses;
mod order;
mod threads;

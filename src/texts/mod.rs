//! The texts that PyTorch's allocator shows to people, byte for byte: sizes and errors.

mod bytes;
mod oom;

pub use bytes::{format_bytes, format_double, format_significant};
pub use oom::{Hint, MORE_THAN_ONE_EXABYTE, OomWords, OutOfMemory, invalid_fraction_message, rejection_message};

//! Tests snapshot files, statistics and messages.

mod bad_input;
mod formats;
mod properties;
mod summary;

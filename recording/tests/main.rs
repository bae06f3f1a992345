//! Tests snapshot files, statistics and messages.

mod bad_input;
mod formats;
mod logs;
mod properties;
mod summary;

//! Tests what the crate concludes from recordings and from messages.

mod diff;
mod holders;
mod messages;
mod timeline;

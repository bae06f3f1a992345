//! What is drawn from recordings.

mod diff;
mod holders;
mod timeline;

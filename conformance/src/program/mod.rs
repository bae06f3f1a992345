//! Programs: what a caller of an allocator does, in one language ([`step`]); how programs are drawn ([`draw`]) and shrunk
//! ([`search`]); and the player that performs them ([`player`]), with the observers that compare what happens.

mod accounts;
mod adopt;
pub(crate) mod answer;
pub(crate) mod beside;
pub(crate) mod books;
pub(crate) mod bytes;
pub(crate) mod caller;
mod changed;
pub(crate) mod contents;
pub(crate) mod draw;
mod handles;
mod history;
mod lending;
pub(crate) mod player;
mod routing;
mod script;
pub(crate) mod search;
pub(crate) mod step;
mod views;
pub(crate) mod watched;

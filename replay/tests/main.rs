//! Exact replay of what is hard to replay.

mod forgeries;
mod growth;
mod named_pools;
mod restores;

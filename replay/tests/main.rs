//! Tests exact replays of recordings that are hard to replay.

mod forgeries;
mod growth;
mod named_pools;
mod restores;

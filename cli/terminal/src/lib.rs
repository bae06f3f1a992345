#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]

pub mod args;
pub mod ending;
pub mod in_process;
pub mod json_struct;
pub mod markup;
pub mod memory_words;
pub mod output;
pub mod outputs;
pub mod progress;
pub mod recording;
pub mod release;
pub mod runner;
pub mod size;
pub mod table;
pub mod threads;
pub mod usage;

//! Code that the commands share: how a command is run, the arguments that several take, the recording that they read,
//! and what they print and write. It draws no conclusions.

pub mod answer;
pub mod args;
pub mod json_struct;
pub mod markup;
pub mod output;
pub mod outputs;
pub mod progress;
pub mod recording;
pub mod run_words;
pub mod runner;
#[cfg(all(test, feature = "suite"))]
pub(crate) mod shape;
pub mod size;
pub mod surroundings;
pub mod table;

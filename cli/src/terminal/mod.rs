//! Code that the commands share: how a command is run, the arguments that several take, the recording that they read,
//! and what they print and write. It draws no conclusions.

pub mod answer;
pub mod args;
pub mod clock;
mod drawn;
pub mod files;
pub mod json_struct;
pub mod markup;
pub(crate) mod memory_options;
pub mod output;
pub mod outputs;
pub mod progress;
pub mod recording;
pub mod run_words;
pub mod runner;
#[cfg(all(test, feature = "suite"))]
pub(crate) mod shape;
pub mod size;
mod styled_cell;
pub mod surroundings;
pub mod table;

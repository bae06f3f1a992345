//! What the commands share: how a command is run, the arguments that several take, the recording that they read, and what they print
//! and write. It draws no conclusions.

pub mod answer;
pub mod args;
mod draft;
pub mod given_settings;
pub mod in_process;
pub mod json_struct;
pub mod markup;
pub mod output;
pub mod outputs;
pub mod progress;
pub mod recording;
pub mod release;
pub mod run_words;
pub mod runner;
pub mod self_check;
#[cfg(all(test, feature = "suite"))]
pub(crate) mod shape;
pub mod similar;
pub mod size;
pub mod table;

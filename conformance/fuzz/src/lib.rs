#![doc = include_str!("../README.md")]
#![deny(unsafe_code)]

pub mod capi;
mod case;
mod choices;
pub mod commands;
pub mod message;
mod pickle;
pub mod printed;
mod recordings;
pub mod settings;
pub mod snapshot;
pub mod steps;
mod texts;

/// Code that must survive every input.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: that of its program in `fuzz_targets` and of its folder in `corpus`.
    pub name: &'static str,
    /// Runs the code on an input. Returns whether the code accepted the input. Panics if the input is a failure.
    pub run: fn(&[u8]) -> bool,
    /// How many in a hundred random inputs the code must accept at least: fewer would mean that the generator of the inputs
    /// no longer makes what the code reads.
    pub least_accepted: usize,
}

/// All targets.
pub const TARGETS: [Target; 7] = [
    Target { name: "steps", run: steps::run, least_accepted: 95 },
    Target { name: "settings", run: settings::run, least_accepted: 20 },
    Target { name: "snapshot", run: snapshot::run, least_accepted: 35 },
    Target { name: "message", run: message::run, least_accepted: 30 },
    Target { name: "capi", run: capi::run, least_accepted: 50 },
    Target { name: "commands", run: commands::run, least_accepted: 35 },
    Target { name: "printed", run: printed::run, least_accepted: 20 },
];

//! The core's tests as one program, so that the code that they share is compiled once.

#[path = "common/device.rs"]
mod device;

mod adopt;
mod borrowing;
mod checkpoint_properties;
mod checkpoints;
mod coalescing;
mod defaults;
mod device_answers;
mod expandable;
mod hint;
mod learning;
mod makers;
mod pools;
mod releases;
mod settings;
mod texts;
mod view;

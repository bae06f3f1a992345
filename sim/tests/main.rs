//! Tests of the simulated device against models, and against facts about real devices.

mod captures;
mod facts;
mod fake_driver;
mod fake_virtual;
mod laws;
mod model;
mod race;
mod race_model;
mod virtual_laws;
mod virtual_memory;
mod virtual_model;

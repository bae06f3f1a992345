//! Tests that compare the simulated device with models and with facts about real devices.

mod captures;
mod facts;
mod fake_driver;
mod fake_virtual;
mod laws;
mod model;
mod race;
mod virtual_laws;
mod virtual_memory;
mod virtual_model;

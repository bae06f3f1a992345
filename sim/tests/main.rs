//! Tests that compare the simulated device with facts about real devices and with examples. The conformance suite compares it
//! with a second implementation.

mod captures;
mod facts;
mod fake_driver;
mod fake_virtual;
mod laws;
mod race;
mod virtual_laws;
mod virtual_memory;

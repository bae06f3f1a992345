//! Tests studies, their builds and pages, and the packer.

mod build_id;
mod numbers_page;
mod packing_generated;
mod real_rmm;
mod study_recordings;
mod told_apart;

//! An exported run as one JSON object.

use parkade::stats::Family;
use parkade_replay::export::ExportedDevice;

use super::{Args, Made, Shortage};
use crate::terminal::json_struct::{all, view};
use crate::terminal::release::MadeBy;

view! {
    pub(super) struct Object<'a>(args: &'a Args, made: &'a Made) {
        file: String = args.file.display().to_string(),
        output: String = args.output.path().display().to_string(),
        settings: Option<&'a str> = made.exported.recording.settings.as_ref().and_then(|settings| settings.text.as_deref()),
        profile: &'static str = made.profile.name,
        made_by: MadeBy = MadeBy::of(&made.made_by),
        devices: Vec<Device> = all(made.exported.devices.iter().zip(&made.recorded), Device::of),
        kept_devices: &'a [u32] = &made.exported.kept_devices,
        slices: Option<usize> = made.slices.map(|slices| slices.blocks),
        left_out_slices: Option<usize> = made.slices.map(|slices| slices.left_out),
    }
}

view! {
    struct Device(device: (&ExportedDevice, &Shortage)) {
        device: u32 = device.0.device,
        entries: usize = device.0.entries,
        ooms: i64 = device.0.stats.num_ooms,
        retries: i64 = device.0.stats.num_alloc_retries,
        recorded_ooms: i64 = device.1.ooms,
        recorded_retries: Option<i64> = device.1.retries,
        fails_at_entry: Option<usize> = device.0.first_failure,
        peak_allocated_bytes: i64 = device.0.stats.family(Family::AllocatedBytes).all.peak,
        peak_reserved_bytes: i64 = device.0.stats.family(Family::ReservedBytes).all.peak,
        early_blocks: Option<usize> = device.0.early_blocks,
        mismatches: u64 = device.0.mismatches,
        device_errors: u64 = device.0.device_errors,
    }
}

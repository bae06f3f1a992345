//! Statistics as one JSON object.

use std::collections::BTreeMap;

use parkade_analysis::fragmentation::Fragmentation;

use super::{Args, Device, LeftOut, Moment, Shown};
use crate::terminal::json_struct::{all, view};
use crate::terminal::release::MadeBy;

view! {
    pub(super) struct Object<'a>(args: &Args, shown: &'a Shown) {
        file: String = args.file.display().to_string(),
        settings: &'a str = &shown.settings,
        made_by: MadeBy = MadeBy::of(&shown.made_by),
        replayed: bool = args.settings.is_some(),
        limit_bytes: Option<u64> = args.limit,
        mismatches: u64 = shown.mismatches(),
        devices: Vec<OfDevice<'a>> = all(&shown.devices, OfDevice::of),
        left_out: Vec<Missing<'a>> = all(&shown.left_out, Missing::of),
    }
}

view! {
    struct Missing<'a>(device: &'a LeftOut) {
        device: u32 = device.number,
        reason: &'a str = &device.reason,
    }
}

view! {
    struct OfDevice<'a>(device: &'a Device) {
        device: u32 = device.number,
        entries: usize = device.entries,
        steps_marked_by: Option<&'a str> = device.mark.as_deref(),
        lost_steps: usize = device.lost_steps,
        mismatches: u64 = device.mismatches,
        decisions: u64 = device.decisions,
        assumed_limit_bytes: Option<u64> = device.assumed_limit_bytes,
        moments: Vec<At> = all(&device.moments, At::of),
        end_without_trace: Option<Figures> = device.end.as_ref().map(Figures::of),
    }
}

view! {
    struct At(moment: &Moment) {
        entry: usize = moment.sample.entry,
        step: Option<usize> = moment.step,
        memory_stats: BTreeMap<String, i64> = moment.sample.stats.entries().into_iter().collect(),
        measures: Figures = Figures::of(&moment.sample.fragmentation),
        peak_allocated_bytes_since_last: i64 = moment.sample.peak_allocated_bytes,
        peak_reserved_bytes_since_last: i64 = moment.sample.peak_reserved_bytes,
    }
}

view! {
    struct Figures(measures: &Fragmentation) {
        reserved_bytes: u64 = measures.reserved_bytes,
        allocated_bytes: u64 = measures.allocated_bytes,
        pending_bytes: u64 = measures.pending_bytes,
        requested_bytes: u64 = measures.requested_bytes,
        rounding_bytes: u64 = measures.rounding_bytes(),
        free_bytes: u64 = measures.free_bytes,
        free_segments_bytes: u64 = measures.free_segments_bytes,
        stranded_bytes: u64 = measures.partial_segments_bytes,
        largest_hole_bytes: u64 = measures.largest_hole_bytes,
        holes: u64 = measures.holes,
        fragmentation: Option<f64> = measures.ratio(),
    }
}

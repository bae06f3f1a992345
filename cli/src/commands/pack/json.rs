//! A packing as one JSON object.

use serde::Serialize;

use super::{Args, Packed};
use crate::terminal::json_struct::{all, view};
use crate::terminal::release::MadeBy;

view! {
    /// With several devices, `devices` has the numbers of each.
    pub(super) struct Object(args: &Args, packed: &[Packed]) {
        file: String = args.file.display().to_string(),
        seed: u64 = args.seed,
        budget: u64 = args.budget,
        #[serde(flatten)]
        numbers: OneOrMany = match packed {
            [one] => OneOrMany::One(Box::new(Numbers::of(one))),
            many => OneOrMany::Many { devices: all(many, Numbers::of) },
        },
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum OneOrMany {
    One(Box<Numbers>),
    Many { devices: Vec<Numbers> },
}

view! {
    struct Numbers(packed: &Packed) {
        buffers: usize = packed.instance.buffers().len(),
        load_bytes: u64 = packed.instance.load(),
        bound_bytes: u64 = packed.found.bound,
        packing_bytes: u64 = packed.found.packing.height,
        ratio: f64 = packed.ratio(),
        is_best: bool = packed.is_best(),
        steps: u64 = packed.found.steps,
        seconds: f64 = packed.seconds,
        lost_beginning: bool = packed.has_lost_beginning,
        made_by: Option<MadeBy> = packed.made_by.as_ref().map(MadeBy::of),
        #[serde(flatten)]
        refused: Option<LeftOut> =
            packed.refused.zip(packed.load_with_last_refused()).map(|(refused, load)| LeftOut::of(refused, load)),
        #[serde(skip_serializing_if = "Option::is_none")]
        device: Option<u32> = packed.device,
    }
}

view! {
    /// Requests of a recording that failed.
    struct LeftOut(refused: super::Refused, load: u64) {
        refused_requests: u64 = refused.requests,
        refused_bytes: u64 = refused.bytes,
        load_with_last_refused_bytes: u64 = load,
    }
}

//! The comparison of two runs of one script, line by line: the real allocator's answers and the core's.
//!
//! The rules are among those of `differential/compare.py`. Everything must be equal except what follows from the addresses of
//! the real allocator's own objects, by which some of its hash tables go. In no recorded script are blocks given back during a
//! capture while other streams use them, so the order in which blocks become free must be equal everywhere.
//!
//! Restored checkpoints go through their pool's segments in the hash order of the blocks. In a `ckpt_load`,
//! - the order of segments in the entries, in `freed` and in `allocd` may differ, but not the order within a segment; if several
//!   segments are missing, another one may be named;
//! - from then on, peaks may differ until they are reset.
//!
//! The registration counter of segments (`reg`) is internal to the real allocator in 2.11 and is not compared; in 2.15 it orders
//! blocks.

use std::collections::BTreeMap;

use parkade::profile::{Profile, TieBreak};
use serde_json::{Map, Value};

use super::difference::Difference;

/// A line without the registration counters of its segments: every `"reg":N,` is removed.
pub(super) fn without_registration(line: &str) -> String {
    let mut parts = line.split("\"reg\":");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(','));
    }
    out
}

type Counters = BTreeMap<String, Value>;

/// A comparison in progress: the two runs' stats so far, and the orders that have shown.
#[derive(Clone, Default, Debug)]
pub struct Comparison {
    theirs: Counters,
    ours: Counters,
    restore_order_showed: bool,
    compares_registration: bool,
    /// The number of operations in which another order was tolerated.
    pub tolerated: u64,
}

/// Stats whose peaks depend on the order in which a pool's segments are restored.
const RESTORE_PEAKS: [&str; 8] = [
    "allocation.",
    "active.",
    "allocated_bytes.",
    "active_bytes.",
    "requested_bytes.",
    "oversize_allocations",
    "inactive_split.",
    "inactive_split_bytes.",
];

/// PyTorch's message for a missing segment of a checkpoint, up to the address.
const MISSING: &str = " could not find 0x";

impl Comparison {
    /// A comparison under the rules of a PyTorch release.
    #[must_use]
    pub fn new(profile: &Profile) -> Comparison {
        Comparison { compares_registration: profile.tie_break != TieBreak::Address, ..Comparison::default() }
    }

    /// Compares the next line of each run.
    ///
    /// # Errors
    /// What differs, or that a line is not a JSON object.
    pub fn line(&mut self, theirs: &str, ours: &str) -> Result<(), Difference> {
        let (mut theirs, mut ours) = (object(theirs)?, object(ours)?);
        update(&mut self.theirs, &mut theirs);
        update(&mut self.ours, &mut ours);
        match theirs.get("op").and_then(Value::as_str).unwrap_or_default() {
            "reset_peak" => self.restore_order_showed = false,
            operation if operation.starts_with("ckpt_load") => self.restore(&theirs, &mut ours),
            _ => {}
        }
        if theirs.get("ev") != ours.get("ev") {
            let [theirs, ours] = [theirs, ours].map(|mut line| line.remove("ev").unwrap_or_default());
            return Err(differ("ev", &theirs, &ours));
        }
        if let (Some(_), Some(_)) = (theirs.get("snapshot"), ours.get("snapshot")) {
            let pair = (theirs.remove("snapshot").unwrap_or_default(), ours.remove("snapshot").unwrap_or_default());
            self.snapshot(pair.0, pair.1)?;
        }
        if let (Some(Value::Object(their)), Some(Value::Object(our))) = (theirs.get("stats"), ours.get("stats")) {
            let collect = |map: &Map<String, Value>| map.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
            self.counters(&collect(their), &collect(our))?;
            theirs.remove("stats");
            ours.remove("stats");
        }
        if theirs != ours {
            return Err(differ("fields", &Value::Object(theirs), &Value::Object(ours)));
        }
        self.counters(&self.theirs, &self.ours)
    }

    /// Puts the segments of a restore into the real allocator's order, if only the order differs.
    fn restore(&mut self, theirs: &Map<String, Value>, ours: &mut Map<String, Value>) {
        let says_missing =
            |line: &Map<String, Value>| line.get("msg").and_then(Value::as_str).is_some_and(|m| m.contains(MISSING));
        if says_missing(theirs) && says_missing(ours) {
            ours["msg"] = theirs["msg"].clone();
        }
        let fields = ["ev", "freed", "allocd"];
        let differ: Vec<&str> = fields.into_iter().filter(|&field| theirs.get(field) != ours.get(field)).collect();
        let only_order = |field: &&str| match (theirs.get(*field), ours.get(*field)) {
            (Some(theirs), Some(ours)) => by_segment(theirs) == by_segment(ours),
            _ => false,
        };
        if differ.is_empty() || !differ.iter().all(only_order) {
            return;
        }
        for field in differ {
            ours[field] = theirs[field].clone();
        }
        self.restore_order_showed = true;
        self.tolerated += 1;
    }

    fn snapshot(&self, mut theirs: Value, ours: Value) -> Result<(), Difference> {
        for segment in theirs["segments"].as_array_mut().into_iter().flatten().filter(|_| !self.compares_registration) {
            segment.as_object_mut().and_then(|segment| segment.remove("reg"));
        }
        if theirs == ours { Ok(()) } else { Err(differ("snapshot", &theirs, &ours)) }
    }

    fn counters(&self, theirs: &Counters, ours: &Counters) -> Result<(), Difference> {
        if theirs == ours {
            return Ok(());
        }
        let zero = Value::from(vec![0; 4]);
        for key in theirs.keys().chain(ours.keys()) {
            let (their, our) = (theirs.get(key).unwrap_or(&zero), ours.get(key).unwrap_or(&zero));
            let has_peak = RESTORE_PEAKS.iter().any(|name| key.starts_with(name));
            let peaks_differ = self.restore_order_showed && has_peak && [0, 2, 3].iter().all(|&value| their[value] == our[value]);
            if their != our && !peaks_differ {
                return Err(differ(key, their, our));
            }
        }
        Ok(())
    }
}

/// Groups trace entries, pointers or names of restored blocks by their segment.
fn by_segment(items: &Value) -> BTreeMap<String, Vec<&Value>> {
    let mut segments: BTreeMap<String, Vec<&Value>> = BTreeMap::new();
    for item in items.as_array().into_iter().flatten() {
        let pointer = item.as_str().or_else(|| item[1].as_str()).unwrap_or_default();
        let segment = pointer.rsplit('_').next().and_then(|pointer| pointer.split('+').next()).unwrap_or_default();
        segments.entry(segment.to_owned()).or_default().push(item);
    }
    segments
}

fn object(line: &str) -> Result<Map<String, Value>, Difference> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Difference::new(format!("not a JSON object: {line}"))),
    }
}

fn differ(what: &str, theirs: &Value, ours: &Value) -> Difference {
    Difference::new(format!("{what}\n    real    {theirs:.600}\n    parkade {ours:.600}"))
}

/// Moves a line's changed stats into the stats so far.
fn update(counters: &mut Counters, line: &mut Map<String, Value>) {
    if let Some(Value::Object(changes)) = line.remove("st") {
        counters.extend(changes);
    }
}

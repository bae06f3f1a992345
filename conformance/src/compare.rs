//! Comparing two runs of one script, line by line: the real allocator's answers and the core's.
//!
//! The rules are those of `conformance/differential/compare.py`. Everything must be equal, but for what follows from the real
//! allocator's hash order of streams, and only from the operation on in which it shows. Where several streams' events complete in one
//! operation,
//! - the order of `free_completed` entries within that operation may differ;
//! - from then on the counters peak, allocated and freed of inactive_split and inactive_split_bytes may (the order of merging decides
//!   the steps between; the current value must still be equal);
//! - from then on the stale `requested` of inactive blocks in snapshots may.
//!
//! The registration counter of segments (`reg`) is the real one's own and is not compared.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::{Broken, Law};

/// A line without the registration counters of its segments: every `"reg":N,`.
#[must_use]
pub fn without_registration(line: &str) -> String {
    let mut parts = line.split("\"reg\":");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        out.push_str(part.trim_start_matches(|c: char| c.is_ascii_digit()).trim_start_matches(','));
    }
    out
}

type Counters = BTreeMap<String, Value>;

/// Follows two runs and knows what may differ by now.
#[derive(Clone, Default, Debug)]
pub struct Comparison {
    theirs: Counters,
    ours: Counters,
    order_showed: bool,
    /// Operations in which another order was tolerated.
    pub tolerated: u64,
}

impl Comparison {
    /// Compares the next line of each.
    ///
    /// # Errors
    /// What differs.
    pub fn line(&mut self, theirs: &str, ours: &str) -> Result<(), Broken> {
        let (mut theirs, mut ours) = (object(theirs)?, object(ours)?);
        update(&mut self.theirs, &mut theirs);
        update(&mut self.ours, &mut ours);
        self.events(&theirs.remove("ev").unwrap_or_default(), &ours.remove("ev").unwrap_or_default())?;
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

    fn events(&mut self, theirs: &Value, ours: &Value) -> Result<(), Broken> {
        if theirs == ours {
            return Ok(());
        }
        let (Some(their), Some(our)) = (theirs.as_array(), ours.as_array()) else { return Err(differ("ev", theirs, ours)) };
        let completed = |event: &&Value| event[0] == "free_completed";
        let sorted = |events: &[Value]| {
            let mut texts: Vec<String> = events.iter().filter(completed).map(Value::to_string).collect();
            texts.sort();
            texts
        };
        let others = |events: &[Value]| events.iter().filter(|event| !completed(event)).cloned().collect::<Vec<_>>();
        let runs = |events: &[Value]| events.iter().map(|event| completed(&event)).collect::<Vec<_>>();
        if sorted(their) != sorted(our) || others(their) != others(our) || runs(their) != runs(our) {
            return Err(differ("ev", theirs, ours));
        }
        self.order_showed = true;
        self.tolerated += 1;
        Ok(())
    }

    fn snapshot(&self, mut theirs: Value, mut ours: Value) -> Result<(), Broken> {
        for segment in theirs["segments"].as_array_mut().into_iter().flatten() {
            segment.as_object_mut().and_then(|segment| segment.remove("reg"));
        }
        if self.order_showed {
            forget_stale_requests(&mut theirs);
            forget_stale_requests(&mut ours);
        }
        if theirs == ours { Ok(()) } else { Err(differ("snapshot", &theirs, &ours)) }
    }

    fn counters(&self, theirs: &Counters, ours: &Counters) -> Result<(), Broken> {
        if theirs == ours {
            return Ok(());
        }
        let zero = Value::from(vec![0; 4]);
        for key in theirs.keys().chain(ours.keys()) {
            let (their, our) = (theirs.get(key).unwrap_or(&zero), ours.get(key).unwrap_or(&zero));
            let counts_merges = key.starts_with("inactive_split.") || key.starts_with("inactive_split_bytes.");
            let may_differ = self.order_showed && counts_merges && their[0] == our[0];
            if their != our && !may_differ {
                return Err(differ(key, their, our));
            }
        }
        Ok(())
    }
}

fn object(line: &str) -> Result<Map<String, Value>, Broken> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        _ => Err(Broken::new(Law::RealAnswers, format!("not a JSON object: {line}"))),
    }
}

fn differ(what: &str, theirs: &Value, ours: &Value) -> Broken {
    Broken::new(Law::RealAnswers, format!("{what}\n    real    {theirs:.600}\n    parkade {ours:.600}"))
}

/// Takes a line's changed statistics into the statistics so far.
fn update(counters: &mut Counters, line: &mut Map<String, Value>) {
    if let Some(Value::Object(changes)) = line.remove("st") {
        counters.extend(changes);
    }
}

fn forget_stale_requests(snapshot: &mut Value) {
    for segment in snapshot["segments"].as_array_mut().into_iter().flatten() {
        for block in segment["blocks"].as_array_mut().into_iter().flatten() {
            if block[3] == "inactive" {
                block[2] = Value::from(0);
            }
        }
    }
}

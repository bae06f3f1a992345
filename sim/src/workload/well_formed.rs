//! Whether a workload obeys the rules that [`Event`] states.

use super::{Event, Workload};

/// The first event that breaks a rule, and which.
pub(crate) fn check(workload: &Workload) -> Result<(), String> {
    let mut live: Vec<bool> = Vec::new();
    let (mut pool, mut pools) = (None, std::collections::BTreeMap::new());
    let is_live = |live: &[bool], buffer: u32| live.get(buffer as usize).copied().unwrap_or(false);
    for (at, event) in workload.events.iter().enumerate() {
        let is_good = match *event {
            Event::Allocate { buffer, bytes, .. } => {
                live.push(true);
                bytes > 0 && buffer as usize + 1 == live.len()
            }
            Event::Free { buffer } if is_live(&live, buffer) => {
                live[buffer as usize] = false;
                true
            }
            Event::Free { .. } => false,
            Event::Use { buffer, .. } => is_live(&live, buffer),
            Event::BeginPool { pool: number } => {
                let is_there = pools.entry(number).or_insert(true);
                pool.replace(number).is_none() && number > 0 && *is_there
            }
            Event::EndPool { pool: number } => pool.take() == Some(number),
            Event::DropPool { pool: number } => pool != Some(number) && pools.insert(number, false) == Some(true),
            Event::Launch { us, .. } => us > 0,
            Event::Synchronize { .. } | Event::EmptyCache => true,
        };
        if !is_good {
            return Err(format!("event {at}: {event:?}"));
        }
    }
    let name_is_good = |c: char| c.is_ascii_alphanumeric() || "-_.=".contains(c);
    let is_named = !workload.name.is_empty() && workload.name.chars().all(name_is_good);
    if is_named && pool.is_none() { Ok(()) } else { Err(format!("the name {:?}, or a pool that is not left", workload.name)) }
}

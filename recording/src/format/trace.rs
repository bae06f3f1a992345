//! Reading a device's trace (spec 7.4), which is most of every recording.

use std::collections::BTreeMap;

use super::budget::Budget;
use super::error::{FormatError, FormatProblem, Place};
use super::fields::Fields;
use super::names;
use super::stacks::StackReader;
use super::values::{self, optional};
use crate::dated_keys::{FileFields, Part};
use crate::pickle::{Loaded, Value};
use crate::recording::{Action, Entry, PoolId, PoolTable};

/// Reads the traces of all devices.
pub(crate) struct TraceReader {
    fields: Fields<8>,
    pub(crate) pools: PoolTable,
    pub(crate) unknown_actions: BTreeMap<String, u64>,
    /// Which of the actions that not every release has occur.
    actions: FileFields,
    /// The last text objects seen as `action`, and the actions they name.
    recent: [(Value, Option<Action>); RECENT],
    next_recent: usize,
    /// The last pool object seen, and its index.
    last_pool: (Value, PoolId),
}

/// How many action texts are remembered. There are nine actions, and most files share one text object for each.
const RECENT: usize = 12;

/// An action since 2.14: a note of the program on an allocation, which decides nothing.
const ANNOTATE: &[u8] = b"annotate";

impl TraceReader {
    pub(crate) fn new() -> Self {
        const NAMES: [&str; 8] = ["action", "addr", "device_free", "size", "stream", "time_us", "frames", "pool_id"];
        const IGNORED: &[&str] = &["compile_context", "user_metadata", "internal_metadata", "forward_frames", "cpp_frames"];
        TraceReader {
            fields: Fields::of(Part::Entry, NAMES, IGNORED),
            actions: FileFields::NONE,
            pools: PoolTable::default(),
            unknown_actions: BTreeMap::new(),
            recent: [(Value::ABSENT, None); RECENT],
            next_recent: 0,
            last_pool: (Value::ABSENT, PoolId::NONE),
        }
    }

    /// Reads one device's entries, without those of unknown actions.
    ///
    /// # Errors
    /// [`FormatError`] for the first entry that makes no sense.
    pub(crate) fn read(
        &mut self,
        loaded: &Loaded,
        device: usize,
        list: &[Value],
        stacks: &mut StackReader,
        budget: &mut Budget,
    ) -> Result<Vec<Entry>, FormatError> {
        budget.spend(list.len(), Budget::ENTRY).map_err(|problem| FormatError { place: Place::Trace { device }, problem })?;
        let mut trace = Vec::with_capacity(list.len());
        for (number, &dict) in list.iter().enumerate() {
            match self.entry(loaded, dict, stacks) {
                Ok(Some(entry)) => trace.push(entry),
                Ok(None) => {}
                Err(problem) => {
                    return Err(FormatError { place: Place::Entry { device, entry: number }, problem });
                }
            }
        }
        Ok(trace)
    }

    fn entry(&mut self, loaded: &Loaded, dict: Value, stacks: &mut StackReader) -> Result<Option<Entry>, FormatProblem> {
        let [action, addr, device_free, size, stream, time_us, frames, pool_id] =
            self.fields.look_up(loaded, dict, "device_traces")?;
        let Some(action) = self.action(loaded, action)? else {
            return Ok(None);
        };
        let size = match action {
            Action::Oom | Action::Snapshot => values::unsigned(loaded, size, "size")?,
            _ => values::positive(loaded, size, "size")?,
        };
        let address = match action {
            Action::Oom => optional(device_free, |free| values::unsigned(loaded, free, "device_free"))?.unwrap_or(0),
            Action::Snapshot => optional(addr, |addr| values::unsigned(loaded, addr, "addr"))?.unwrap_or(0),
            _ => {
                let address = values::unsigned(loaded, addr, "addr")?;
                values::check_end(address, size)?;
                address
            }
        };
        let mut entry = Entry::new(action, address, size, values::bits(loaded, stream, "stream")?);
        entry.set_time(optional(time_us, |time| values::unsigned(loaded, time, "time_us"))?);
        entry.stack = stacks.read(loaded, frames)?;
        entry.pool = self.pool(loaded, pool_id)?;
        Ok(Some(entry))
    }

    #[inline]
    fn action(&mut self, loaded: &Loaded, value: Value) -> Result<Option<Action>, FormatProblem> {
        match self.recent.iter().find(|(known, _)| *known == value) {
            Some((_, Some(action))) => Ok(Some(*action)),
            _ => self.new_action(loaded, value),
        }
    }

    fn new_action(&mut self, loaded: &Loaded, value: Value) -> Result<Option<Action>, FormatProblem> {
        let text = values::text(loaded, value, "action")?;
        let action = Action::from_name(text);
        self.actions.note(Part::Action, text);
        match action {
            Some(_) => {
                self.recent[self.next_recent] = (value, action);
                self.next_recent = (self.next_recent + 1) % RECENT;
            }
            None if text == ANNOTATE => {}
            None => names::count(&mut self.unknown_actions, names::shown(text), 1),
        }
        Ok(action)
    }

    #[inline]
    fn pool(&mut self, loaded: &Loaded, value: Value) -> Result<PoolId, FormatProblem> {
        if value == self.last_pool.0 {
            return Ok(self.last_pool.1);
        }
        let pool = optional(value, |value| values::pool(loaded, value, "pool_id"))?;
        let place = pool.map_or(PoolId::NONE, |id| self.pools.intern(id));
        self.last_pool = (value, place);
        Ok(place)
    }

    /// Which dated keys the entries have.
    pub(crate) fn dated(&self, loaded: &Loaded) -> FileFields {
        let mut dated = self.fields.dated(loaded);
        dated.add(self.actions);
        dated
    }

    /// The pools, the unknown keys and the unknown actions that were seen.
    pub(crate) fn finish(self) -> (PoolTable, BTreeMap<String, u64>, BTreeMap<String, u64>) {
        (self.pools, self.fields.into_unknown(), self.unknown_actions)
    }
}

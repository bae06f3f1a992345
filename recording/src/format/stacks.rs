//! Reading stacks (spec 7.3): lists of frame dicts. Most are shared; each list and each frame is read once.

use std::collections::HashMap;
use std::sync::Arc;

use super::error::FormatProblem;
use super::fields::Fields;
use super::values::{self, optional};
use crate::pickle::{Loaded, Value};
use crate::recording::{Frame, StackId, StackTable};

/// Reads stacks into a table.
pub(crate) struct StackReader {
    fields: Fields<3>,
    /// Stacks by the list object, frames by the dict object, texts by the text object.
    lists: HashMap<Value, StackId>,
    frames: HashMap<Value, u32>,
    texts: HashMap<Value, Arc<str>>,
    table: StackTable,
}

impl StackReader {
    pub(crate) fn new() -> Self {
        const IGNORED: &[&str] = &["fx_node_op", "fx_node_name", "fx_original_trace", "fx_node_info"];
        StackReader {
            fields: Fields::new(["filename", "line", "name"], IGNORED),
            lists: HashMap::new(),
            frames: HashMap::new(),
            texts: HashMap::new(),
            table: StackTable::default(),
        }
    }

    /// The stacks that were read.
    pub(crate) fn into_table(self) -> StackTable {
        self.table
    }

    /// The stack of a `frames` value; [`StackId::NONE`] if that is absent, None or empty.
    #[inline]
    pub(crate) fn read(&mut self, loaded: &Loaded, frames: Value) -> Result<StackId, FormatProblem> {
        if frames == Value::ABSENT {
            return Ok(StackId::NONE);
        }
        self.read_list(loaded, frames)
    }

    fn read_list(&mut self, loaded: &Loaded, frames: Value) -> Result<StackId, FormatProblem> {
        let Some(items) = optional(frames, |list| values::items(loaded, list, "frames"))? else {
            return Ok(StackId::NONE);
        };
        if items.is_empty() {
            return Ok(StackId::NONE);
        }
        if let Some(&stack) = self.lists.get(&frames) {
            return Ok(stack);
        }
        let calls = items.iter().map(|&frame| self.read_frame(loaded, frame)).collect::<Result<Vec<u32>, _>>()?;
        let stack = self.table.intern_stack(&calls);
        self.lists.insert(frames, stack);
        Ok(stack)
    }

    fn read_frame(&mut self, loaded: &Loaded, frame: Value) -> Result<u32, FormatProblem> {
        if let Some(&number) = self.frames.get(&frame) {
            return Ok(number);
        }
        let [filename, line, name] = self.fields.look_up(loaded, frame, "frames")?;
        let line = optional(line, |line| values::bits(loaded, line, "line"))?.unwrap_or(0);
        let read = Frame {
            filename: self.text(loaded, filename, "filename")?,
            // Unknown lines are 0, -1 or 2^64 - 1, as in code that torch.compile made; no source file has 2^32 lines.
            line: u32::try_from(line).unwrap_or(0),
            name: self.text(loaded, name, "name")?,
        };
        let number = self.table.intern_frame(read);
        self.frames.insert(frame, number);
        Ok(number)
    }

    /// A text, shared with equal ones; empty if absent. File names need not be UTF-8: invalid bytes are replaced.
    pub(crate) fn text(&mut self, loaded: &Loaded, value: Value, key: &'static str) -> Result<Arc<str>, FormatProblem> {
        if let Some(text) = self.texts.get(&value) {
            return Ok(Arc::clone(text));
        }
        let bytes = optional(value, |value| values::text(loaded, value, key))?.unwrap_or(b"");
        let text: Arc<str> = String::from_utf8_lossy(bytes).into();
        self.texts.insert(value, Arc::clone(&text));
        Ok(text)
    }
}

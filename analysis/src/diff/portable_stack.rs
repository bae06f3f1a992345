//! Stacks of two recordings, told to be the same place of the program or not.
//!
//! Two recordings number their stacks on their own, may come from different folders or machines, and a change of the program moves its
//! lines. A stack's *portable* form is therefore its functions with the ends of their files' paths, without line numbers; its *exact*
//! form has paths and lines. Both are kept as hashes.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};

use parkade_recording::{Action, DeviceRecording, StackId, StackTable};
use rustc_hash::{FxHashMap, FxHashSet};

/// A stack's two forms.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Forms {
    pub(super) exact: u64,
    pub(super) portable: u64,
}

/// The stacks that allocate in a device's recording.
pub(super) struct Stacks {
    forms: BTreeMap<StackId, Forms>,
    /// The exact forms of each portable one.
    exact: FxHashMap<u64, FxHashSet<u64>>,
}

impl Stacks {
    /// The stacks of a recording.
    pub(super) fn of(table: &StackTable, device: &DeviceRecording) -> Stacks {
        let of_trace = device.trace.iter().filter(|entry| entry.action == Action::Alloc).map(|entry| entry.stack);
        let of_blocks = device.segments.iter().flat_map(|segment| &segment.blocks).map(|block| block.stack);
        let mut stacks = Stacks { forms: BTreeMap::new(), exact: FxHashMap::default() };
        for stack in of_trace.chain(of_blocks).filter(|&stack| stack != StackId::NONE) {
            if stacks.forms.contains_key(&stack) {
                continue;
            }
            let forms = forms_of(table, stack);
            stacks.forms.insert(stack, forms);
            stacks.exact.entry(forms.portable).or_default().insert(forms.exact);
        }
        stacks
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.forms.is_empty()
    }

    /// The forms of a stack.
    pub(super) fn forms(&self, stack: StackId) -> Option<Forms> {
        self.forms.get(&stack).copied()
    }

    /// Whether the lines of this portable stack are the same ones in both recordings, so that each has its own counterpart. If a line
    /// moved, an equal number may be another place.
    pub(super) fn has_same_lines(&self, other: &Stacks, portable: u64) -> bool {
        self.exact.get(&portable) == other.exact.get(&portable)
    }

    /// The share of portable stacks, of those of the recording that has fewer, that the other has too; `None` if one has none.
    pub(super) fn in_common(&self, other: &Stacks) -> Option<f64> {
        let fewer = self.exact.len().min(other.exact.len());
        let both = self.exact.keys().filter(|portable| other.exact.contains_key(portable)).count();
        (fewer > 0).then(|| both as f64 / fewer as f64)
    }
}

fn forms_of(table: &StackTable, stack: StackId) -> Forms {
    let (mut exact, mut portable) = (DefaultHasher::new(), DefaultHasher::new());
    for frame in table.frames(stack) {
        (&frame.filename, frame.line, &frame.name).hash(&mut exact);
        (end_of_path(&frame.filename), &frame.name).hash(&mut portable);
    }
    Forms { exact: exact.finish(), portable: portable.finish() }
}

/// The part of a file's path that does not depend on where it was installed: inside the folder of libraries, else its own name.
fn end_of_path(file: &str) -> &str {
    let libraries = ["site-packages/", "dist-packages/"];
    let inside = libraries.iter().find_map(|folder| file.rsplit_once(folder)).map(|(_, inside)| inside);
    inside.unwrap_or_else(|| file.rsplit(['/', '\\']).next().unwrap_or(file))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_do_not_count() {
        assert_eq!(end_of_path("/a/venv/lib/site-packages/torch/nn/linear.py"), "torch/nn/linear.py");
        assert_eq!(end_of_path("/home/one/train.py"), "train.py");
        assert_eq!(end_of_path("C:\\two\\train.py"), "train.py");
        assert_eq!(end_of_path("train.py"), "train.py");
    }
}

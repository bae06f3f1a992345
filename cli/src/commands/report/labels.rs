//! The names of stacks: the user's own call first, then what it called.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use parkade_analysis::shown_frame;
use parkade_recording::{Frame, StackId, StackTable};

/// The name of a stack without calls.
const EMPTY: &str = "an empty stack";
/// How many calls are looked at to tell apart stacks whose names are otherwise the same.
const MOST_TELLING: usize = 12;
/// Of more stacks with the same name than this, no shortest difference is searched.
const MOST_ALIKE: usize = 200;

/// Names of stacks, each different from the others where two more calls suffice for that.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Labels {
    names: BTreeMap<StackId, Label>,
}

/// The name of a stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Label {
    /// The user's own call; without one, the innermost.
    pub(super) own: String,
    /// What it called: the innermost call, and those that tell the stack apart from others. Empty if there is no more to say.
    pub(super) called: String,
}

impl Labels {
    /// Names these stacks.
    pub(super) fn of(table: &StackTable, stacks: impl IntoIterator<Item = StackId>) -> Labels {
        let stacks: BTreeSet<StackId> = stacks.into_iter().filter(|&stack| stack != StackId::NONE).collect();
        let mut by_name: BTreeMap<Label, Vec<StackId>> = BTreeMap::new();
        for stack in stacks {
            by_name.entry(name(table, stack)).or_default().push(stack);
        }
        let mut names = BTreeMap::new();
        for (name, stacks) in by_name {
            names.extend(told_apart(table, &name, stacks));
        }
        Labels { names }
    }

    /// The name of a stack, if it is one of those that were named.
    pub(super) fn get(&self, stack: StackId) -> Option<&Label> {
        self.names.get(&stack)
    }

    /// The name of a stack on one line.
    pub(super) fn line(&self, stack: StackId) -> String {
        match self.get(stack) {
            _ if stack == StackId::NONE => "no stack in the file".to_owned(),
            None => EMPTY.to_owned(),
            Some(Label { own, called }) if called.is_empty() => own.clone(),
            Some(Label { own, called }) => format!("{own}, {called}"),
        }
    }
}

/// The user's own call, and the innermost one, which tells apart what a line of the program calls.
fn name(table: &StackTable, stack: StackId) -> Label {
    let Some(own) = shown_frame(table, stack) else { return Label { own: EMPTY.to_owned(), called: String::new() } };
    let inner = table.frames(stack).next().filter(|&inner| inner != own);
    Label { own: call(own), called: inner.map_or_else(String::new, |inner| format!("in {}", call_in_short(inner))) }
}

/// Stacks with the same name, each with as few more calls as tell it apart from the others.
fn told_apart(table: &StackTable, name: &Label, stacks: Vec<StackId>) -> Vec<(StackId, Label)> {
    // Of a stack that is alone all calls are shared.
    let shared = shared_frames(table, &stacks);
    let frames: Vec<HashSet<&Frame>> = stacks.iter().map(|&stack| table.frames(stack).collect()).collect();
    let is_only = |calls: &[&Frame]| frames.iter().filter(|frames| calls.iter().all(|call| frames.contains(call))).count() == 1;
    let with = |&stack: &StackId| {
        let telling: Vec<&Frame> = table.frames(stack).filter(|frame| !shared.contains(frame)).take(MOST_TELLING).collect();
        let one = || telling.iter().find(|&&call| is_only(&[call])).map(|&call| vec![call]);
        let pairs = || {
            telling.iter().enumerate().flat_map(|(place, &inner)| telling[place + 1..].iter().map(move |&outer| [inner, outer]))
        };
        let two = || pairs().find(|pair| is_only(pair)).map(Vec::from);
        let found = if stacks.len() > MOST_ALIKE { None } else { one().or_else(two) };
        let calls = found.unwrap_or_else(|| telling.iter().copied().take(2).collect());
        let calls: Vec<String> = calls.into_iter().map(call_in_short).collect();
        let via = (!calls.is_empty()).then(|| format!("via {}", calls.join(" from ")));
        let called =
            [Some(name.called.clone()).filter(|called| !called.is_empty()), via].into_iter().flatten().collect::<Vec<_>>();
        Label { own: name.own.clone(), called: called.join(", ") }
    };
    let names: Vec<Label> = stacks.iter().map(with).collect();
    stacks.into_iter().zip(names).collect()
}

/// The calls that all of these stacks have.
fn shared_frames<'t>(table: &'t StackTable, stacks: &[StackId]) -> HashSet<&'t Frame> {
    let mut stacks = stacks.iter();
    let mut shared: HashSet<&Frame> = stacks.next().map(|&stack| table.frames(stack).collect()).unwrap_or_default();
    for &stack in stacks {
        let other: HashSet<&Frame> = table.frames(stack).collect();
        shared.retain(|frame| other.contains(frame));
    }
    shared
}

/// A call on one line.
pub(super) fn call(frame: &Frame) -> String {
    format!("{}  {}:{}", frame.name, frame.filename, frame.line)
}

/// A call with its file's own name.
fn call_in_short(frame: &Frame) -> String {
    let file = frame.filename.rsplit('/').next().unwrap_or_default();
    format!("{} {file}:{}", frame.name, frame.line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(table: &mut StackTable, calls: &[(&str, &str, u32)]) -> StackId {
        let frames: Vec<_> = calls
            .iter()
            .map(|&(name, file, line)| table.intern_frame(Frame { name: name.into(), filename: file.into(), line }))
            .collect();
        table.intern_stack(&frames)
    }

    #[test]
    fn the_users_call_comes_first_and_equal_names_are_told_apart() {
        let mut table = StackTable::default();
        let (conv, wrapper) = (("conv", "site-packages/torch/nn/conv.py", 548), ("call", "site-packages/torch/nn/module.py", 9));
        let layer = |line| ("layer", "site-packages/torchvision/resnet.py", line);
        let own = ("train", "/home/me/train.py", 24);
        let one = stack(&mut table, &[conv, wrapper, layer(155), wrapper, own]);
        let other = stack(&mut table, &[conv, wrapper, layer(158), wrapper, own]);
        let alone = stack(&mut table, &[("zeros", "/home/me/data.py", 3), own]);
        let labels = Labels::of(&table, [one, other, alone, StackId::NONE]);
        assert_eq!(labels.line(one), "train  /home/me/train.py:24, in conv conv.py:548, via layer resnet.py:155");
        assert_eq!(labels.line(other), "train  /home/me/train.py:24, in conv conv.py:548, via layer resnet.py:158");
        assert_eq!(labels.line(alone), "zeros  /home/me/data.py:3");
        assert_eq!(labels.line(StackId::NONE), "no stack in the file");
    }
}

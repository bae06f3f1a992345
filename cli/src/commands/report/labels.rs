//! Names stacks: the user's own call first, then the operator that it led to, and what it called.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashSet};

use parkade_analysis::{FrameKind, StackName, StackNames};
use parkade_recording::{Frame, StackId, StackTable};

/// The name of a stack without calls.
const EMPTY: &str = "an empty stack";
/// The name of a stack whose calls only pass calls on.
const NAMELESS: &str = "neither an operator nor a line of Python";
/// The number of calls that are compared to distinguish stacks with equal names.
const MOST_TELLING: usize = 12;
/// If more stacks than this have the same name, no shortest difference is searched for.
const MOST_ALIKE: usize = 200;

/// Names of stacks, made distinct if two additional calls suffice.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Labels {
    names: BTreeMap<StackId, Label>,
}

/// The name of a stack.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Label {
    /// The user's own call or, without one, that of a library or the operator.
    pub(super) own: String,
    /// What it called: the operator or the innermost call, and the calls that distinguish the stack from others. Empty if nothing
    /// can be added.
    pub(super) called: String,
}

impl Labels {
    /// Names these stacks.
    pub(super) fn of(named: Named<'_>, stacks: impl IntoIterator<Item = StackId>) -> Labels {
        let stacks: BTreeSet<StackId> = stacks.into_iter().filter(|&stack| stack != StackId::NONE).collect();
        let mut by_name: BTreeMap<Label, Vec<StackId>> = BTreeMap::new();
        for stack in stacks {
            by_name.entry(name(named, stack)).or_default().push(stack);
        }
        let mut names = BTreeMap::new();
        for (name, stacks) in by_name {
            names.extend(told_apart(named, &name, stacks));
        }
        Labels { names }
    }

    /// The name of a stack, if it was named.
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

/// The stacks of a recording, with their names.
pub(super) type Named<'t> = (&'t StackNames, &'t StackTable);

/// The user's own call, and the operator or the innermost call, which distinguishes the requests of one line.
fn name((names, table): Named<'_>, stack: StackId) -> Label {
    let StackName { operator, line, within, calls_backward } = names.name(table, stack);
    let place = |frame: &Frame| call(frame);
    if !names.has_native(table, stack) {
        let Some(own) = line else { return Label { own: EMPTY.to_owned(), called: String::new() } };
        let passes_on = |number: u32| matches!(names.kind(number), FrameKind::Unknown | FrameKind::Wrapper);
        let inner = table.calls(stack).iter().find(|&&number| !passes_on(number)).and_then(|&number| table.frame(number));
        let inner = inner.filter(|&inner| inner != own);
        return Label { own: place(own), called: inner.map_or_else(String::new, |inner| format!("in {}", call_in_short(inner))) };
    }
    let within = within.map(|within| format!("in {}", call_in_short(within)));
    let backward = calls_backward.map(|caller| format!("backward() from {}", call_in_short(caller)));
    let mut words: Vec<String> = line.map(place).into_iter().chain(operator).chain(within).chain(backward).collect();
    if words.is_empty() {
        return Label { own: NAMELESS.to_owned(), called: String::new() };
    }
    let own = words.remove(0);
    Label { own, called: words.join(", ") }
}

/// Stacks with the same name, each with the fewest additional calls that distinguish it from the others.
fn told_apart((names, table): Named<'_>, name: &Label, stacks: Vec<StackId>) -> Vec<(StackId, Label)> {
    // For a single stack, all calls are shared.
    let calls: Vec<Vec<u32>> = stacks.iter().map(|&stack| names.telling(table, stack)).collect();
    let frames: Vec<HashSet<u32>> = calls.iter().map(|calls| calls.iter().copied().collect()).collect();
    let shared = shared_frames(&frames);
    let is_only = |calls: &[u32]| frames.iter().filter(|frames| calls.iter().all(|call| frames.contains(call))).count() == 1;
    let with = |calls: &Vec<u32>| {
        let telling: Vec<u32> = calls.iter().copied().filter(|frame| !shared.contains(frame)).take(MOST_TELLING).collect();
        let one = || telling.iter().find(|&&call| is_only(&[call])).map(|&call| vec![call]);
        let pairs = || {
            telling.iter().enumerate().flat_map(|(place, &inner)| telling[place + 1..].iter().map(move |&outer| [inner, outer]))
        };
        let two = || pairs().find(|pair| is_only(pair)).map(Vec::from);
        let found = if stacks.len() > MOST_ALIKE { None } else { one().or_else(two) };
        let calls = found.unwrap_or_else(|| telling.iter().copied().take(2).collect());
        let in_short = |number| names.short(number).map(Cow::into_owned).or_else(|| table.frame(number).map(call_in_short));
        let calls: Vec<String> = calls.into_iter().filter_map(in_short).collect();
        let via = (!calls.is_empty()).then(|| format!("via {}", calls.join(" from ")));
        let called =
            [Some(name.called.clone()).filter(|called| !called.is_empty()), via].into_iter().flatten().collect::<Vec<_>>();
        Label { own: name.own.clone(), called: called.join(", ") }
    };
    let labels: Vec<Label> = calls.iter().map(with).collect();
    stacks.into_iter().zip(labels).collect()
}

/// The calls that all of these stacks have.
fn shared_frames(stacks: &[HashSet<u32>]) -> HashSet<u32> {
    let Some((first, others)) = stacks.split_first() else { return HashSet::new() };
    first.iter().copied().filter(|frame| others.iter().all(|other| other.contains(frame))).collect()
}

/// A call on one line.
fn call(frame: &Frame) -> String {
    format!("{}  {}:{}", frame.name, frame.filename, frame.line)
}

/// A call on one line, by its number; an operator by its name.
pub(super) fn in_full((names, table): Named<'_>, number: u32) -> Option<String> {
    names.short(number).map(Cow::into_owned).or_else(|| table.frame(number).map(call))
}

/// A call with its file name only.
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
        let names = StackNames::of(&table);
        let labels = Labels::of((&names, &table), [one, other, alone, StackId::NONE]);
        assert_eq!(labels.line(one), "train  /home/me/train.py:24, in conv conv.py:548, via layer resnet.py:155");
        assert_eq!(labels.line(other), "train  /home/me/train.py:24, in conv conv.py:548, via layer resnet.py:158");
        assert_eq!(labels.line(alone), "zeros  /home/me/data.py:3");
        assert_eq!(labels.line(StackId::NONE), "no stack in the file");
    }

    #[test]
    fn the_operator_follows_the_users_call() {
        let mut table = StackTable::default();
        let gather = ("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0);
        let mm = ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0);
        let apply = ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor>&&)", "??", 0);
        let layer = |line| ("layer", "site-packages/torchvision/resnet.py", line);
        let own = ("train", "/home/me/train.py", 24);
        let one = stack(&mut table, &[gather, mm, layer(155), layer(1), own]);
        let other = stack(&mut table, &[gather, mm, layer(155), layer(2), own]);
        let pass = stack(&mut table, &[gather, mm, apply]);
        let names = StackNames::of(&table);
        let labels = Labels::of((&names, &table), [one, other, pass]);
        assert_eq!(labels.line(one), "train  /home/me/train.py:24, aten::mm, in layer resnet.py:155, via layer resnet.py:1");
        assert_eq!(labels.line(other), "train  /home/me/train.py:24, aten::mm, in layer resnet.py:155, via layer resnet.py:2");
        assert_eq!(labels.line(pass), "aten::mm in autograd MmBackward0");
    }
}

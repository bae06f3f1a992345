//! Names stacks and sums the memory that each stack holds.
//!
//! Users know their own code, not the library that it called, so the most useful line in a stack is the innermost one outside
//! of libraries. If the stack has C++ calls, the operator that they belong to precedes that line. In a backward pass, which
//! runs on its own threads, a stack has only the operator and the autograd node; the line that called `backward()` is added
//! if a single line started all of the recording's passes. In anomaly mode, PyTorch 2.11 and later also record which line of
//! the forward pass created the node: that line is shown.
//!
//! Every command that names a stack uses [`StackNames`].

use std::borrow::Cow;
use std::cmp::Reverse;
use std::sync::OnceLock;

use parkade_recording::{Frame, StackId, StackTable};

use crate::frame_kind::FrameKind;

/// The names of a recording's stacks. Each distinct call is classified once.
#[derive(Clone, Default, Debug)]
pub struct StackNames {
    /// The kind of each frame, by its number.
    kinds: Vec<FrameKind>,
    /// The number of the only frame that calls `backward()`, computed on first use.
    calls_backward: OnceLock<Option<u32>>,
}

/// The name of a stack.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StackName<'t> {
    /// The operator, and the autograd node that it belongs to: `aten::mm in autograd MmBackward0`. Only for stacks with C++
    /// calls.
    pub operator: Option<String>,
    /// The line to show: the user's own; in a backward pass, the line of the forward pass that created the node, if the
    /// recording has it; if neither exists, the innermost line in a library other than PyTorch; and, failing that, the
    /// innermost line in PyTorch.
    pub line: Option<&'t Frame>,
    /// The library call that the line led to.
    pub within: Option<&'t Frame>,
    /// The line that called `backward()`, if the stack is from a backward pass and contains no line of the program.
    pub calls_backward: Option<&'t Frame>,
}

impl StackNames {
    /// Classifies all calls in these stacks.
    #[must_use]
    pub fn of(stacks: &StackTable) -> StackNames {
        StackNames { kinds: stacks.all_frames().iter().map(FrameKind::of).collect(), calls_backward: OnceLock::new() }
    }

    /// Returns a call's kind, by its number in the table.
    #[must_use]
    pub fn kind(&self, number: u32) -> &FrameKind {
        self.kinds.get(number as usize).unwrap_or(&FrameKind::Unknown)
    }

    /// Returns whether a stack has calls that are certainly C or C++.
    #[must_use]
    pub fn has_native(&self, stacks: &StackTable, stack: StackId) -> bool {
        stacks.calls(stack).iter().any(|&number| self.kind(number).is_native())
    }

    /// Returns the index of the user's own call in a stack: the innermost call in a Python file that does not belong to a
    /// library or to Python itself and was not generated. Code without a file (`python -c`, `exec`) counts if the program calls it, or if no
    /// call is in a file of that kind.
    #[must_use]
    pub fn own_place(&self, stacks: &StackTable, stack: StackId) -> Option<usize> {
        self.own_of(stacks, stacks.calls(stack))
    }

    fn own_of(&self, stacks: &StackTable, calls: &[u32]) -> Option<usize> {
        let starts = self.spawns(stacks, calls);
        let is_text = |number: u32| *self.kind(number) == FrameKind::Text && starts != Some(number);
        // The caller of the outermost code without a file: the program, a library, or nothing.
        let around = calls.iter().rposition(|&number| is_text(number)).and_then(|text| calls.get(text + 1..));
        let caller = around.and_then(|around| around.iter().map(|&number| self.kind(number)).find(|kind| kind.is_python()));
        let is_by_program = around.is_some() && caller.is_none_or(|kind| *kind == FrameKind::Program);
        // Python generates `__init__` and similar methods for dataclasses.
        let is_generated = |number| stacks.frame(number).is_some_and(|frame| frame.name.starts_with("__"));
        let is_own =
            |number: u32| *self.kind(number) == FrameKind::Program || (is_by_program && is_text(number) && !is_generated(number));
        let innermost = calls.iter().position(|&number| is_own(number));
        innermost.or_else(|| calls.iter().position(|&number| is_text(number)))
    }

    /// Returns the code without a file that starts a `multiprocessing` process, which is not part of any program.
    fn spawns(&self, stacks: &StackTable, calls: &[u32]) -> Option<u32> {
        let outermost = calls.iter().rposition(|&number| *self.kind(number) == FrameKind::Text)?;
        let called = calls[..outermost].iter().rev().find(|&&number| self.kind(number).is_python());
        let is_spawn = called.and_then(|&number| stacks.frame(number)).is_some_and(|frame| &*frame.name == "spawn_main");
        is_spawn.then(|| calls[outermost])
    }

    /// Returns the name of a stack.
    #[must_use]
    pub fn name<'t>(&self, stacks: &'t StackTable, stack: StackId) -> StackName<'t> {
        let calls = stacks.calls(stack);
        let has_native = self.has_native(stacks, stack);
        let own = self.own_of(stacks, calls);
        // A backward pass contains no line of the program, but the forward pass that created its node does.
        let made_by = if own.is_none() { self.made_by(stacks, stack) } else { None };
        let place = own.or_else(|| self.other_line(stacks, calls, has_native));
        let frame = |place: usize| calls.get(place).and_then(|&number| stacks.frame(number));
        let within = place.and_then(|place| self.within(stacks, &calls[..place], has_native));
        let is_backward = || calls.iter().any(|&number| matches!(self.kind(number), FrameKind::Engine | FrameKind::Node(_)));
        let calls_backward = (own.is_none() && has_native && is_backward()).then(|| self.calls_backward(stacks)).flatten();
        let operator = if has_native { self.operator(calls) } else { None };
        if made_by.is_some() {
            return StackName { operator, line: made_by, within: None, calls_backward };
        }
        StackName { operator, line: place.and_then(frame), within, calls_backward }
    }

    /// Returns the line of the forward pass that created the autograd node of a stack, if the recording has it.
    fn made_by<'t>(&self, stacks: &'t StackTable, stack: StackId) -> Option<&'t Frame> {
        let calls = stacks.calls(stacks.forward(stack));
        let place = self.own_of(stacks, calls).or_else(|| self.other_line(stacks, calls, false))?;
        stacks.frame(*calls.get(place)?)
    }

    /// Returns the index of the line to show if the program has none.
    fn other_line(&self, stacks: &StackTable, calls: &[u32], has_native: bool) -> Option<usize> {
        let innermost = |kind: FrameKind| calls.iter().position(|&number| *self.kind(number) == kind);
        let of_library = innermost(FrameKind::Library).or_else(|| innermost(FrameKind::Torch));
        if has_native {
            return of_library;
        }
        let has_file = |number: u32| stacks.frame(number).is_some_and(|frame| &*frame.filename != "??");
        let with_file = || calls.iter().position(|&number| has_file(number));
        of_library.or_else(with_file).or((!calls.is_empty()).then_some(0))
    }

    /// Returns the most informative of the calls inside the shown line; calls outside the line requested nothing.
    fn within<'t>(&self, stacks: &'t StackTable, calls: &[u32], has_native: bool) -> Option<&'t Frame> {
        let innermost = |is_it: fn(&FrameKind) -> bool| calls.iter().copied().find(|&number| is_it(self.kind(number)));
        let library = innermost(|kind| matches!(kind, FrameKind::Library | FrameKind::Program | FrameKind::Text));
        // The operator shows what the program asked PyTorch for.
        let torch = || if has_native { None } else { innermost(|kind| *kind == FrameKind::Torch) };
        library.or_else(torch).and_then(|number| stacks.frame(number))
    }

    /// Returns the index of the operator that allocated the memory, among the calls inside the innermost Python call.
    fn operator_place(&self, calls: &[u32]) -> Option<usize> {
        let inner = self.inner(calls);
        let innermost = |is_it: fn(&FrameKind) -> bool| inner.iter().position(|&number| is_it(self.kind(number)));
        let operator = innermost(|kind| matches!(kind, FrameKind::Operator(_)));
        let kernel = || innermost(|kind| matches!(kind, FrameKind::Kernel(_)));
        // Among operators that only allocate memory, the outermost is the one that was asked for.
        let outermost = || inner.iter().rposition(|&number| matches!(self.kind(number), FrameKind::Allocation(_)));
        operator.or_else(kernel).or_else(outermost)
    }

    /// Returns the calls inside the innermost Python call.
    fn inner<'c>(&self, calls: &'c [u32]) -> &'c [u32] {
        let end = calls.iter().position(|&number| self.kind(number).is_python());
        &calls[..end.unwrap_or(calls.len())]
    }

    /// Returns the operator that allocated the memory, and its node in a backward pass.
    fn operator(&self, calls: &[u32]) -> Option<String> {
        let has = |kind: &FrameKind| self.inner(calls).iter().any(|&number| self.kind(number) == kind);
        let operator = self.operator_place(calls).and_then(|place| self.short(calls[place]));
        let operator = match (operator, has(&FrameKind::Workspace)) {
            (Some(operator), true) => Some(format!("workspace of {operator}")),
            (None, true) => Some("workspace".to_owned()),
            (operator, false) => operator.map(Cow::into_owned),
        };
        let node = self.inner(calls).iter().find(|&&number| matches!(self.kind(number), FrameKind::Node(_)));
        let pass = match node {
            Some(&node) => self.short(node),
            None => has(&FrameKind::Engine).then_some("autograd".into()),
        };
        match (operator, pass) {
            (Some(operator), Some(pass)) => Some(format!("{operator} in {pass}")),
            (operator, pass) => operator.or(pass.map(Cow::into_owned)),
        }
    }

    /// Returns the short form of a C++ call: `aten::bmm` for `at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)`.
    #[must_use]
    pub fn short(&self, number: u32) -> Option<Cow<'_, str>> {
        match self.kind(number) {
            FrameKind::Operator(name) | FrameKind::Kernel(name) | FrameKind::Allocation(name) => Some(Cow::Borrowed(name)),
            FrameKind::Node(name) => Some(Cow::Owned(format!("autograd {name}"))),
            FrameKind::Workspace => Some(Cow::Borrowed("workspace")),
            FrameKind::Engine => Some(Cow::Borrowed("backward pass")),
            _ => None,
        }
    }

    /// Returns the line of the program that calls `backward()`, if there is only one.
    fn calls_backward<'t>(&self, stacks: &'t StackTable) -> Option<&'t Frame> {
        let find = || {
            let mut found = None;
            for calls in stacks.ids().map(|stack| stacks.calls(stack)) {
                let Some(place) = calls.iter().rposition(|&number| self.is_backward(stacks, number)) else { continue };
                let outer = &calls[place + 1..];
                let Some(&caller) = self.own_of(stacks, outer).and_then(|own| outer.get(own)) else { continue };
                if *found.get_or_insert(caller) != caller {
                    return None;
                }
            }
            found
        };
        self.calls_backward.get_or_init(find).and_then(|number| stacks.frame(number))
    }

    fn is_backward(&self, stacks: &StackTable, number: u32) -> bool {
        *self.kind(number) == FrameKind::Torch
            && stacks.frame(number).is_some_and(|frame| {
                let starts = ["_tensor.py", "tensor.py"].iter().any(|file| frame.filename.ends_with(file));
                &*frame.name == "backward" && (starts || frame.filename.replace('\\', "/").ends_with("autograd/__init__.py"))
            })
    }

    /// Returns the calls in a stack that matter to a reader, by number, innermost first: calls that only forward a call are
    /// left out. A stack without C++ calls, or with nothing else, keeps all of its calls.
    #[must_use]
    pub fn telling(&self, stacks: &StackTable, stack: StackId) -> Vec<u32> {
        let calls = stacks.calls(stack);
        if !self.has_native(stacks, stack) {
            return calls.to_vec();
        }
        let operator = self.operator_place(calls);
        let tells = |(place, number): (usize, u32)| match self.kind(number) {
            FrameKind::Wrapper | FrameKind::Runtime | FrameKind::Unknown => false,
            // A PyTorch kernel repeats the name of the operator that it computes.
            FrameKind::Kernel(_) | FrameKind::Allocation(_) => operator == Some(place),
            _ => true,
        };
        let mut telling: Vec<u32> =
            calls.iter().copied().enumerate().filter(|&call| tells(call)).map(|(_, number)| number).collect();
        // An operator may be dispatched several times in a row.
        telling.dedup_by(|one, other| self.short(*one).is_some_and(|name| self.short(*other) == Some(name)));
        if telling.is_empty() { calls.to_vec() } else { telling }
    }

    /// Returns the same calls as text, outermost first.
    #[must_use]
    pub fn readable(&self, stacks: &StackTable, stack: StackId) -> Vec<String> {
        let text = |frame: &Frame| format!("{} ({}:{})", frame.name, frame.filename, frame.line);
        let of_call = |&number: &u32| self.short(number).map(Cow::into_owned).or_else(|| stacks.frame(number).map(text));
        self.telling(stacks, stack).iter().rev().filter_map(of_call).collect()
    }
}

/// The live blocks that one call site in the program allocated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StackUse {
    /// The stack; [`StackId::NONE`] collects all blocks for which the file has no stack.
    pub stack: StackId,
    /// The number of blocks.
    pub blocks: usize,
    /// Their bytes.
    pub bytes: u64,
}

/// Sums blocks, passed as a stack and a size in bytes, by stack; the stack that holds the most comes first.
pub(crate) fn by_stack(mut blocks: Vec<(StackId, u64)>) -> Vec<StackUse> {
    blocks.sort_unstable();
    let sum = |blocks: &[(StackId, u64)]| blocks.iter().fold(0, |sum: u64, block| sum.saturating_add(block.1));
    let uses = blocks.chunk_by(|one, other| one.0 == other.0);
    let mut uses: Vec<StackUse> =
        uses.map(|blocks| StackUse { stack: blocks[0].0, blocks: blocks.len(), bytes: sum(blocks) }).collect();
    uses.sort_by_key(|held| (Reverse(held.bytes), held.stack));
    uses
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns a table with one stack that has these calls, innermost first: function, file, line.
    fn table(stacks: &[&[(&str, &str, u32)]]) -> (StackTable, Vec<StackId>) {
        let mut table = StackTable::default();
        let mut intern = |calls: &&[(&str, &str, u32)]| {
            let frame =
                |&(name, filename, line): &(&str, &str, u32)| Frame { filename: filename.into(), line, name: name.into() };
            let calls: Vec<u32> = calls.iter().map(|call| table.intern_frame(frame(call))).collect();
            table.intern_stack(&calls)
        };
        let ids = stacks.iter().map(&mut intern).collect();
        (table, ids)
    }

    /// Returns the lines of the user's own frame and of the frame to show, in a stack with these files, innermost first.
    fn lines(files: &[&str]) -> (Option<u32>, Option<u32>) {
        let calls: Vec<(&str, &str, u32)> = (1..).zip(files).map(|(line, &file)| ("f", file, line)).collect();
        let (table, ids) = table(&[&calls]);
        let names = StackNames::of(&table);
        let own = names.own_place(&table, ids[0]).map(|place| place as u32 + 1);
        (own, names.name(&table, ids[0]).line.map(|frame| frame.line))
    }

    /// Returns the name of the first of these stacks: the operator, the line, the call within it, and the line that calls
    /// `backward()`.
    fn named(stacks: &[&[(&str, &str, u32)]]) -> (String, [u32; 3]) {
        let (table, ids) = table(stacks);
        let StackName { operator, line, within, calls_backward } = StackNames::of(&table).name(&table, ids[0]);
        let lines = [line, within, calls_backward].map(|frame| frame.map_or(0, |frame| frame.line));
        (operator.unwrap_or_default(), lines)
    }

    const UNWIND: (&str, &str, u32) = ("torch::unwind::unwind()", "??", 0);
    const GATHER: (&str, &str, u32) = ("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp", 0);
    const MALLOC: (&str, &str, u32) =
        ("c10::cuda::CUDACachingAllocator::Native::NativeCachingAllocator::allocate(unsigned long)", "", 0);
    const EMPTY: (&str, &str, u32) = ("at::_ops::empty_strided::call(c10::ArrayRef<c10::SymInt>)", "??", 0);
    const COPY: (&str, &str, u32) = ("at::_ops::_to_copy::redispatch(c10::DispatchKeySet, at::Tensor const&)", "??", 0);
    const MM: (&str, &str, u32) = ("at::_ops::mm::call(at::Tensor const&, at::Tensor const&)", "??", 0);
    const LINEAR: (&str, &str, u32) = ("at::_ops::linear::call(at::Tensor const&)", "??", 0);
    const EVAL: (&str, &str, u32) = ("_PyEval_EvalFrameDefault", "??", 0);
    const NN: (&str, &str, u32) = ("forward", "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py", 134);
    const CALL: (&str, &str, u32) = ("_call_impl", "/venv/lib/python3.12/site-packages/torch/nn/modules/module.py", 1790);
    const LLAMA: (&str, &str, u32) = ("forward", "/venv/lib/python3.12/site-packages/transformers/modeling_llama.py", 175);
    const START: (&str, &str, u32) = ("__libc_start_main", "??", 0);
    const TRAIN: (&str, &str, u32) = ("step", "/app/train.py", 64);
    const APPLY: (&str, &str, u32) =
        ("torch::autograd::generated::MmBackward0::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)", "??", 0);
    const ENGINE: (&str, &str, u32) = ("torch::autograd::Engine::thread_main(std::shared_ptr<GraphTask> const&)", "??", 0);
    const BACKWARD: (&str, &str, u32) = ("backward", "/venv/lib/python3.12/site-packages/torch/_tensor.py", 631);

    #[test]
    fn the_innermost_frame_outside_of_libraries_is_the_user_s_own() {
        let site = "/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py";
        let own = |files: &[&str]| lines(files).0;
        assert_eq!(own(&["??", "ceval.c", site, "/home/a/model.py", "/home/a/train.py"]), Some(4));
        assert_eq!(own(&[site, "C:\\Python312\\Lib\\threading.py", "C:\\run\\train.py"]), Some(3));
        assert_eq!(own(&["/src/pytorch/torch/_tensor.py", "/src/pytorch/torch/optim/adam.py", "/home/torch/train.py"]), Some(3));
        assert_eq!(
            own(&["/cache/torchinductor_a/x/cx.py", "<frozen runpy>", "<eval_with_key>.1", "<ipython-input-3-ab>"]),
            Some(4)
        );
        assert_eq!(own(&["<string>", "/usr/lib/python3/dist-packages/x.py", "run.py"]), Some(3));
        assert_eq!(own(&["<string>", site]), Some(1));
        assert_eq!(own(&["/home/a/python3.12/lib.py", "train.py"]), Some(1));
    }

    #[test]
    fn code_that_the_program_made_is_the_program_s() {
        assert_eq!(lines(&["<string>", "/venv/lib/python3.12/site-packages/x.py", "<string>", "run.py"]).0, Some(1));
        let generated = [("__init__", "<string>", 3), ("main", "run.py", 9)];
        assert_eq!(named(&[&generated]), (String::new(), [9, 3, 0]));
        let spawn = ("spawn_main", "/usr/lib/python3.12/multiprocessing/spawn.py", 122);
        let spawned = [NN, LLAMA, spawn, ("<module>", "<string>", 1)];
        assert_eq!(named(&[&spawned]), (String::new(), [175, 134, 0]), "its first line is nobody's");
    }

    #[test]
    fn without_a_frame_of_the_user_s_a_named_one_is_shown() {
        assert_eq!(lines(&["??", "/opt/lib64/python3.9/runpy.py"]), (None, Some(2)));
        assert_eq!(lines(&["??", "??"]), (None, Some(1)));
        assert_eq!(lines(&[]), (None, None));
        let library = "/v/lib/python3.12/site-packages/transformers/gpt2.py";
        assert_eq!(lines(&["/v/lib/python3.12/site-packages/torch/nn/functional.py", library]), (None, Some(2)));
    }

    #[test]
    fn a_block_is_named_by_its_operator_and_the_program_s_line() {
        let forward = [UNWIND, GATHER, MALLOC, EMPTY, MM, LINEAR, EVAL, NN, EVAL, CALL, EVAL, LLAMA, EVAL, CALL, START, TRAIN];
        assert_eq!(named(&[&forward]), ("aten::mm".to_owned(), [64, 175, 0]));
        assert_eq!(named(&[&[GATHER, MALLOC, EMPTY, EVAL, TRAIN]]), ("aten::empty_strided".to_owned(), [64, 0, 0]));
        // A hook's allocations belong to the hook, even though an operator called it.
        let hook =
            [UNWIND, GATHER, MALLOC, EMPTY, COPY, EVAL, ("<lambda>", "<string>", 60), EVAL, MM, NN, ("f", "<string>", 64), TRAIN];
        assert_eq!(named(&[&hook]), ("aten::_to_copy".to_owned(), [60, 0, 0]));
        let (zeros, embedding) =
            (("at::_ops::zeros::call(long)", "??", 0), ("at::_ops::embedding_dense_backward::call(at::Tensor const&)", "??", 0));
        assert_eq!(named(&[&[GATHER, MALLOC, EMPTY, zeros, embedding, TRAIN]]).0, "aten::embedding_dense_backward");
        assert_eq!(named(&[&[GATHER, MALLOC, EMPTY, zeros, TRAIN]]).0, "aten::zeros");
        assert_eq!(named(&[&[GATHER, MALLOC, MM, LLAMA]]), ("aten::mm".to_owned(), [175, 0, 0]));
        let workspace = ("at::cuda::getCUDABlasLtWorkspace()", "??", 0);
        assert_eq!(named(&[&[GATHER, MALLOC, workspace, MM, EVAL, TRAIN]]).0, "workspace of aten::mm");
        assert_eq!(named(&[&[UNWIND, GATHER, MALLOC, START]]), (String::new(), [0, 0, 0]));
    }

    #[test]
    fn a_backward_pass_names_its_node_and_the_only_line_that_starts_one() {
        let pass = [UNWIND, GATHER, MALLOC, EMPTY, MM, APPLY, ENGINE];
        let operator = "aten::mm in autograd MmBackward0".to_owned();
        assert_eq!(named(&[&pass]), (operator.clone(), [0, 0, 0]));
        let starts = [GATHER, MALLOC, EMPTY, EVAL, BACKWARD, EVAL, TRAIN];
        assert_eq!(named(&[&pass, &starts]), (operator.clone(), [0, 0, 64]));
        let other = [GATHER, MALLOC, EMPTY, EVAL, BACKWARD, EVAL, ("step", "/app/train.py", 65)];
        assert_eq!(named(&[&pass, &starts, &other]), (operator, [0, 0, 0]), "which of the two started it is not known");
        // If a backward pass recomputes part of the forward pass, the recomputed line belongs to the program.
        assert_eq!(named(&[&[GATHER, MM, EVAL, TRAIN, APPLY, ENGINE], &starts]), ("aten::mm".to_owned(), [64, 0, 0]));
        let sum = ("at::_ops::add_Tensor::call(at::Tensor const&)", "??", 0);
        assert_eq!(named(&[&[GATHER, MALLOC, EMPTY, sum, ENGINE]]).0, "aten::add in autograd");
    }

    #[test]
    fn a_backward_pass_names_the_line_of_the_forward_pass_that_made_its_node() {
        let (mut table, ids) = table(&[&[UNWIND, GATHER, MALLOC, EMPTY, MM, APPLY, ENGINE], &[NN, CALL, TRAIN]]);
        let made = table.intern_with_forward(ids[0], ids[1]);
        let python_alone = table.intern_with_forward(StackId::NONE, ids[1]);
        let names = StackNames::of(&table);
        let named = |stack| (names.name(&table, stack).operator, names.name(&table, stack).line.map(|frame| frame.line));
        let operator = Some("aten::mm in autograd MmBackward0".to_owned());
        assert_eq!((named(made), named(ids[0])), ((operator.clone(), Some(64)), (operator, None)));
        assert_eq!(named(python_alone), (None, Some(64)), "without calls of C++ the line is all there is");
    }

    #[test]
    fn what_only_passes_on_is_not_readable() {
        let forward = [UNWIND, GATHER, MALLOC, EMPTY, COPY, MM, MM, EVAL, NN, CALL, EVAL, TRAIN, START];
        let python = [NN, CALL, TRAIN];
        let (table, ids) = table(&[&forward, &[GATHER, MM, APPLY, ENGINE, ENGINE, START], &python, &[UNWIND, START]]);
        let names = StackNames::of(&table);
        let nn = "forward (/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:134)";
        assert_eq!(names.readable(&table, ids[0]), ["step (/app/train.py:64)", nn, "aten::mm", "aten::_to_copy"]);
        assert_eq!(names.readable(&table, ids[1]), ["backward pass", "autograd MmBackward0", "aten::mm"]);
        assert_eq!(names.readable(&table, ids[2]).len(), 3, "a stack of Python alone has all of its calls");
        assert_eq!(names.readable(&table, ids[3]).len(), 2, "nothing else is there");
    }
}

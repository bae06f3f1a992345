//! Parts that the texts for a recording and for a message share: the five steps, and a stack in one line.
//!
//! The line has the operator that took the memory, the user's own line, and the library call that requested it.

use parkade_analysis::diagnose::Applies;
use parkade_analysis::{StackName, StackNames};
use parkade_recording::{Frame, Recording, StackId};

use crate::terminal::json_struct::{Word, view};
use crate::terminal::output;
use crate::terminal::table::{Mark, Table};

/// The folder of installed libraries.
const LIBRARIES: &str = "site-packages/";
/// The name of a stack that only passes calls on.
const NAMELESS: &str = "its stack contains neither an operator nor a line of Python";

/// The stack in one line: the operator, the user's own frame, and the library call that it led to. `None` if the stack has none
/// of these.
pub(crate) fn stack_line(names: &StackNames, recording: &Recording, stack: StackId) -> Option<String> {
    if recording.stacks.calls(stack).is_empty() {
        return None;
    }
    let StackName { operator, line, within, calls_backward } = names.name(&recording.stacks, stack);
    let line = match (operator, line.map(place)) {
        (Some(operator), Some(line)) => Some(format!("{} from {line}", output::shorten(&operator, 120))),
        (operator, line) => operator.or(line),
    };
    let within = within.map(|within| format!("in {}", place(within)));
    let backward = calls_backward.map(|caller| format!("backward() from {}", place(caller)));
    let parts: Vec<String> = [line, within, backward].into_iter().flatten().collect();
    Some(if parts.is_empty() { NAMELESS.to_owned() } else { output::one_line(&parts.join(", ")) })
}

/// The operator that took the memory, if the stack has C++ calls.
pub(crate) fn operator(names: &StackNames, recording: &Recording, stack: StackId) -> Option<String> {
    names.name(&recording.stacks, stack).operator
}

fn place(frame: &Frame) -> String {
    let file = frame.filename.as_ref();
    let short = file.rsplit_once(LIBRARIES).map_or(file, |(_, rest)| rest);
    format!("{} {}:{}", output::shorten(&frame.name, 60), output::shorten(short, 90), frame.line)
}

/// The entire stack for machine-readable output, innermost call first.
pub(crate) fn stack_view(names: &StackNames, recording: &Recording, stack: StackId) -> Vec<Call> {
    let own = names.own_place(&recording.stacks, stack).and_then(|place| recording.stacks.frames(stack).nth(place));
    recording.stacks.frames(stack).map(|frame| Call::of(frame, own == Some(frame))).collect()
}

view! {
    pub(crate) struct Call(frame: &Frame, is_own: bool) {
        /// The function.
        name: String = frame.name.to_string(),
        /// The file.
        filename: String = frame.filename.to_string(),
        /// The line.
        line: u32 = frame.line,
        /// Whether it is the user's own frame: the innermost outside of libraries, PyTorch and Python.
        own: bool = is_own,
    }
}

/// The name of a step.
#[derive(Clone, Copy)]
enum StepName {
    Capacity,
    Fragmentation,
    Settings,
    EmptyCache,
    Snapshot,
}

parkade_recording::names! {
    StepName {
        StepName::Capacity => "capacity",
        StepName::Fragmentation => "fragmentation",
        StepName::Settings => "settings",
        StepName::EmptyCache => "empty_cache",
        StepName::Snapshot => "snapshot",
    }
}

impl StepName {
    /// The question that the step answers.
    const fn question(self) -> &'static str {
        match self {
            StepName::Capacity => "too little capacity?",
            StepName::Fragmentation => "fragmentation?",
            StepName::Settings => "do settings help?",
            StepName::EmptyCache => "does empty_cache help?",
            StepName::Snapshot => "does a snapshot help?",
        }
    }
}

/// The five steps.
const STEPS: [StepName; 5] =
    [StepName::Capacity, StepName::Fragmentation, StepName::Settings, StepName::EmptyCache, StepName::Snapshot];
/// The limit of what settings can change.
pub(super) const POOLS_DO_NOT_SHARE: &str =
    "no setting makes a private pool share its cached memory: free the CUDA graphs and MemPools you no longer need";

/// An empty table of steps. Each is a question, so that yes and no always mean the same.
pub(super) fn steps() -> Table {
    Table::plain(2, ["question", "answer", "because"]).with_left([0, 1, 2])
}

/// Adds a step: its question, the answer, and the finding.
pub(super) fn add_step(table: &mut Table, place: usize, applies: Applies, finding: impl Into<String>) {
    let mark = if applies == Applies::Yes { Mark::Bad } else { Mark::Plain };
    table.marked([STEPS[place].question().to_owned(), applies.name().to_owned(), finding.into()], 1, mark);
}

view! {
    /// One of the five steps.
    pub(super) struct Step(place: usize, applies: Applies, finding: String) {
        /// The step's name.
        step: Word<StepName> = Word::of(&STEPS[place]),
        /// Whether it applies.
        applies: Word<Applies> = Word::of(&applies),
        /// What was found.
        finding: String = finding,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_user_s_own_frame_comes_before_the_library_s() {
        let mut recording = Recording::default();
        let mut interned = |files: &[&str]| {
            let frame = |(line, file): (u32, &&str)| Frame { filename: (*file).into(), line, name: "f".into() };
            let calls: Vec<u32> = (1..).zip(files).map(|call| recording.stacks.intern_frame(frame(call))).collect();
            recording.stacks.intern_stack(&calls)
        };
        let torch = "/v/lib/python3.12/site-packages/torch/nn/functional.py";
        let library = "/v/lib/python3.12/site-packages/transformers/gpt2.py";
        let stacks = [&["??", torch, library, "run.py"][..], &["??", torch, "run.py"], &["run.py", torch], &[torch], &["??"]];
        let [both, only_torch, own, none, nameless] = stacks.map(&mut interned);
        let names = StackNames::of(&recording.stacks);
        let shown = |stack| stack_line(&names, &recording, stack);
        assert_eq!(shown(both).as_deref(), Some("f run.py:4, in f transformers/gpt2.py:3"));
        assert_eq!(shown(only_torch).as_deref(), Some("f run.py:3, in f torch/nn/functional.py:2"));
        assert_eq!((shown(own).as_deref(), shown(StackId::NONE)), (Some("f run.py:1"), None));
        assert_eq!((shown(none).as_deref(), shown(nameless).as_deref()), (Some("f torch/nn/functional.py:1"), Some("f ??:1")));
        assert_eq!(
            stack_view(&names, &recording, both).iter().map(|call| call.own).collect::<Vec<_>>(),
            [false, false, false, true]
        );
    }

    #[test]
    fn the_operator_comes_before_the_user_s_own_frame() {
        let mut recording = Recording::default();
        let mut interned = |calls: &[(&str, &str)]| {
            let frame = |&(name, file): &(&str, &str)| Frame { filename: file.into(), line: 7, name: name.into() };
            let calls: Vec<u32> = calls.iter().map(|call| recording.stacks.intern_frame(frame(call))).collect();
            recording.stacks.intern_stack(&calls)
        };
        let gather = ("torch::cuda::(anonymous namespace)::gather_with_cpp()", "memory_snapshot.cpp");
        let bmm = ("at::_ops::bmm::call(at::Tensor const&, at::Tensor const&)", "??");
        let library = ("forward", "/v/lib/python3.12/site-packages/transformers/gpt2.py");
        let apply = ("torch::autograd::generated::BmmBackward0::apply(std::vector<at::Tensor>&&)", "??");
        let backward = ("backward", "/v/lib/python3.12/site-packages/torch/_tensor.py");
        let forward = interned(&[gather, bmm, ("_PyEval_EvalFrameDefault", "??"), library, ("train", "run.py")]);
        let pass = interned(&[gather, bmm, apply]);
        let only = interned(&[gather]);
        interned(&[gather, backward, ("train", "run.py")]);
        let names = StackNames::of(&recording.stacks);
        let shown = |stack| stack_line(&names, &recording, stack).expect("a name");
        assert_eq!(shown(forward), "aten::bmm from train run.py:7, in forward transformers/gpt2.py:7");
        assert_eq!(shown(pass), "aten::bmm in autograd BmmBackward0, backward() from train run.py:7");
        assert_eq!(shown(only), NAMELESS);
    }
}

//! A Python stack in one line: the user's own line, and the library's call that requested memory for it.

use parkade_analysis::{own_frame, shown_frame};
use parkade_recording::{Frame, Recording, StackId};

use crate::terminal::json_struct::view;
use crate::terminal::output;

/// The folder of installed libraries.
const LIBRARIES: &str = "site-packages/";

/// The stack in one line: the user's own frame, and the library's call that it led to. `None` if there is none.
pub(crate) fn line(recording: &Recording, stack: StackId) -> Option<String> {
    let stacks = &recording.stacks;
    let first = shown_frame(stacks, stack)?;
    let is_torch = |frame: &&Frame| frame.filename.contains("site-packages/torch/");
    // Only the calls within the user's own frame: what is around it has asked for nothing.
    let within = || stacks.frames(stack).take_while(|&frame| frame != first).filter(|frame| &*frame.filename != "??");
    let library = within().find(|frame| !is_torch(frame)).or_else(|| within().next());
    let within = library.map_or(String::new(), |library| format!(", in {}", place(library)));
    Some(output::one_line(&format!("{}{within}", place(first))))
}

fn place(frame: &Frame) -> String {
    let file = frame.filename.as_ref();
    let short = file.rsplit_once(LIBRARIES).map_or(file, |(_, rest)| rest);
    format!("{} {}:{}", output::shorten(&frame.name, 60), output::shorten(short, 90), frame.line)
}

/// The whole stack for programs, the innermost call first.
pub(crate) fn view(recording: &Recording, stack: StackId) -> Vec<Call> {
    let own = own_frame(&recording.stacks, stack);
    recording.stacks.frames(stack).map(|frame| Call::of(frame, own == Some(frame))).collect()
}

view! {
    pub(crate) struct Call(frame: &Frame, is_own: bool) {
        name: String = frame.name.to_string(),
        filename: String = frame.filename.to_string(),
        line: u32 = frame.line,
        own: bool = is_own,
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
        let shown = |stack| line(&recording, stack);
        assert_eq!(shown(both).as_deref(), Some("f run.py:4, in f transformers/gpt2.py:3"));
        assert_eq!(shown(only_torch).as_deref(), Some("f run.py:3, in f torch/nn/functional.py:2"));
        assert_eq!((shown(own).as_deref(), shown(StackId::NONE)), (Some("f run.py:1"), None));
        assert_eq!((shown(none).as_deref(), shown(nameless).as_deref()), (Some("f torch/nn/functional.py:1"), Some("f ??:1")));
        assert_eq!(view(&recording, both).iter().map(|call| call.own).collect::<Vec<_>>(), [false, false, false, true]);
    }
}

//! A Python stack in one line: the user's own line, and the library's call that requested memory for it.

use parkade_analysis::shown_frame;
use parkade_recording::{Frame, Recording, StackId};

use crate::json_struct::view;
use crate::output;

/// The folder of installed libraries.
const LIBRARIES: &str = "site-packages/";

/// The stack in one line: the user's own frame, and the library's call that it led to. `None` if there is none.
pub(super) fn line(recording: &Recording, stack: StackId) -> Option<String> {
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
pub(super) fn view(recording: &Recording, stack: StackId) -> Vec<Call> {
    recording.stacks.frames(stack).map(Call::of).collect()
}

view! {
    pub(super) struct Call(frame: &Frame) {
        name: String = frame.name.to_string(),
        filename: String = frame.filename.to_string(),
        line: u32 = frame.line,
    }
}

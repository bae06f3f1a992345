//! A Python stack in one line: the call that requested memory, and the user's own line that led to it.

use parkade_recording::{Frame, Recording, StackId};

use crate::json_struct::view;
use crate::output;

/// The folder of installed libraries.
const LIBRARIES: &str = "site-packages/";

/// The stack in one line; `None` if there is none.
pub(crate) fn line(recording: &Recording, stack: StackId) -> Option<String> {
    let frames: Vec<&Frame> = recording.stacks.frames(stack).collect();
    let is_named = |frame: &&&Frame| frame.filename.as_ref() != "??";
    let is_torch = |frame: &Frame| frame.filename.contains("site-packages/torch/");
    let named = || frames.iter().filter(is_named);
    let asked = named().find(|frame| !is_torch(frame)).or_else(|| named().next()).or(frames.first())?;
    let own = named().find(|frame| !frame.filename.contains(LIBRARIES)).filter(|own| own != &asked);
    let from = own.map_or(String::new(), |own| format!(", from {}", place(own)));
    Some(output::one_line(&format!("{}{from}", place(asked))))
}

fn place(frame: &Frame) -> String {
    let file = frame.filename.as_ref();
    let short = file.rsplit_once(LIBRARIES).map_or(file, |(_, rest)| rest);
    format!("{} {}:{}", output::shorten(&frame.name, 60), output::shorten(short, 90), frame.line)
}

/// The whole stack for programs, the innermost call first.
pub(crate) fn view(recording: &Recording, stack: StackId) -> Vec<Call> {
    recording.stacks.frames(stack).map(Call::of).collect()
}

view! {
    pub(crate) struct Call(frame: &Frame) {
        name: String = frame.name.to_string(),
        filename: String = frame.filename.to_string(),
        line: u32 = frame.line,
    }
}

//! Parses calls in the form of Python's tracebacks: a text for each call, ` File "model.py", line 12, in forward`, followed
//! by the source line.
//!
//! The `forward_frames` of an entry are a list of these texts, the outermost first: the calls of the forward pass that
//! created the autograd node in which memory was allocated (spec 7.4). They only help to name a block, so the reader ignores
//! any other text.

use crate::recording::Frame;

/// The call that a text describes; `None` if it describes none.
pub(super) fn read(text: &[u8]) -> Option<Frame> {
    let line = text.split(|&byte| byte == b'\n').next()?;
    let line = String::from_utf8_lossy(line);
    let (filename, rest) = line.trim_start().strip_prefix("File \"")?.rsplit_once("\", line ")?;
    let (number, name) = rest.split_once(", in ").unwrap_or((rest, ""));
    let line = number.parse().ok()?;
    Some(Frame { filename: filename.into(), line, name: name.into() })
}

/// The text of a call, without the source line.
pub(super) fn written(frame: &Frame) -> String {
    format!("  File \"{}\", line {}, in {}\n", frame.filename, frame.line, frame.name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceback_is_read_and_written() {
        let frame = Frame { filename: "/home/u/model.py".into(), line: 12, name: "forward".into() };
        let text = "  File \"/home/u/model.py\", line 12, in forward\n    return self.linear(x)\n";
        assert_eq!(read(text.as_bytes()).as_ref(), Some(&frame));
        assert_eq!(read(written(&frame).as_bytes()), Some(frame));
        let shell = read(b"  File \"<stdin>\", line 3").expect("a call without a function");
        assert_eq!((&*shell.filename, shell.line, &*shell.name), ("<stdin>", 3, ""));
    }

    #[test]
    fn what_is_no_call_is_none() {
        for text in ["", "\n", "  [Previous line repeated 3 more times]\n", "File \"a.py\"", "  File \"a.py\", line x, in f\n"] {
            assert_eq!(read(text.as_bytes()), None, "{text}");
        }
        assert_eq!(read(b"\xff\xfe"), None);
    }
}

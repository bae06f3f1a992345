//! The snapshot format: from plain Python data to a [`Recording`](crate::Recording) and back (spec 7.2 to 7.8).
//!
//! Add new formats here. For a key that a newer PyTorch writes, extend the `NAMES` of its reader (in `snapshot`: segments,
//! trace, settings, annotations, stacks), the type in `recording`, and `write`. For a snapshot with a different outer
//! structure, add a case to `snapshot`.
//!
//! | file | contents |
//! |---|---|
//! | `snapshot` | recognises the file's form at its root, reads its devices and their parts, and limits what a file may expand to |
//! | `fields` | looks up keys, typed values and names from untrusted files; the errors in a snapshot |
//! | `write` | converts a recording back to a snapshot |

mod fields;
mod snapshot;
mod write;

pub use fields::{FormatError, FormatProblem, Place};
pub(crate) use snapshot::read_snapshot;
pub use write::write;

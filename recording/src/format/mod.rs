//! The snapshot format: from plain Python data to a [`Recording`](crate::Recording) and back (spec 7.2 to 7.8).
//!
//! Add new formats here. For a key that a newer PyTorch writes, extend the `NAMES` of its reader (in `snapshot`: segments,
//! trace, settings, annotations, stacks), the type in `recording`, and `write`. For a snapshot with a different outer
//! structure, add a case to `snapshot`.
//!
//! | file | contents |
//! |---|---|
//! | `snapshot` | from the root, which form the file has, to its devices and the parts; what a file may expand to |
//! | `fields` | looking up keys, typed values, names from a stranger's file; what can be wrong with a snapshot |
//! | `write` | a recording back to a snapshot |

mod fields;
mod snapshot;
mod write;

pub use fields::{FormatError, FormatProblem, Place};
pub(crate) use snapshot::read_snapshot;
pub use write::write;

//! The snapshot format: from plain Python data to a [`Recording`](crate::Recording) and back (spec 7.2 to 7.8).
//!
//! This is the place for the next format. A key that a newer PyTorch writes is added to the `NAMES` of the reader it
//! belongs to (`segments`, `trace`, `settings`, `annotations`, `stacks`), to the type in `recording` and to
//! `write`; a snapshot of another outer shape gets its case in `snapshot`.
//!
//! | file | contents |
//! |---|---|
//! | `snapshot` | the root: which form the file has, its devices |
//! | `segments`, `trace`, `settings`, `annotations`, `stacks` | the parts |
//! | `fields`, `values`, `names` | looking up keys, typed values, text from a stranger's file |
//! | `budget`, `error` | what a file may expand to; what can be wrong with it |
//! | `write` | a recording back to a snapshot |

mod annotations;
mod budget;
mod error;
mod fields;
mod names;
mod segments;
mod settings;
mod snapshot;
mod stacks;
mod trace;
mod values;
mod write;

pub use error::{FormatError, FormatProblem, Place};
pub(crate) use snapshot::read_snapshot;
pub use write::write;

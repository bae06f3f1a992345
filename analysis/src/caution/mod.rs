//! What a setting may break: known issues of PyTorch's allocator settings in programs that use certain features.
//!
//! [`InUse`] is what a recording shows of the features in use, [`cautions`] lists the known issues that then apply to settings. `issue` is
//! the form of a known issue, `table` lists them all, each with its source. A replay tells how much memory a program needs under a
//! setting; these issues are what no replay of one process can show: hangs, refused calls, memory of other libraries, settings without
//! effect.

mod cautions;
mod evidence;
mod in_use;
mod issue;
mod table;
#[cfg(test)]
mod tests;

pub use cautions::{Caution, cautions};
pub use evidence::Evidence;
pub use in_use::{Feature, InUse};
pub use issue::Severity;

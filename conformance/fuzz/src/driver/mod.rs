//! Running targets for a stated time or number of executions, with bounds on time and memory.
//!
//! One process does the work, on several threads; another one watches it. The workers keep an account of where they are in a file, so that
//! the watcher knows which input an abort or a hang belongs to, notes it, and starts the work again behind it.
//!
//! | file | what it does |
//! |---|---|
//! | `options` | what is asked on the command line |
//! | `input` | the input of a number: the same for the same seed |
//! | `execute` | one execution, with its memory and time |
//! | `account` | where each thread is, and what it has seen |
//! | `failures` | inputs that failed, as files, and smaller ones that fail in the same way |
//! | `worker` | the threads |
//! | `watcher` | aborts and hangs |
//! | `table` | what is printed at the end |

mod account;
mod execute;
mod failures;
mod input;
mod options;
mod table;
mod watcher;
mod worker;

pub use execute::{Execution, Failure, FailureKind, LARGEST_PEAK_BYTES, LONGEST, execute, prepare_thread};
pub use failures::{kept, run_kept};
pub use input::{Input, input};
pub use options::Options;
pub use watcher::watch;
pub use worker::{bound_address_space, work};

//! Running targets for a stated time or number of executions, with bounds on time and memory.
//!
//! One process does the work, on several threads; another one watches it. The workers keep an account of where they are in a file, so that
//! the watcher knows which input an abort or a hang belongs to, notes it, and starts the work again behind it.
//!
//! | file | what it does |
//! |---|---|
//! | `execute` | the input of a number: the same for the same seed; one execution, with its memory and time; inputs that failed |
//! | `run` | what is asked on the command line; the threads, where each is, and what it has seen; aborts and hangs; the table at the end |

mod execute;
mod run;

pub use execute::{
    Execution, Failure, FailureKind, Input, LARGEST_PEAK_BYTES, LONGEST, execute, input, kept, prepare_thread, run_kept,
};
pub use run::{Options, bound_address_space, watch, work};

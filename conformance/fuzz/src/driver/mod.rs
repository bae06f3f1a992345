//! Runs targets for a given time or number of executions, with bounds on time and memory.
//!
//! One process does the work on several threads; a second process watches it. The workers record their position in a
//! file, so that the watcher knows which input caused an abort or a hang, can record that input, and can restart the
//! work after it.
//!
//! | file | content |
//! |---|---|
//! | `execute` | the input with a number, which is the same for the same seed; one execution, with its memory and time;
//! inputs that failed |
//! | `run` | the command line; the threads, their positions and their results; aborts and hangs; the final table |

mod execute;
mod run;

pub use execute::{
    Execution, Failure, FailureKind, Input, LARGEST_PEAK_BYTES, LONGEST, execute, input, kept, prepare_thread, run_kept,
};
pub use run::{Options, bound_address_space, watch, work};

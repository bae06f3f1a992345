//! Scripts of allocator operations, run on the core over a simulated device.
//!
//! The harness, the program that `conformance/oracle/pytorch_harness/` builds, runs the same script on PyTorch's own
//! allocator. Both print one JSON object per operation, and the lines must be equal. The harness defines the operations, the
//! answers and the meaning of each field in `conformance/oracle/pytorch_harness/src/oracle.cpp`.
//!
//! Three words exist only here, for the counterexamples of the conformance suite: `limit BYTES` (or `limit none`),
//! `process_events`, and `pool_set A B OPTION...`, which sets the options of `pool_create` without creating the pool.
//!
//! ```rust
//! use parkade::profile::Profile;
//! use parkade_replay::ops::{Addresses, OpsOptions, OpsRunner};
//!
//! let options = OpsOptions {
//!     settings: "max_split_size_mb:64".to_owned(),
//!     capacity_bytes: 1 << 30,
//!     addresses: Addresses::Up,
//!     profile: &Profile::PYTORCH_2_11,
//! };
//! let mut runner = OpsRunner::new(&options)?;
//! let answer = runner.run_line("alloc a 3000000").expect("the line holds an operation");
//! assert!(answer.starts_with(r#"{"i":0,"op":"alloc a 3000000","ok":1,"ptr":"c0+0""#));
//! assert!(answer.contains(r#"["cudaMalloc",0,20971520,"c0"]"#));
//! assert_eq!(runner.run_line("# only a comment"), None);
//! # Ok::<(), parkade::settings::SettingsError>(())
//! ```

mod session;
mod text;

pub use session::{Addresses, OpsOptions, OpsRunner};

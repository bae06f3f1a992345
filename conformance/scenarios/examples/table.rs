//! Prints docs/scenarios.md.
//!
//! ```text
//! cargo run -p parkade-scenarios --example table > docs/scenarios.md
//! ```
#![allow(clippy::print_stdout, reason = "its output is the page")]

fn main() {
    print!("{}", parkade_scenarios::docs_page());
}

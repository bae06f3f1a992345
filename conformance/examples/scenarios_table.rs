//! Prints docs/scenarios.md.
//!
//! ```text
//! cargo run -p parkade-conformance --example scenarios_table > docs/scenarios.md
//! ```
#![expect(clippy::print_stdout, reason = "this example prints the page")]

fn main() {
    print!("{}", parkade_conformance::scenarios::docs_page());
}

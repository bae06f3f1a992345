//! Reads rows of `oom_messages.py` and prints how many messages differ from PyTorch's.
#![expect(clippy::print_stdout, reason = "its output is for people to read")]
use std::io::BufRead as _;
include!("../tests/common/oom_row.rs");
fn main() {
    let (mut rows, mut different) = (0, 0);
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let (report, message) = oom_row(&line);
        rows += 1;
        if report.to_string() != message {
            different += 1;
            println!("ours {report}\nreal {message}\n{line}");
        }
    }
    println!("{rows} messages, {different} different");
}

//! `parkade diagnose --message` on the message of PyTorch's cudaMallocAsync backend.

use crate::common::call;
use crate::common::documented::check_text;
use serde_json::Value;

/// The message of PyTorch's cudaMallocAsync backend, whose driver pool is not affected by any setting of the other allocator.
#[test]
fn a_message_of_cuda_malloc_async_is_told_for_what_it_is() {
    let message = |allocated: &str, requested: &str, limit: &str| {
        format!(
            "torch.OutOfMemoryError: Allocation on device 5 would exceed allowed memory. (out of memory)\n\
             Currently allocated     : {allocated}\nRequested               : {requested}\nDevice limit            : 79.35 GiB\n\
             Free (according to CUDA): 27.19 MiB\nPyTorch limit (set by user-supplied memory fraction)\n\
             \x20                       : {limit}\n"
        )
    };
    let none = "17179869184.00 GiB";
    let first_line = message("", "", "").lines().next().expect("a line").to_owned();
    let messages = [
        (message("54.14 GiB", "686.41 MiB", none), 0, "held_by_others", "about 24.70 GiB of the device's 79.35 GiB"),
        (message("78.90 GiB", "686.41 MiB", none), 0, "capacity", "capacity: 79.57 GiB needed at once, 79.35 GiB available"),
        (
            message("39.50 GiB", "1.00 GiB", "40.00 GiB"),
            0,
            "limit",
            "it may use 40.00 GiB of the device's 79.35 GiB, holds 39.50 GiB",
        ),
        (
            message("79.33 GiB", "30.00 MiB", none),
            3,
            "undecided",
            "does not show the cause: its figures are missing, or too close",
        ),
        (first_line, 3, "undecided", "does not show the cause: its figures are missing, or too close"),
    ];
    let mut lines = String::new();
    for (text, code, verdict, said) in &messages {
        let run = call(&["diagnose", "--message", text]);
        assert_eq!((run.code, run.err.as_str()), (*code, ""), "{text}");
        let out = run.out.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(out.contains("cudaMallocAsync backend from device 5") && out.contains(said), "{said}: {out}");
        assert!(out.contains("there is no snapshot to replay"), "{out}");
        let json = call(&["diagnose", "--json", "--message", text]).out;
        let object: Value = serde_json::from_str(&json).expect("an object");
        assert_eq!(&object["verdict"], verdict, "{object}");
        lines.push_str(&json);
    }
    check_text("diagnose --message", &lines);
}

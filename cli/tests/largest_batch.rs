//! `parkade frontier`: table, JSON and CSV, exit codes, and arguments that it cannot use.

use crate::common::call;

/// A small model on a small device, under few policies.
const SMALL: [&str; 7] = ["frontier", "--model", "gpt2", "--policies", "pytorch,best-fit-remap", "--most-batch", "64"];

fn small(arguments: &[&str]) -> crate::common::Run {
    call(&[&SMALL[..], arguments].concat())
}

#[test]
fn the_table_says_what_fits_and_why_no_more() {
    let run = small(&["--devices", "1GB,8GB,7.2GiB"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines[0], "3 steps of training; 500.00 MiB of each device go to the driver's context");
    let heading = "gpt2 on 1GB (953.67 MiB): 0.12 billion parameters, half, adam, checkpointing none, sequence 1024";
    assert_eq!(lines[2], heading);
    let why = "  nothing fits: parameters, gradients and the optimizer's states alone need 943.39 MiB, 4.0 x the bytes of the parameters";
    assert!(lines[3].starts_with(&why[..70]) && lines[3].ends_with("4.0 x the bytes of the parameters"), "{}", lines[3]);
    assert!(lines[5].starts_with("gpt2 on 8GB (7.45 GiB): ") && lines[6].starts_with("  the load allows a batch of "));
    assert!(lines[7].starts_with("  policy "), "{}", lines[7]);
    assert!(lines[8].starts_with("  pytorch ") && lines[9].starts_with("  best-fit-remap "), "{}", run.out);
    assert!(run.out.contains("gpt2 on 7.2GiB (7.20 GiB)"), "{}", run.out);
    let searches = lines.last().expect("a line");
    assert!(searches.starts_with("the batch is the largest tried that fits; in ") && searches.contains(" of 4 searches a "));
}

#[test]
fn cards_have_what_a_program_sees() {
    let run = call(&["frontier", "--policies", "pytorch-expandable", "--no-scratch", "--most-batch", "2", "--json"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    let points = object["points"].as_array().expect("points");
    let devices: Vec<_> = points.iter().map(|point| point["device_bytes"].as_u64()).collect();
    assert_eq!(devices, [42_298_834_944, 81_082 << 20, 150_109_880_320].map(Some));
    // E6: a 7B model with Adam does not fit on the first, and does on the others.
    assert_eq!(points.iter().map(|point| point["batch"] != 0).collect::<Vec<_>>(), [false, true, true]);
    let run = small(&["--devices", "h100-80gb"]);
    assert!(run.out.contains("gpt2 on h100-80gb (79.18 GiB)"), "{}", run.out);
}

#[test]
fn json_and_csv_have_the_same_numbers() {
    let ways = [
        "--devices",
        "8GB",
        "--checkpointing",
        "none,layer,4",
        "--sequences",
        "512",
        "--precision",
        "fp32",
        "--optimizer",
        "sgd",
    ];
    let run = small(&[&ways[..], &["--json"]].concat());
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    assert_eq!((&object["context_bytes"], &object["steps"]), (&(500 << 20).into(), &3.into()));
    let points = object["points"].as_array().expect("points");
    assert_eq!(points.len(), 6);
    let csv = small(&[&ways[..], &["--csv"]].concat()).out;
    let rows: Vec<Vec<&str>> = csv.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows.len(), 7);
    for (point, row) in points.iter().zip(&rows[1..]) {
        for (place, name) in rows[0].iter().enumerate().take_while(|(_, name)| **name != "next") {
            let value = &point[*name];
            let shown = if value.is_null() { String::new() } else { value.to_string() };
            assert_eq!(value.as_str().map_or(shown, str::to_owned), row[place], "{name}");
        }
        assert_eq!(point["next"]["why"], row[rows[0].len() - 2]);
        assert_eq!((&point["precision"], &point["optimizer"], &point["sequence"]), (&"fp32".into(), &"sgd".into(), &512.into()));
        assert!(point["load_bytes"].as_u64() <= point["reserved_bytes"].as_u64(), "{point}");
        assert!(point["batch"].as_u64() <= point["bound_batch"].as_u64(), "{point}");
    }
    let of: Vec<_> = points.iter().map(|point| (point["checkpointing"].as_str(), point["policy"].as_str())).collect();
    assert_eq!(
        of[0..3],
        [(Some("none"), Some("pytorch")), (Some("none"), Some("best-fit-remap")), (Some("layer"), Some("pytorch"))]
    );
}

#[test]
fn nothing_that_fits_anywhere_is_a_failed_check() {
    let run = call(&["frontier", "--model", "7b", "--devices", "40GB", "--json"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    let points = object["points"].as_array().expect("points");
    assert!(points.iter().all(|point| point["next"]["why"] == "states" && point["batch"] == 0));
    // E6: four times the parameters' bytes.
    assert_eq!(points[0]["state_bytes"].as_u64(), points[0]["parameters"].as_u64().map(|parameters| 8 * parameters));
}

#[test]
fn bad_arguments_are_one_line() {
    for (arguments, why) in [
        (&["--policies", "none-such"][..], "there is no policy \"none-such\""),
        (&["--policies", "best-fit"], "there is no policy \"best-fit\": it is called best-fit-remap"),
        (&["--model", "9b"], "there is no model \"9b\""),
        (&["--model", "7b,width=5"], "a model has no \"width\""),
        (&["--model", "7b,layers=2,layers=2"], "layers is given twice"),
        (&["--model", "gpt2,heads=5"], "heads is 5; allowed: a divisor of hidden, which is 768"),
        (&["--accumulation", "1,2,1"], "--accumulation has 1 twice"),
        (&["--devices", "8GB,8000000000"], "--devices has 8000000000 bytes twice"),
        (&["--model", "7b,layers=0"], "layers is 0"),
        (&["--model", "7b,hidden=18446744073709551615"], "hidden is 18446744073709551615"),
        (&["--devices", "100MiB"], "no memory left beside a context"),
        (&["--devices", "18446744073709551615"], ""),
        (&["--most-batch", "0"], "--most-batch is 0"),
        (&["--most-batch", "9999999999"], "--most-batch is 9999999999: it can be 1 to 1048576"),
        (&["--accumulation", "1,4"], "--most-batch is 2, below --accumulation 4"),
        (&["--steps", "0"], "steps is 0"),
        (&["--accumulation", "0"], "--accumulation is 0"),
        (&["--sequences", "18446744073709551615"], "sequence is"),
        (&["--context", "18446744073709551615"], "no memory left beside a context"),
    ] {
        let usual = [["--devices", "8GB"], ["--most-batch", "2"], ["--policies", "pytorch"], ["--model", "gpt2"]];
        let rest = usual.iter().filter(|usual| usual[0] != arguments[0]).flatten().copied();
        let run = call(&["frontier"].into_iter().chain(arguments.iter().copied()).chain(rest).collect::<Vec<_>>());
        if why.is_empty() {
            assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
            continue;
        }
        assert!(run.err.contains(why) && run.err.lines().count() == 1, "{arguments:?}: {}", run.err);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{arguments:?}");
    }
    for arguments in [["--devices", "eight"], ["--precision", "fp8"], ["--checkpointing", "some"], ["--optimizer", "lion"]] {
        let run = call(&[&["frontier"], &arguments[..]].concat());
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{arguments:?}: {}", run.err);
    }
    for device in ["eight", "V100"] {
        let run = small(&["--json", "--devices", device]);
        let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
        let said = object["error"].as_str().expect("a line");
        assert!(
            run.code == 2 && said.contains("is not a size") && said.contains("cards by name: A100-40GB, H100-80GB"),
            "{said}"
        );
        assert!(run.err.starts_with("error: ") && !said.contains('\n'), "{}", run.err);
    }
    let run = small(&["--json", "--devices", "1"]);
    assert!(run.code == 2 && run.out.starts_with("{\"error\":"), "{}", run.out);
}

//! `parkade sweep --largest-batch`: table, JSON and CSV, exit codes, and arguments that it cannot use.

use crate::common::{Folder, call};

/// A small model with scratch memory, for three steps.
const MODEL: &str = "transformer:preset=gpt2,mixed=on,steps=3";
/// A small model on a small device, under few policies.
const SMALL: [&str; 8] = ["sweep", "--largest-batch", "-w", MODEL, "--policies", "pytorch,best-fit-remap", "--most-batch", "64"];

fn small(arguments: &[&str]) -> crate::common::Run {
    call(&[&SMALL[..], arguments].concat())
}

fn points(run: &crate::common::Run) -> Vec<serde_json::Value> {
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    object["points"].as_array().expect("points").clone()
}

#[test]
fn the_table_says_what_fits_and_why_no_more() {
    let run = small(&["-c", "1GB,8GB,7.2GiB"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{}", run.out);
    let lines: Vec<&str> = run.out.lines().collect();
    assert_eq!(lines[0], "the driver's context takes 500.00 MiB of each device");
    assert_eq!(lines[2], format!("{MODEL} on 1GB (953.67 MiB): 0.12 billion parameters"));
    let why = "  nothing fits: parameters, gradients and the optimizer's states alone need 943.39 MiB, 4.0 x the bytes of the parameters";
    assert!(lines[3].starts_with(&why[..70]) && lines[3].ends_with("4.0 x the bytes of the parameters"), "{}", lines[3]);
    assert!(lines[5].contains(" on 8GB (7.45 GiB): ") && lines[6].starts_with("  the load allows a batch of "));
    assert!(lines[7].starts_with("  policy "), "{}", lines[7]);
    assert!(lines[8].starts_with("  pytorch ") && lines[9].starts_with("  best-fit-remap "), "{}", run.out);
    assert!(run.out.contains(" on 7.2GiB (7.20 GiB)"), "{}", run.out);
    let searches = lines.last().expect("a line");
    assert!(searches.starts_with("the batch is the largest tried that fits; in ") && searches.contains(" of 4 searches a "));
    let tables = small(&["-c", "8GB", "--markdown"]);
    assert!(tables.out.contains("| policy | batch | reserved | live | the next one |"), "{}{}", tables.out, tables.err);
}

#[test]
fn the_old_name_says_the_new_one() {
    let run = call(&["frontier", "--model", "7b"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.starts_with("error: `parkade frontier` is now `parkade sweep --largest-batch`: "), "{}", run.err);
    let run = call(&["frontier", "--json"]);
    assert!(run.code == 2 && run.out.starts_with("{\"error\":\"`parkade frontier` is "), "{}", run.out);
}

#[test]
fn all_are_the_trainings_of_the_catalogue() {
    let run = call(&["sweep", "--largest-batch", "-w", "all,gpt2", "-p", "pytorch", "-c", "600MiB", "--json"]);
    let names: Vec<String> = points(&run).iter().filter_map(|point| point["workload"].as_str().map(str::to_owned)).collect();
    assert!(run.code == 1 && names.len() == 10 && names[0] == "gpt2", "{names:?}");
}

#[test]
fn cards_have_what_a_program_sees() {
    let model = "transformer:preset=7b,steps=3";
    let run = call(&["sweep", "--largest-batch", "-w", model, "-p", "pytorch-expandable", "--most-batch", "2", "--json"]);
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let points = points(&run);
    let devices: Vec<_> = points.iter().map(|point| point["device_bytes"].as_u64()).collect();
    assert_eq!(devices, [42_298_834_944, 81_082 << 20, 150_109_880_320].map(Some));
    // E6: a 7B model with Adam does not fit on the first, and does on the others.
    assert_eq!(points.iter().map(|point| point["batch"] != 0).collect::<Vec<_>>(), [false, true, true]);
    let run = small(&["-c", "h100-80gb"]);
    assert!(run.out.contains(" on h100-80gb (79.18 GiB)"), "{}", run.out);
}

#[test]
fn json_and_csv_have_the_same_numbers() {
    let folder = Folder::new("largest-batch-csv");
    let file = format!("{}/points.csv", folder.path());
    let models = ["none", "layer", "4"]
        .map(|way| format!("transformer:preset=gpt2,precision=fp32,optimizer=sgd,sequence=512,checkpointing={way},steps=3"));
    let asked =
        ["sweep", "--largest-batch", "-w", &models.join(","), "-p", "pytorch,best-fit-remap", "--most-batch", "64", "-c", "8GB"];
    let run = call(&[&asked[..], &["--json", "--csv", &file]].concat());
    assert_eq!((run.code, run.err.as_str()), (0, ""));
    let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
    assert_eq!((&object["context_bytes"], &object["most_batch"]), (&(500 << 20).into(), &64.into()));
    let points = points(&run);
    assert_eq!(points.len(), 6);
    let mut reader = csv::Reader::from_path(&file).expect("a file");
    let heads = reader.headers().expect("heads").clone();
    let rows: Vec<csv::StringRecord> = reader.records().map(|row| row.expect("a row")).collect();
    assert_eq!(rows.len(), 6);
    for (point, row) in points.iter().zip(&rows) {
        for (place, name) in heads.iter().enumerate().take_while(|(_, name)| *name != "next") {
            let value = &point[name];
            let shown = if value.is_null() { String::new() } else { value.to_string() };
            assert_eq!(value.as_str().map_or(shown, str::to_owned), row[place], "{name}");
        }
        assert_eq!(point["next"]["why"], row[heads.len() - 2]);
        assert!(point["load_bytes"].as_u64() <= point["reserved_bytes"].as_u64(), "{point}");
        assert!(point["batch"].as_u64() <= point["bound_batch"].as_u64(), "{point}");
    }
    let of: Vec<_> = points.iter().map(|point| (point["workload"].as_str(), point["policy"].as_str())).collect();
    let [none, layer, _] = &models;
    assert_eq!(
        of[0..3],
        [(none, "pytorch"), (none, "best-fit-remap"), (layer, "pytorch")].map(|(m, p)| (Some(m.as_str()), Some(p)))
    );
}

#[test]
fn nothing_that_fits_anywhere_is_a_failed_check() {
    let run = call(&["sweep", "--largest-batch", "-c", "40GB", "--json"]);
    assert_eq!(run.code, 1, "{}", run.err);
    let points = points(&run);
    assert!(points.iter().all(|point| point["next"]["why"] == "states" && point["batch"] == 0));
    // E6: four times the parameters' bytes.
    assert_eq!(points[0]["state_bytes"].as_u64(), points[0]["parameters"].as_u64().map(|parameters| 8 * parameters));
}

#[test]
fn bad_arguments_are_one_line() {
    let of = |options: &str| format!("transformer:preset=gpt2,{options}");
    let [heads, twice, layers, hidden, micro, none, steps, sequence] = [
        "heads=5",
        "layers=2,layers=2",
        "layers=0",
        "hidden=18446744073709551615",
        "accumulation=4",
        "accumulation=0",
        "steps=0",
        "sequence=18446744073709551615",
    ]
    .map(of);
    for (arguments, why) in [
        (&["-p", "none-such"][..], "there is no policy \"none-such\""),
        (&["-p", "best-fit"], "there is no policy \"best-fit\": it is called best-fit-remap"),
        (&["-p", ","], "no policies"),
        (&["-w", "transformer:preset=9b"], "preset is 9b; allowed: gpt2, "),
        (&["-w", "transformer:preset=7b,width=5"], "transformer has no option width"),
        (&["-w", "mlp:batch=8"], "\"mlp:batch=8\" does not train a transformer"),
        (&["-w", "no-such-file.pickle"], "does not train a transformer"),
        (&["-w", ""], "no trainings"),
        (&["-w", "gpt2:prealloc=1GiB"], "prealloc is 1073741824"),
        (&["-w", &twice], "layers is given twice"),
        (&["-w", &heads], "heads is 5; allowed: a divisor of hidden, which is 768"),
        (&["-w", &layers], "layers is 0"),
        (&["-w", &hidden], "hidden is 18446744073709551615"),
        (&["-w", &micro], "batches up to 2 cannot be searched"),
        (&["-w", &none], "accumulation is 0"),
        (&["-w", &steps], "steps is 0"),
        (&["-w", &sequence], "sequence is"),
        (&["-c", "100MiB"], "no memory left after a context"),
        (&["-c", "18446744073709551615"], ""),
        (&["-c", ","], "no devices"),
        (&["--most-batch", "0"], "batches up to 0 cannot be searched"),
        (&["--most-batch", "9999999999"], "choose at most 1048576"),
        (&["--context", "18446744073709551615"], "no memory left after a context"),
        (&["--force"], "--force has nothing to overwrite"),
    ] {
        let usual = [["-c", "8GB"], ["--most-batch", "2"], ["-p", "pytorch"], ["-w", "transformer:preset=gpt2,steps=1"]];
        let rest = usual.iter().filter(|usual| usual[0] != arguments[0]).flatten().copied();
        let run =
            call(&["sweep", "--largest-batch"].into_iter().chain(arguments.iter().copied()).chain(rest).collect::<Vec<_>>());
        if why.is_empty() {
            assert_eq!(run.code, 0, "{arguments:?}: {}", run.err);
            continue;
        }
        assert!(run.err.contains(why) && run.err.lines().count() == 1, "{arguments:?}: {}", run.err);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{arguments:?}");
    }
    for device in ["eight", "V100", "1.05"] {
        let run = small(&["--json", "-c", device]);
        let object: serde_json::Value = serde_json::from_str(&run.out).expect("one JSON object");
        let said = object["error"].as_str().expect("a line");
        assert!(run.code == 2 && said.contains("cards by name: A100-40GB, H100-80GB") && !said.contains('\n'), "{said}");
    }
}

/// Options that apply only to the other kind of sweep are refused.
#[test]
fn options_of_the_other_question_are_refused() {
    for option in [
        &["--seeds", "2"][..],
        &["--prealloc", "0.5"],
        &["--bounds", "0"],
        &["--addresses", "driver"],
        &["--shard", "1/2"],
        &["-o", "rows.jsonl"],
        &["--baseline", "pytorch"],
        &["--html", "-"],
        &["--list"],
    ] {
        let run = small(option);
        assert!(
            run.code == 2 && run.err.contains("--largest-batch") && run.err.contains(option[0].trim_start_matches("-o")),
            "{}",
            run.err
        );
    }
    let run = call(&["sweep", "--most-batch", "3"]);
    assert!(run.code == 2 && run.err.contains("--largest-batch"), "{}", run.err);
}

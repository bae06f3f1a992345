//! `parkade sweep --series`: the heap over the course of each run.

use std::collections::BTreeMap;
use std::fs;

use crate::common::{Folder, call};

const SWEEP: [&str; 11] = [
    "sweep",
    "-w",
    "mlp:depth=4,batch=8,steps=4",
    "-p",
    "pytorch,bfc,bfc:kind=xla",
    "--seeds",
    "1",
    "--bounds",
    "0",
    "-c",
    "1.1",
];

type Line = BTreeMap<String, String>;

fn lines(text: &str) -> Vec<Line> {
    let mut reader = csv::Reader::from_reader(text.as_bytes());
    reader.deserialize().map(|line| line.expect("a line")).collect()
}

fn number(line: &Line, column: &str) -> u64 {
    line[column].parse().unwrap_or_else(|error| panic!("{column}: {error}: {line:?}"))
}

#[test]
fn a_series_has_every_peak_and_its_parts_add_up() {
    let folder = Folder::new("series");
    let (series, rows, page) =
        (format!("{}/series.csv", folder.path()), format!("{}/rows.csv", folder.path()), format!("{}/page.html", folder.path()));
    let run = call(&[&SWEEP[..], &["--series", &series, "--csv", &rows, "--html", &page]].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    let text = fs::read_to_string(&series).expect("a series");
    let documented = include_str!("../../docs/studies.md");
    let header = text.lines().next().expect("a header");
    assert!(documented.contains(&format!("\n{header}\n")), "docs/studies.md has no line {header}");
    let of = |policy: &str| -> Vec<Line> { lines(&text).into_iter().filter(|line| line["policy"] == policy).collect() };
    let rows = lines(&fs::read_to_string(&rows).expect("rows"));
    for policy in ["pytorch", "bfc"] {
        let found = of(policy);
        let (all, parts): (Vec<&Line>, Vec<&Line>) = found.iter().partition(|line| line["pool"].is_empty());
        let row = rows.iter().find(|row| row["policy"] == policy && row["capacity"] == "plenty").expect("a row");
        let most = all.iter().map(|line| number(line, "reserved_bytes")).max();
        assert_eq!(most, Some(number(row, "peak_reserved_bytes")), "{policy}");
        assert!(all.len() <= 1001, "{}", all.len());
        let of_rest = |line: &&&Line| line["pool"] == "0" && line["stream"] == "0";
        let mut collections: Vec<&str> = parts.iter().filter(of_rest).map(|line| line["collection"].as_str()).collect();
        collections.sort_unstable();
        collections.dedup();
        // TensorFlow's policy serves all requests from one collection.
        assert_eq!(collections, if policy == "pytorch" { &["large", "small"][..] } else { &["large"] }, "{policy}");
        for line in &all {
            for column in ["reserved_bytes", "live_bytes", "holes"] {
                let of_event = parts.iter().filter(|part| part["event"] == line["event"]);
                assert_eq!(of_event.map(|part| number(part, column)).sum::<u64>(), number(line, column), "{policy} {column}");
            }
        }
    }
    assert!(of("bfc:kind=xla").is_empty(), "it takes a share of all memory");
    let page = fs::read_to_string(&page).expect("a page");
    assert!(page.contains("Largest hole over time") && page.contains("Holes over time"));
    let every = call(&[&SWEEP[..], &["--series", "-", "--series-step", "1", "--json"]].concat());
    assert_eq!(every.code, 2, "JSON and the series cannot both be on standard output: {}", every.out);
    let every = call(&[&SWEEP[..], &["--series", &series, "--series-step", "1", "--force"]].concat());
    assert_eq!(every.code, 0, "{}", every.err);
    let text = fs::read_to_string(&series).expect("a series");
    let events: Vec<u64> = lines(&text)
        .iter()
        .filter(|line| line["policy"] == "bfc" && line["pool"].is_empty())
        .map(|line| number(line, "event"))
        .collect();
    assert!(events.iter().copied().eq(0..events.len() as u64) && events.len() > 100, "a point for each event");
}

#[test]
fn a_page_without_a_series_has_no_pictures_of_holes() {
    let folder = Folder::new("no-series");
    let page = format!("{}/page.html", folder.path());
    assert_eq!(call(&[&SWEEP[..], &["--html", &page]].concat()).code, 0);
    assert!(!fs::read_to_string(&page).expect("a page").contains("Holes over time"));
}

#[test]
fn a_series_of_a_part_is_refused() {
    let folder = Folder::new("series-part");
    let (series, rows) = (format!("{}/series.csv", folder.path()), format!("{}/rows", folder.path()));
    let run = call(&[&SWEEP[..], &["--series", &series, "--shard", "1/2", "-o", &rows]].concat());
    assert!(run.code == 2 && run.err.contains("leave --shard out"), "{}", run.err);
    assert!(!fs::exists(&rows).expect("a folder"));
}

#[test]
fn a_packing_that_is_cut_is_marked() {
    let sweep = ["sweep", "-w", "gpt2", "-p", "pytorch", "-c", "1.1", "--json", "--bounds"];
    let converged = |steps: &str| {
        let run = call(&[&sweep[..], &[steps]].concat());
        let object: serde_json::Value = serde_json::from_str(run.out.trim_end()).expect("JSON");
        object["bounds"][0]["packing_converged"].clone()
    };
    assert_eq!((converged("1"), converged("0")), (false.into(), serde_json::Value::Null));
    let text = call(&["sweep", "-w", "gpt2", "-p", "pytorch", "-c", "1.1", "--bounds", "1", "--all"]).out;
    assert!(text.contains("not converged in 1 workload"), "{text}");
}

#[test]
fn numbered_columns_are_named_above_and_the_excess_is_that_of_stats() {
    let text = call(&[&SWEEP[..7], &["-c", "1.1", "--bounds", "2000000", "--all"]].concat()).out;
    let key = "Columns: 1 pytorch, 2 bfc, 3 bfc:kind=xla\n";
    for title in ["Smallest memory over LOAD\n", "First request beyond the packing\n"] {
        assert!(text.contains(&format!("{title}{key}")), "{title}: {text}");
    }
    assert!(text.contains("Driver time, 1.1 LOAD: means") && text.contains("ratio to"), "{text}");
    let asked = ["stats", "--json", "-w", "mlp:depth=4,batch=8,steps=4", "--policy", "bfc", "--bounds", "2000000"];
    let stats: serde_json::Value = serde_json::from_str(call(&asked).out.trim_end()).expect("JSON");
    let event = stats["runs"][0]["packing"]["first_excess"]["event"].as_u64().expect("an excess");
    let after = text.split_once("First request beyond the packing").expect("a table").1;
    assert!(after.contains(&format!("{event}: ")), "event {event}: {after}");
    let help = |command: &str| call(&[command, "--help"]).out;
    assert!(["stats", "report", "sweep"].iter().all(|command| help(command).contains("[default: 100000000]")));
}

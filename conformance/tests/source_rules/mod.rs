//! Tidiness rules against problems that creep into a code base unnoticed.

use std::path::{Path, PathBuf};

use parkade::profile::{RELEASES, Release};
use parkade::stats::Stats;
use parkade_research::workload::CATALOGUE;

mod citations;
mod claims;
mod imports;
mod pages;
mod source;

use source::{code_of, dependencies, files, impurities, missing_attributes};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn the_core_is_pure() {
    let sources: Vec<PathBuf> =
        files(&root().join("src")).into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs")).collect();
    assert!(sources.len() > 20, "the core's sources exist");
    for path in sources {
        // A separate module that is only compiled for tests is marked as such where it is declared.
        if path.ends_with("tests.rs") {
            continue;
        }
        assert_eq!(impurities(&read(&path)), [""; 0], "{}", path.display());
    }
    assert_eq!(missing_attributes(&read(&root().join("src/lib.rs"))), [""; 0]);
}

#[test]
fn the_core_depends_on_nothing() {
    assert_eq!(dependencies(&read(&root().join("Cargo.toml"))), [""; 0]);
}

/// Returns the root files of all crates.
fn crate_roots() -> Vec<PathBuf> {
    let roots = files(&root()).into_iter().filter(|path| path.ends_with("src/lib.rs") || path.ends_with("src/main.rs"));
    let roots: Vec<PathBuf> = roots.collect();
    assert!(roots.len() > 10, "{roots:?}");
    roots
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let circles: Vec<Vec<PathBuf>> =
        crate_roots().iter().flat_map(|root| imports::circles(&imports::Crate::read(root).uses())).collect();
    let named: Vec<Vec<_>> =
        circles.iter().map(|circle| circle.iter().map(|file| file.strip_prefix(root()).unwrap_or(file)).collect()).collect();
    assert!(named.is_empty(), "{named:#?}");
}

/// Checks that a test is in the file that it tests, and that no file is split with `#[path]`.
#[test]
fn no_source_file_is_included_by_its_path() {
    let sources = files(&root()).into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let is_source = |path: &PathBuf| path.components().any(|part| part.as_os_str() == "src");
    // Code that is shared by the tests of two crates, or by both kinds of tests, has its own
    // folder.
    let cuts = |path: &PathBuf| read(path).replace("#[path = \"../tests/common/", "").contains("#[path = ");
    let cut: Vec<PathBuf> = sources.filter(is_source).filter(cuts).collect();
    assert!(cut.is_empty(), "{cut:#?}");
}

/// Returns every text in the repository whose name has one of these endings, with its path.
fn texts(endings: &[&str]) -> Vec<(PathBuf, String)> {
    let has_ending = |path: &PathBuf| path.extension().is_some_and(|own| endings.iter().any(|ending| own == *ending));
    files(&root()).into_iter().filter(has_ending).map(|path| (path.clone(), read(&path))).collect()
}

#[test]
fn every_cited_section_of_the_specification_is_there() {
    let spec = read(&root().join("docs/spec.md"));
    let sections = citations::sections(&spec);
    let mut cited = 0;
    for (path, text) in texts(&["rs", "md", "py", "cpp", "sh"]) {
        for (line, section) in citations::cited_sections(&text) {
            assert!(
                sections.contains(section),
                "{}:{line} cites spec {section}, which docs/spec.md does not have",
                path.display()
            );
            cited += 1;
        }
    }
    assert!(cited > 200, "{cited}");
}

#[test]
fn every_cited_fact_is_there() {
    let page = read(&root().join("docs/driver-facts.md"));
    let headings = citations::headings(&page);
    let mut cited = 0;
    for (path, text) in texts(&["rs"]).into_iter().filter(|(path, _)| !path.to_string_lossy().contains("tests/source_rules")) {
        for (line, fact) in citations::cited_facts(&text) {
            let is_there = headings.iter().any(|heading| fact.trim_start_matches(['"', '`']).starts_with(heading));
            assert!(is_there, "{}:{line} cites facts: {fact}, which docs/driver-facts.md does not have", path.display());
            cited += 1;
        }
    }
    assert!(cited > 20, "{cited}");
}

#[test]
fn every_link_between_pages_leads_somewhere() {
    let mut linked = 0;
    for (path, text) in texts(&["md"]) {
        let broken = pages::broken_links(&text, &path);
        assert!(broken.is_empty(), "{}: {broken:?}", pages::name(&path, &root()).display());
        linked += text.matches(".md#").count();
    }
    assert!(linked > 10, "{linked} links to headings");
}

#[test]
fn every_path_that_a_page_names_is_there() {
    // The changelog names paths that no longer exist, and the specification names PyTorch's paths.
    let ours = |path: &PathBuf| !path.ends_with("CHANGELOG.md") && !path.ends_with("docs/spec.md");
    for (path, text) in texts(&["md"]).into_iter().filter(|(path, _)| ours(path)) {
        let missing = pages::missing_paths(&text, path.parent().expect("a folder"), &root());
        assert!(missing.is_empty(), "{} names {missing:?}", pages::name(&path, &root()).display());
    }
}

#[test]
fn every_python_program_has_help() {
    let programs: Vec<_> = texts(&["py"]).into_iter().filter(|(_, text)| text.contains("if __name__ == \"__main__\"")).collect();
    assert!(programs.len() > 15, "{}", programs.len());
    for (path, text) in programs {
        let has_help = text.contains("argparse.ArgumentParser(") || text.contains("unittest.main(");
        assert!(has_help, "{} has no --help", path.display());
    }
}

#[test]
fn broken_links_and_missing_paths_are_caught() {
    let page = "# One `two`\n## 2. What is (it)?\n```\n# no heading\n```\n# [Three](https://x), four_five\n# One two\n#none\n";
    assert_eq!(pages::anchors(page), ["one-two", "2-what-is-it", "three-four_five", "one-two-1"]);
    let here = root().join("page.md");
    let broken = |links: &str| pages::broken_links(&format!("{page}{links}"), &here);
    assert_eq!(broken("[a](#one-two) [b](#2-what-is-it) [c](README.md#licence) [d](https://x#y) [e](src)"), [""; 0]);
    let wrong = "[a](#two) [b](nowhere.md#x) [c](README.md#nothing-of-the-kind) [d](nowhere)";
    assert_eq!(broken(wrong), ["#two", "nowhere.md#x", "README.md#nothing-of-the-kind", "nowhere"]);
    let missing = |text: &str| pages::missing_paths(text, &root().join("cli"), &root());
    assert_eq!(
        missing("`cli/src/main.rs` `tests/json.rs` `commands/` `1/3` `a/b` `nowhere/NAME.rs` `target/x/`, `table.rs`"),
        [""; 0]
    );
    assert_eq!(missing("`cli/src/commands/report/web/`, `sweep/grids.rs`"), [""; 0], "beside one that was named before");
    assert_eq!(missing("`cli/src/commands/report/web/`\n# Next\n`sweep/grids.rs`"), ["sweep/grids.rs"]);
    assert_eq!(
        missing("`cli/src/man.rs` `docs/nothing` `nowhere/` `a/b.py`"),
        ["cli/src/man.rs", "docs/nothing", "nowhere/", "a/b.py"]
    );
    assert_eq!(missing("```\n`nowhere/`\n```\n"), [""; 0], "code");
}

#[test]
fn citations_are_recognised() {
    let page = "# Title\n## 2. Path\n### 2.10.1 More\ntext 3.1\n";
    assert_eq!(citations::sections(page).into_iter().collect::<Vec<_>>(), ["2", "2.10.1"]);
    let text = "a (spec 2.4). inspec 3.1\nspec 10.18 and spec 5.";
    assert_eq!(citations::cited_sections(text), [(1, "2.4"), (2, "10.18"), (2, "5")]);
    assert_eq!(citations::cited_facts("x // facts: Holes, first\n// row\nlet facts: u64;"), [(1, "Holes, first row".to_owned())]);
}

#[test]
fn no_file_knows_the_machine() {
    // These are assembled here so that this file does not contain them.
    let machine: Vec<String> = ["work", "root", "tmp"].iter().map(|folder| format!("/{folder}/")).collect();
    for file in files(&root()).into_iter().chain(files(&root().join(".ci"))) {
        let Ok(text) = String::from_utf8(std::fs::read(&file).unwrap_or_default()) else { continue };
        for path in &machine {
            assert!(!text.contains(path.as_str()), "{} names {path}, which is a path on one machine", file.display());
        }
    }
}

#[test]
fn no_file_says_where_to_fetch_the_software_of_others() {
    let mut cited = 0;
    for file in files(&root()).into_iter().chain(files(&root().join(".ci"))) {
        let Ok(text) = String::from_utf8(std::fs::read(&file).unwrap_or_default()) else { continue };
        let fetches = claims::fetches(&text);
        assert!(
            fetches.is_empty(),
            "{}: {fetches:?}: name the package and its version instead",
            pages::name(&file, &root()).display()
        );
        cited += text.matches("://").count();
    }
    assert!(cited > 100, "{cited}");
}

#[test]
fn recipes_for_fetching_are_caught() {
    let at = |address: &str| format!("see [x](https:/{}{address}) and", "/");
    for cited in ["github.com/a/b/issues/1#issuecomment", "docs.pytorch.org", "www.w3.org/2000/svg", "x", "x#y"] {
        assert_eq!(claims::fetches(&at(cited)), [""; 0]);
    }
    for host in ["archive.example.org/pool/x.tar.xz", "github.com/a/b.git", "github.com/a/b/archive/v1.tar.gz", "raw.example.com"]
    {
        assert_eq!(claims::fetches(&at(host)), [host]);
    }
    let command = ["git", "clone"].join(" ");
    assert_eq!(claims::fetches(&format!("{command} --depth 1 REPOSITORY")), [command]);
    assert_eq!(claims::fetches("a clone of https:// with pip download"), [""; 0]);
}

#[test]
fn pages_have_one_sentence_a_line_and_no_long_line() {
    let of_page = |(path, text): (PathBuf, String)| (pages::name(&path, &root()), claims::crowded_lines(&text));
    let crowded: Vec<_> = texts(&["md"]).into_iter().map(of_page).filter(|(_, lines)| !lines.is_empty()).collect();
    assert!(crowded.is_empty(), "{crowded:#?}");
}

#[test]
fn crowded_lines_are_caught() {
    let long = "x ".repeat(100);
    for line in [&*format!("{long}y"), "One. Two.", "- `a`. `b`", "3. **One.** Two", "(a) it? [C](d.md)", "A GPU. **It** is."] {
        assert_eq!(claims::crowded_lines(&format!("# T\n{line}\n")).len(), 1, "{line}");
    }
    for line in [
        &*format!("[x](y{long})"),
        &format!("| {long} |"),
        &format!("```\n{long}\n```"),
        "2. One (a. B) `c. D` e.g. f.",
        "D. Knuth",
    ] {
        assert_eq!(claims::crowded_lines(line), [""; 0], "{line}");
    }
}

#[test]
fn numbers_that_pages_state_are_right() {
    let lines = |path: &str| read(&root().join(path)).lines().count();
    let recordings = std::fs::read_dir(root().join("conformance/recordings")).expect("a folder").flatten();
    let recordings = recordings.filter(|entry| entry.file_name().to_string_lossy().ends_with(".pickle.xz")).count();
    let series = |release: &&Release| release.name.rsplit_once('.').map_or(release.name, |(series, _)| series);
    let series = RELEASES.iter().collect::<Vec<_>>().chunk_by(|a, b| series(a) == series(b)).count();
    let operations =
        claims::column(&read(&root().join("docs/releases.md")), "| operations compared |", 2).iter().sum::<u64>() / 1_000_000;
    let workloads =
        claims::stated(&read(&root().join("docs/numbers.md")), "The second table has one row for each of the ", " workloads");
    let keys = Stats::default().entries().len();
    for (page, before, after, right) in [
        ("README.md", "with a complete ", "-line policy", lines("conformance/tests/own_policy.rs")),
        ("README.md", "reproduced to the byte; ", " of them are in this repository", recordings),
        ("README.md", "no difference in ", " million random operations", usize::try_from(operations).expect("small")),
        ("README.md", "random operations over ", " series of releases", series),
        ("README.md", "`sweep` compares policies on ", " workloads", workloads.expect("numbers.md says it")),
        ("docs/writing-a-backend.md", "It is complete: a device of ", " lines", lines("conformance/tests/own_backend.rs")),
        ("CHANGELOG.md", "and a catalogue of ", " workloads", CATALOGUE.len()),
        ("docs/fidelity.md", "then all ", " keys of `memory_stats()`", keys),
    ] {
        assert_eq!(claims::stated(&read(&root().join(page)), before, after), Some(right), "{page}: {before}...{after}");
    }
}

#[test]
fn only_the_folders_that_contributing_names_have_unsafe_code() {
    let page = read(&root().join("CONTRIBUTING.md"));
    let line = page.lines().find(|line| line.starts_with("- **unsafe code** is in ")).expect("the rule");
    let named: Vec<PathBuf> = line.split('`').skip(1).step_by(2).map(|folder| root().join(folder)).collect();
    let unsafe_files: Vec<PathBuf> =
        texts(&["rs"]).into_iter().filter(|(_, text)| source::has_unsafe(text)).map(|(path, _)| path).collect();
    let elsewhere: Vec<_> = unsafe_files.iter().filter(|path| !named.iter().any(|folder| path.starts_with(folder))).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:#?}");
    for folder in named {
        assert!(unsafe_files.iter().any(|path| path.starts_with(&folder)), "{} has no unsafe code", folder.display());
    }
}

/// The harness's fake driver runs PyTorch's bridge next to PyTorch, but CI does not run that comparison.
#[test]
fn the_fake_driver_has_every_function_that_the_cuda_device_needs() {
    let table = read(&root().join("gpu/src/driver/table.rs"));
    let fake = read(&root().join("conformance/oracle/pytorch_harness/src/fakecuda.cpp"));
    let (_, table) = table.split_once("driver_table! {\n").expect("there is a table of functions");
    let names: Vec<&str> = table.lines().filter_map(|line| line.strip_prefix("    cu")?.split('(').next()).collect();
    assert!(names.len() > 40, "{names:?}");
    for name in names {
        assert!(fake.contains(&format!("cu{name}(")) || fake.contains(&format!("(cu{name})")), "the fake driver has no cu{name}");
    }
}

// ---- the checker itself

#[test]
fn what_must_not_be_is_caught() {
    for sample in [
        "extern crate std;",
        "use std::collections::BTreeMap;",
        "fn f() { let m: ::std::vec::Vec<u8> = x; }",
        "unsafe { f() }",
        "use hashbrown::HashMap;",
        "let set = HashSet::new();",
        "type S = RandomState;",
        "let now = Instant::now();",
        "let t = core::time::SystemTime;",
        "let x = rand::random();",
        "fn f<'a>(x: &'a str) { unsafe {} }",
        "let c = '\"'; unsafe {} // \"",
        "let c = '\\''; unsafe {}",
        "let s = r#\"a \" b\"#; unsafe {}",
        "let s = \"\\\\\"; unsafe {}",
        "/* /* nested */ */ unsafe {}",
        "#[cfg(test)]\nmod tests { fn f() {} }\nfn g() { unsafe {} }",
        "#[cfg(test)]\nmod tests;\nfn g() { unsafe {} }",
    ] {
        assert_eq!(impurities(sample).len(), 1, "{sample}: {:?}", impurities(sample));
    }
    assert_eq!(impurities("fn f() {}\n\nunsafe fn g() {}"), ["line 3: \"unsafe\": the core has no unsafe code"]);
    assert_eq!(impurities("/* a\nb */\n\"c\nd\";\n#[cfg(test)]\nmod t {\n}\nunsafe").first().map(|l| &l[..7]), Some("line 8:"));
}

#[test]
fn what_only_looks_like_it_is_not() {
    for sample in [
        "// std:: and unsafe are talked about",
        "//! HashMap",
        "/* Instant\n SystemTime */",
        "let s = \"std::unsafe HashMap\";",
        "let s = r\"std::\";",
        "#[cfg(test)]\nmod tests { use std::vec::Vec; mod inner { fn f() { unsafe {} } } }",
        "#![forbid(unsafe_code)]",
        "let operand = strand; let brand_new = 1;",
        "let instant = 1; my_std::f();",
    ] {
        assert_eq!(impurities(sample), [""; 0], "{sample}");
    }
    assert_eq!(code_of("a // b\nc").trim_end(), "a  \nc");
}

#[test]
fn missing_attributes_and_dependencies_are_caught() {
    assert_eq!(missing_attributes("#![no_std]\n#![forbid(unsafe_code)]"), [""; 0]);
    assert_eq!(missing_attributes("// #![no_std]\n#![forbid(unsafe_code)]"), ["#![no_std]"]);
    assert_eq!(missing_attributes(""), ["#![no_std]", "#![forbid(unsafe_code)]"]);
    assert_eq!(dependencies("[dependencies]\n\n[dev-dependencies]\nproptest = \"1\""), [""; 0]);
    assert_eq!(dependencies("[dependencies]\nlibc = \"1\"\nserde.workspace = true"), ["libc", "serde"]);
    assert_eq!(dependencies("[dependencies.libc]\nversion = \"1\""), ["[dependencies.libc]"]);
    assert_eq!(dependencies("[target.'cfg(unix)'.dependencies]\nlibc = \"1\""), ["[target.'cfg(unix)'.dependencies]"]);
}

//! The usual invocations of every command, in a folder with files for them.

use std::process::Command;

use super::{Folder, call, died_of_a_hole, diverging, good, parkade, reuses_a_part};

/// The arguments, between blanks. `NEW` is a file that does not exist yet.
pub(crate) const USUAL: &[&str] = &[
    "--help",
    "-h",
    "--version",
    "-V",
    "help",
    "help advise",
    "export --help",
    "sweep --version",
    "nonsense",
    "advise --jsn",
    "stats --json --nosuch",
    "verify good.pickle",
    "verify odd.pickle",
    "verify odd.pickle --json",
    "verify missing.pickle",
    "verify missing.pickle --json",
    "verify good.pickle odd.pickle missing.pickle",
    "verify ranks",
    "verify ranks --json",
    "replay good.pickle",
    "replay part.pickle --limit 140MiB --settings roundup_power2_divisions:1",
    "replay good.pickle --json --settings max_split_size_mb:32",
    "replay ranks",
    "advise good.pickle",
    "advise part.pickle --limit 140MiB",
    "advise died.pickle",
    "advise died.pickle --json",
    "advise ranks",
    "diagnose good.pickle",
    "diagnose odd.pickle --json",
    "diagnose died.pickle",
    "diagnose ranks",
    "diagnose --message message.log",
    "diff good.pickle odd.pickle",
    "diff good.pickle --fail-above 1MiB",
    "diff good.pickle part.pickle --json",
    "diff odd.pickle --fail-above 1GiB",
    "diff ranks ranks",
    "report good.pickle",
    "report odd.pickle --json",
    "report good.pickle --svg -",
    "report good.pickle --output NEW",
    "report ranks",
    "stats good.pickle",
    "stats odd.pickle --every 1 --csv",
    "stats good.pickle --keys",
    "stats odd.pickle --json",
    "stats ranks --every 1 --csv",
    "export good.pickle --output NEW",
    "export good.pickle --output -",
    "export good.pickle --format perfetto --output -",
    "export good.pickle --output NEW --json",
    "pack good.pickle --budget 1000",
    "pack good.pickle --budget 1000 --output -",
    "pack good.pickle --budget 1000 --json",
    "sweep --list",
    "sweep -w good.pickle -p pytorch -c 1.0 --bounds 0",
    "sweep -w good.pickle -p pytorch -c 1.0 --bounds 0 --output -",
    "sweep -w good.pickle -p pytorch -c 1.0 --bounds 0 --output NEW --json",
    "merge rows.jsonl",
    "merge rows.jsonl --csv -",
    "merge rows.jsonl --json",
    "sweep --largest-batch -w transformer:preset=gpt2,steps=1 -p pytorch -c 2GiB --most-batch 2",
    "sweep --largest-batch -w transformer:preset=gpt2,steps=1 -p pytorch -c 2GiB --most-batch 2 --csv -",
    "conform --list",
    "conform --filter contract/events --cases 1",
    "conform --filter contract/events --cases 1 --json",
    "conform --filter contract/events --cases 1 --report -",
    "ops script.txt",
    "ops script.txt --digests",
    "info",
    "info --json",
    "kill 4000000 --yes",
    "enable expandable_segments",
    "run --help",
    "enable nonsense:1",
    "completions bash",
    "man",
    "man advise",
    "man --output NEW",
];

/// The folder of the test called `name`, with the files that they read.
pub(crate) fn folder(name: &str) -> Folder {
    let folder = Folder::new(name);
    folder.recording("good.pickle", &good());
    folder.recording("odd.pickle", &diverging());
    folder.recording("died.pickle", &died_of_a_hole());
    folder.recording("part.pickle", &reuses_a_part());
    std::fs::create_dir(format!("{}/ranks", folder.path())).expect("a folder");
    folder.recording("ranks/rank0.pickle", &good());
    folder.recording("ranks/rank1.pickle", &diverging());
    folder.file("script.txt", b"alloc a 1000\nfree a\nsnapshot\n");
    folder.file(
        "message.log",
        b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.25 GiB of which \
          12.00 MiB is free. Process 7 has 79.23 GiB memory in use. Of the allocated memory 70.00 GiB is allocated by PyTorch, and \
          8.00 GiB is reserved by PyTorch but unallocated.\n",
    );
    let rows = format!("{}/rows.jsonl", folder.path());
    let recording = format!("{}/good.pickle", folder.path());
    assert_eq!(call(&["sweep", "-w", &recording, "-p", "pytorch", "-c", "1.0", "--bounds", "0", "-o", &rows]).code, 0);
    folder
}

/// One of them in that folder, not yet started.
pub(crate) fn usual(folder: &Folder, line: &str) -> Command {
    let new = format!("{}/new", folder.path());
    let _ = std::fs::remove_file(&new).or_else(|_| std::fs::remove_dir_all(&new));
    let words: Vec<&str> = line.split(' ').map(|word| if word == "NEW" { "new" } else { word }).collect();
    let mut command = parkade(&words);
    command.current_dir(folder.path());
    command
}

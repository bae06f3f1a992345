//! Completion scripts and manual pages: how a shell and groff interpret them, and that they have every command and option.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::process::{Command, ExitCode, Output, Stdio};

use common::trials::{self, Needs};
use common::{Folder, call, listed};

fn main() -> ExitCode {
    trials::run(&[
        ("scripts_have_every_command_and_option", Needs::Nothing, scripts_have_every_command_and_option),
        ("pages_have_every_command_and_option", Needs::Nothing, pages_have_every_command_and_option),
        ("a_folder_gets_all_pages", Needs::Nothing, a_folder_gets_all_pages),
        ("what_cannot_be_done_is_one_line", Needs::Nothing, what_cannot_be_done_is_one_line),
        ("bash_completes", Needs::Program("bash", "there is no bash"), bash_completes),
        ("zsh_accepts_the_script", Needs::Program("zsh", "there is no zsh"), zsh_accepts_the_script),
        ("fish_accepts_the_script", Needs::Program("fish", "there is no fish"), fish_accepts_the_script),
        ("groff_renders_the_pages", Needs::Program("groff", "there is no groff"), groff_renders_the_pages),
    ])
}

const SHELLS: [&str; 5] = ["bash", "elvish", "fish", "powershell", "zsh"];

/// The output of a command that succeeds.
fn printed(args: &[&str]) -> String {
    let run = call(args);
    assert_eq!((run.code, run.err.as_str()), (0, ""), "{args:?}");
    run.out
}

/// The commands of `--help`, without `help` itself.
fn commands() -> Vec<String> {
    let names: Vec<String> = listed(&printed(&["--help"])).into_iter().map(str::to_owned).collect();
    assert!(names.len() > 15 && names.iter().any(|name| name == "advise"), "{names:?}");
    names
}

/// The long options of a command's `--help`, without their hyphens.
fn options(command: &str) -> BTreeSet<String> {
    let help = printed(&[command, "--help"]);
    let words = help.lines().filter(|line| line.trim_start().starts_with('-')).flat_map(|line| line.split([' ', ',', '[', '=']));
    let options: BTreeSet<String> = words.filter_map(|word| word.strip_prefix("--")).map(str::to_owned).collect();
    assert!(options.contains("help"), "{command}: {options:?}");
    options
}

fn scripts_have_every_command_and_option() {
    for shell in SHELLS {
        let script = printed(&["completions", shell]);
        for command in commands() {
            assert!(script.contains(&command), "{shell}: {command}");
            for option in options(&command) {
                assert!(script.contains(&option), "{shell}: {command} --{option}");
            }
        }
    }
}

fn pages_have_every_command_and_option() {
    let first = printed(&["man"]).replace('\\', "");
    for command in &commands() {
        assert!(first.contains(&format!("parkade-{command}(1)")), "{command}");
        let page = printed(&["man", command]).replace('\\', "");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "EXAMPLES"] {
            assert_eq!(page.matches(&format!("\n.SH {section}\n")).count(), 1, "{command}: {section}");
        }
        for option in options(command) {
            assert!(page.contains(&format!("--{option}")), "{command}: --{option}");
        }
    }
    // The heading that manual pages have for exit codes.
    let verify = printed(&["man", "verify"]);
    assert!(verify.contains("\n.SH \"EXIT STATUS\"\n0 nothing differs, 1 something differs"), "{verify}");
}

fn a_folder_gets_all_pages() {
    let folder = Folder::new("man");
    let target = format!("{}/new/man1", folder.path());
    let said = printed(&["man", "-o", &target]);
    let names: BTreeSet<String> = fs::read_dir(&target)
        .expect("the folder")
        .map(|file| file.expect("a file").file_name().into_string().expect("UTF-8"))
        .collect();
    let commands = commands().into_iter().map(|command| format!("parkade-{command}.1"));
    let expected: BTreeSet<String> = commands.chain(["parkade.1".to_owned()]).collect();
    assert_eq!(names, expected);
    assert_eq!(said, format!("{} pages are in {target}\n", expected.len()));
    let page = fs::read_to_string(format!("{target}/parkade-advise.1")).expect("a page");
    assert_eq!(page, printed(&["man", "advise"]));
    // Again, over the old ones.
    fs::write(format!("{target}/parkade-advise.1"), "old").expect("writable");
    printed(&["man", "-o", &target, "--force"]);
    assert_eq!(fs::read_to_string(format!("{target}/parkade-advise.1")).expect("a page"), page);
}

fn what_cannot_be_done_is_one_line() {
    let folder = Folder::new("man-refused");
    let file = folder.file("file", b"");
    for (args, why) in [
        (&["man", "nosuch"][..], "parkade has no command \"nosuch\""),
        (&["man", "-o", &file], "cannot create"),
        (&["man", "advise", "-o", &file], "cannot be used with"),
        (&["completions", "tcsh"], "invalid value 'tcsh'"),
        (&["completions"], "required arguments were not provided"),
    ] {
        let run = call(args);
        assert_eq!((run.code, run.out.as_str()), (2, ""), "{args:?}");
        assert!(run.err.contains(why), "{args:?}: {}", run.err);
    }
}

/// Runs a program with this on its standard input.
fn fed(program: &str, args: &[&str], input: &str) -> Output {
    let mut command = Command::new(program);
    let mut child =
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it runs");
    child.stdin.take().expect("a pipe").write_all(input.as_bytes()).expect("it reads");
    child.wait_with_output().expect("it ends")
}

fn accepts(shell: &str) {
    let output = fed(shell, &["-n"], &printed(&["completions", shell]));
    assert!(output.status.success() && output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn bash_completes() {
    accepts("bash");
    let script = printed(&["completions", "bash"]);
    for (words, expected) in [
        ("parkade adv", "advise"),
        ("parkade completions f", "fish"),
        ("parkade advise --capac", "--capacity"),
        ("parkade enable --shell fi", "fish"),
    ] {
        let last = words.split(' ').count() - 1;
        let asked = format!(
            "{script}\nCOMP_WORDS=({words})\nCOMP_CWORD={last}\n\
             _parkade parkade \"${{COMP_WORDS[{last}]}}\" \"${{COMP_WORDS[{last}-1]}}\"\necho \"${{COMPREPLY[@]}}\"\n"
        );
        let output = fed("bash", &["--norc"], &asked);
        assert_eq!(
            String::from_utf8_lossy(&output.stdout).trim_end(),
            expected,
            "{words}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

fn zsh_accepts_the_script() {
    accepts("zsh");
}

fn fish_accepts_the_script() {
    accepts("fish");
}

fn groff_renders_the_pages() {
    let pages = commands().into_iter().map(|command| printed(&["man", &command]));
    for page in pages.chain([printed(&["man"])]) {
        let output = fed("groff", &["-man", "-Tutf8", "-ww", "-P-c", "-P-b", "-P-u"], &page);
        let text = String::from_utf8_lossy(&output.stdout);
        let warnings = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && warnings.is_empty(), "{warnings}");
        assert!(text.starts_with("parkade") && text.contains("\nSYNOPSIS\n") && text.contains("parkade manual"), "{text}");
        for line in text.lines() {
            assert!(!line.contains("\\-") && !line.contains(".SH"), "markup is left: {line}");
        }
    }
    let page = fed("groff", &["-man", "-Tutf8", "-P-c", "-P-b", "-P-u"], &printed(&["man", "advise"]));
    let text = String::from_utf8_lossy(&page.stdout);
    assert!(
        text.contains("\n       parkade advise snapshot.pickle --capacity 16GiB\n"),
        "an example has a line of its own: {text}"
    );
}

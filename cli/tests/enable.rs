//! `parkade enable`: lines for shells, and settings that PyTorch refuses.

use crate::common::call;

/// The line for settings that are accepted.
fn line(args: &[&str]) -> String {
    let run = call(&[&["enable"], args].concat());
    assert_eq!(run.code, 0, "{}", run.err);
    assert!(!run.err.is_empty() && run.err.lines().all(|line| line.starts_with("# ")), "{}", run.err);
    run.out
}

/// Checks that PyTorch refuses them, with this text.
fn refused(args: &[&str], text: &str) {
    let run = call(&[&["enable"], args].concat());
    assert_eq!((run.code, run.out.as_str()), (1, ""), "{}", run.err);
    let line = run.err.strip_suffix('\n').expect("a line");
    assert!(line.starts_with("parkade: PyTorch 2.") && !line.contains(char::is_control), "{line}");
    assert!(line.contains(text), "{line} lacks {text:?}");
}

#[test]
fn settings_become_a_line_for_a_shell() {
    let text = "expandable_segments:True,max_split_size_mb:128";
    let sh = format!("export PYTORCH_CUDA_ALLOC_CONF={text}\n");
    assert_eq!(line(&["expandable_segments", "max_split_size_mb=128"]), sh);
    assert_eq!(line(&[text]), sh);
    assert_eq!(line(&[text, "--shell", "fish"]), format!("set -gx PYTORCH_CUDA_ALLOC_CONF {text}\n"));
    assert_eq!(line(&[text, "--shell", "powershell"]), format!("$env:PYTORCH_CUDA_ALLOC_CONF = '{text}'\n"));
    assert_eq!(
        line(&["roundup_power2_divisions=[256:1,>:4]"]),
        "export PYTORCH_CUDA_ALLOC_CONF='roundup_power2_divisions:[256:1,>:4]'\n"
    );
}

/// PyTorch reads a number's beginning and ignores what follows, so a value may hold anything.
#[test]
fn what_follows_a_number_is_no_command() {
    assert_eq!(line(&["max_split_size_mb:64;id"]), "export PYTORCH_CUDA_ALLOC_CONF='max_split_size_mb:64;id'\n");
    let run = call(&["enable", "max_split_size_mb:64\nid"]);
    assert_eq!((run.code, run.out.as_str()), (2, ""));
    assert!(run.err.contains("contain a control character") && run.err.lines().count() == 1, "{}", run.err);
}

#[test]
fn what_is_misunderstood_is_said() {
    let notes = |settings| call(&["enable", settings]).err;
    assert!(notes("garbage_collection_threshold=0.8").contains("Without a limit it does nothing"));
    assert!(!notes("garbage_collection_threshold:0.8,per_process_memory_fraction:0.5").contains("does nothing"));
    assert!(notes("max_split_size_mb=128").contains("free blocks of 128.00 MiB or more never serve smaller requests"));
}

#[test]
fn pytorch_refuses_in_its_own_words() {
    refused(&["max_split_size_mb=5"], "ValueError: CachingAllocator option max_split_size_mb too small, must be >= 20");
    refused(
        &["bogus=1"],
        "ValueError: Unrecognized key 'bogus' in CUDA allocator config. (known: backend, expandable_segments, ",
    );
    refused(&["garbage_collection_threshold=1.0"], "garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
    refused(&["expandable_segments=true"], "Expected 'True' or 'False' at index 2 in ConfigTokenizer but got 'true'");
    refused(&["max_split_size_mb=lots"], "ValueError: stoull (a number was expected)");
    refused(&["max_split_size_mb:99999999999999999999"], "IndexError: stoull");
    refused(&["max_split_size_mb:"], "RuntimeError: ");
    refused(&["backend:other"], "Unknown allocator backend, options are native and cudaMallocAsync");
    refused(&["a:b=c\u{202e}"], "Unrecognized key 'a'");
}

#[test]
fn versions_take_different_settings() {
    refused(&["throw_on_cudamalloc_oom"], "(PyTorch 2.15 accepts it: --profile 2.15)");
    let newer = "export PYTORCH_CUDA_ALLOC_CONF=throw_on_cudamalloc_oom:True\n";
    assert_eq!(line(&["throw_on_cudamalloc_oom", "--profile", "2.15"]), newer);
}

#[test]
fn help_says_which_variable_wins() {
    let help = call(&["enable", "--help"]).out;
    assert!(help.contains("PYTORCH_ALLOC_CONF is the newer name") && help.contains("Examples:\n"), "{help}");
    assert_eq!(call(&["enable"]).code, 2, "no setting");
    assert_eq!(call(&["enable", "expandable_segments", "--shell", "tcsh"]).code, 2);
}

//! Setting a variable in several shells, with the value quoted.

use clap::ValueEnum;

/// A shell.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, ValueEnum)]
pub(super) enum Shell {
    /// sh, bash, zsh.
    #[default]
    Sh,
    /// fish.
    Fish,
    /// PowerShell.
    #[value(name = "powershell")]
    Power,
}

impl Shell {
    /// The line that exports an environment variable. The value has no control characters.
    pub(super) fn line(self, variable: &str, value: &str) -> String {
        match self {
            Shell::Sh => format!("export {variable}={}", quote_if_needed(value, |value| value.replace('\'', "'\\''"))),
            Shell::Fish => {
                let escape = |value: &str| value.replace('\\', "\\\\").replace('\'', "\\'");
                format!("set -gx {variable} {}", quote_if_needed(value, escape))
            }
            Shell::Power => format!("$env:{variable} = '{}'", double_quotes(value)),
        }
    }
}

/// The value in single quotes, unless no shell treats any of its characters specially.
fn quote_if_needed(value: &str, escape: impl FnOnce(&str) -> String) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | ':' | ',' | '.');
    if !value.is_empty() && value.chars().all(is_plain) { value.to_owned() } else { format!("'{}'", escape(value)) }
}

/// PowerShell treats typographic quotes as quotes too.
fn double_quotes(value: &str) -> String {
    value.chars().flat_map(|c| std::iter::repeat_n(c, if matches!(c, '\'' | '\u{2018}'..='\u{201b}') { 2 } else { 1 })).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NASTY: &str = "max_split_size_mb:64'; echo \\pwned $(id) `id` \"";

    #[test]
    fn plain_values_stay_plain() {
        let value = "expandable_segments:True,max_split_size_mb:128";
        assert_eq!(Shell::Sh.line("V", value), format!("export V={value}"));
        assert_eq!(Shell::Fish.line("V", value), format!("set -gx V {value}"));
        assert_eq!(Shell::Power.line("V", value), format!("$env:V = '{value}'"));
        assert_eq!(Shell::Sh.line("V", "[256:1,>:4]"), "export V='[256:1,>:4]'");
        assert_eq!(Shell::Sh.line("V", ""), "export V=''");
    }

    #[test]
    fn quotes_do_not_end_the_value() {
        assert_eq!(Shell::Sh.line("V", "a'b"), r"export V='a'\''b'");
        assert_eq!(Shell::Fish.line("V", r"a'b\c"), r"set -gx V 'a\'b\\c'");
        assert_eq!(Shell::Power.line("V", "a'b\u{2019}c"), "$env:V = 'a''b\u{2019}\u{2019}c'");
    }

    /// The shell that is on every Unix machine reads back what was written.
    #[cfg(unix)]
    #[test]
    fn a_real_shell_reads_the_value_back() {
        for value in [NASTY, "'", "''", "\\", "a b", "*", "~", "!x", "#", "-n"] {
            let script = format!("{}; printf %s \"$V\"", Shell::Sh.line("V", value));
            let output = std::process::Command::new("sh").args(["-c", &script]).output().expect("sh runs");
            assert_eq!(String::from_utf8_lossy(&output.stdout), value);
        }
    }
}

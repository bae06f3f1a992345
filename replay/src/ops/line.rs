//! A line of a script, and the numbers in it.
//!
//! The C library reads the harness's numbers, and this module reads them the same way: it ignores trailing characters,
//! recognises base 16 and 8 where `strtoull` does, and wraps negative numbers. The error for an unreadable number is the C++
//! function's name.

/// The words of a line, without its comment.
#[derive(Clone, Debug)]
pub(super) struct Line<'a> {
    words: Vec<&'a str>,
    text: &'a str,
}

/// The harness's message for a missing or unreadable word.
pub(super) type Unreadable = &'static str;

impl<'a> Line<'a> {
    /// Reads a line; Returns `None` if it contains only spaces and a comment.
    pub(super) fn read(line: &'a str) -> Option<Line<'a>> {
        let text = line.split('#').next().unwrap_or("");
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        (!words.is_empty()).then_some(Line { words, text })
    }

    /// The operation's name.
    pub(super) fn name(&self) -> &'a str {
        self.words[0]
    }

    /// The words joined by single spaces.
    pub(super) fn joined(&self) -> String {
        self.words.join(" ")
    }

    /// The words after the first `n`.
    pub(super) fn rest(&self, n: usize) -> &[&'a str] {
        self.words.get(n..).unwrap_or(&[])
    }

    /// The number of words.
    pub(super) fn len(&self) -> usize {
        self.words.len()
    }

    /// The unchanged text after the name and one space; empty if there is no second word.
    pub(super) fn tail(&self) -> &'a str {
        if self.words.len() < 2 {
            return "";
        }
        let start = self.text.find(self.name()).unwrap_or(0) + self.name().len() + 1;
        self.text.get(start..).unwrap_or("")
    }

    pub(super) fn word(&self, n: usize) -> Result<&'a str, Unreadable> {
        self.words.get(n).copied().ok_or("missing argument")
    }

    pub(super) fn number(&self, n: usize) -> Result<u64, Unreadable> {
        unsigned(self.word(n)?).ok_or("stoull")
    }

    /// The stream in word `n`; the default stream if the word is missing.
    pub(super) fn stream_or_default(&self, n: usize) -> Result<i64, Unreadable> {
        if self.words.len() > n { self.stream(n) } else { Ok(0) }
    }

    pub(super) fn stream(&self, n: usize) -> Result<i64, Unreadable> {
        signed(self.word(n)?).ok_or("stol")
    }

    pub(super) fn float(&self, n: usize) -> Result<f64, Unreadable> {
        parkade::settings::read_double(self.word(n)?).ok_or("stod")
    }
}

/// `strtoull` with base 0: an optional sign, `0x` or `0` for base 16 or 8, then digits up to the first other character.
fn unsigned(word: &str) -> Option<u64> {
    let (negative, digits) = sign(word);
    let hex = digits.strip_prefix("0x").or_else(|| digits.strip_prefix("0X")).filter(|d| leading(d, 16) > 0);
    let (digits, radix) = match hex {
        Some(digits) => (digits, 16),
        None if digits.starts_with('0') => (digits, 8),
        None => (digits, 10),
    };
    let value = u64::from_str_radix(digits.get(..leading(digits, radix))?, radix).ok()?;
    Some(if negative { value.wrapping_neg() } else { value })
}

/// `strtol` with base 10.
fn signed(word: &str) -> Option<i64> {
    let (negative, digits) = sign(word);
    let digits = digits.get(..leading(digits, 10))?;
    if negative { format!("-{digits}").parse().ok() } else { digits.parse().ok() }
}

fn sign(word: &str) -> (bool, &str) {
    match word.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, word.strip_prefix('+').unwrap_or(word)),
    }
}

fn leading(digits: &str, radix: u32) -> usize {
    digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        let cases = [
            ("12", Some(12)),
            ("12x", Some(12)),
            ("0x200", Some(512)),
            ("010", Some(8)),
            ("0", Some(0)),
            ("-5", Some(u64::MAX - 4)),
        ];
        for (word, value) in cases {
            assert_eq!(unsigned(word), value, "{word}");
        }
        assert_eq!(unsigned("xyz"), None);
        assert_eq!(unsigned("99999999999999999999"), None);
        assert_eq!(signed("-1"), Some(-1));
        assert_eq!(signed("x"), None);
    }

    #[test]
    fn fractions_are_read_as_c_reads_them() {
        let float = |word: &str| Line::read(&format!("set_fraction {word}")).expect("a line").float(1);
        for (word, value) in
            [("0x1p-1", 0.5), ("0x.8", 0.5), ("0x1.8p-2x", 0.375), ("0x", 0.0), ("0x1p", 1.0), ("+.5", 0.5), ("5e-1z", 0.5)]
        {
            assert_eq!(float(word), Ok(value), "{word}");
        }
        for word in ["1e400", "1e-400", "1e-310", "0x1p-1080", "xyz"] {
            assert_eq!(float(word), Err("stod"), "{word}");
        }
    }

    #[test]
    fn a_settings_string_keeps_its_spaces() {
        let line = Line::read("  conf  max_split_size_mb : 64 # why").expect("a line");
        assert_eq!(line.tail(), " max_split_size_mb : 64 ");
        assert_eq!(line.joined(), "conf max_split_size_mb : 64");
    }
}

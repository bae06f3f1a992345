//! Escapes text for HTML, SVG and Markdown.

use std::fmt::Write as _;

use crate::terminal::output;

/// Escapes text for HTML and SVG, on one line.
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in output::one_line(text).chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// Escapes text so that Markdown shows it unchanged.
pub fn marked(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in output::one_line(text).chars() {
        if matches!(c, '\\' | '`' | '*' | '_' | '<' | '|' | '[' | ']' | '#') {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

/// Replaces each `{{name}}` in a template. The inserted values are not expanded.
pub fn fill(template: &str, values: &[(&str, &str)]) -> String {
    let mut filled = String::with_capacity(template.len() + values.iter().map(|(_, value)| value.len()).sum::<usize>());
    let mut rest = template;
    while let Some((before, after)) = rest.split_once("{{") {
        filled.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        let value = values.iter().find(|(known, _)| *known == name).map(|&(_, value)| value);
        debug_assert!(value.is_some(), "the template names {name:?}");
        filled.push_str(value.unwrap_or_default());
        rest = after;
    }
    filled.push_str(rest);
    filled
}

/// Formats a number with its digits in groups of three.
pub fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() * 4 / 3);
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Formats a count with its noun: "1 segment", "1,000 segments".
pub fn counted(number: u64, one: &str) -> String {
    format!("{} {one}{}", grouped(number), if number == 1 { "" } else { "s" })
}

/// Formats a point of a path with one decimal.
pub fn point(path: &mut String, command: char, x: f64, y: f64) {
    let _ = write!(path, "{command}{x:.1} {y:.1}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_stays_text() {
        assert_eq!(escape("</script><b a='\"'>&\n"), "&lt;/script&gt;&lt;b a=&#39;&quot;&#39;&gt;&amp;\\n");
    }

    #[test]
    fn values_are_not_expanded() {
        assert_eq!(fill("{{a}} and {{b}}.", &[("a", "{{b}}"), ("b", "2")]), "{{b}} and 2.");
    }

    #[test]
    fn digits_are_grouped() {
        assert_eq!([0, 999, 1000, 915_660, 1_234_567].map(grouped), ["0", "999", "1,000", "915,660", "1,234,567"]);
    }
}

//! Extracts the snapshot from a page written by PyTorch's `torch.cuda._memory_viz` (`trace_plot`, `segment_plot`): its
//! pickle, in base64.

use base64::alphabet::STANDARD;
use base64::engine::{DecodePaddingMode, Engine as _, GeneralPurpose, GeneralPurposeConfig};

/// The text before the snapshot: a key in the list of files that the page shows.
const KEY: &[u8] = b"\"base64\"";
/// How far from the page's beginning to look for that text, in bytes; in PyTorch's pages it is within the first 500.
const BEFORE: usize = 1 << 12;

/// The bytes of the snapshot in a page, up to the first damage; `None` if the page contains no snapshot.
pub(crate) fn snapshot_in(page: &[u8]) -> Option<Vec<u8>> {
    let head = page.get(..BEFORE).unwrap_or(page);
    let after = head.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let value = page.get(after..)?.trim_ascii_start().strip_prefix(b":")?;
    Some(decode(value.trim_ascii_start().strip_prefix(b"\"")?))
}

/// Decodes base64 up to the first other character. If the text is cut short, returns the complete bytes.
fn decode(text: &[u8]) -> Vec<u8> {
    let is_digit = |symbol: &u8| symbol.is_ascii_alphanumeric() || matches!(symbol, b'+' | b'/');
    let digits = text.iter().take_while(|symbol| is_digit(symbol)).count();
    // One digit more than a multiple of four does not make a complete byte.
    let whole = if digits % 4 == 1 { digits - 1 } else { digits };
    let config = GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true);
    GeneralPurpose::new(&STANDARD, config).decode(&text[..whole]).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_are_found_and_decoded() {
        let page = |value: &str| format!("<!DOCTYPE html>\nconst local_files = [{{\"name\": \"snapshot.pickle\", {value}");
        let found = |value: &str| snapshot_in(page(value).as_bytes());
        assert_eq!(found("\"base64\": \"TWFu\"}]"), Some(b"Man".to_vec()));
        assert_eq!(found("\"base64\":\"TWE=\"}]"), Some(b"Ma".to_vec()));
        assert_eq!(found("\"base64\": \"+/8\"}]"), Some(vec![0xfb, 0xff]));
        assert_eq!(found("\"base64\": \"TW"), Some(b"M".to_vec()), "cut short");
        assert_eq!(found("\"base64\": \"TWFuT"), Some(b"Man".to_vec()), "cut within a byte");
        assert_eq!(found("\"base64\": 5"), None);
        assert_eq!(found("\"base64\""), None);
        assert_eq!(found(&format!("{}\"base64\": \"TWFu\"", " ".repeat(BEFORE))), None, "too far");
    }
}

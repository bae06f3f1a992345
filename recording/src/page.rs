//! The snapshot in a page of PyTorch's `torch.cuda._memory_viz` (`trace_plot`, `segment_plot`): its pickle, in base64.

/// What stands before it: a key of the list of files that the page shows.
const KEY: &[u8] = b"\"base64\"";
/// How far from the page's beginning it is looked for, in bytes; pages of PyTorch have it within the first 500.
const BEFORE: usize = 1 << 12;

/// The bytes of the snapshot in a page, as far as they are sound; `None` if it has none.
pub(crate) fn snapshot_in(page: &[u8]) -> Option<Vec<u8>> {
    let head = page.get(..BEFORE).unwrap_or(page);
    let after = head.windows(KEY.len()).position(|window| window == KEY)? + KEY.len();
    let value = page.get(after..)?.trim_ascii_start().strip_prefix(b":")?;
    Some(decode(value.trim_ascii_start().strip_prefix(b"\"")?))
}

/// Base64, up to what is none.
fn decode(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3);
    let (mut bits, mut count) = (0_u32, 0);
    for digit in text.iter().map_while(|&symbol| digit(symbol)) {
        bits = (bits << 6) | digit;
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push((bits >> count) as u8);
        }
    }
    bytes
}

fn digit(symbol: u8) -> Option<u32> {
    Some(match symbol {
        b'A'..=b'Z' => u32::from(symbol - b'A'),
        b'a'..=b'z' => u32::from(symbol - b'a') + 26,
        b'0'..=b'9' => u32::from(symbol - b'0') + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    })
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
        assert_eq!(found("\"base64\": 5"), None);
        assert_eq!(found("\"base64\""), None);
        assert_eq!(found(&format!("{}\"base64\": \"TWFu\"", " ".repeat(BEFORE))), None, "too far");
    }
}

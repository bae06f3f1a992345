//! Reads settings strings in hexadecimal, one per line, and prints the settings after each, for `fuzz_settings.py` to compare
//! with the real allocator. `run` applies them one after another (`!` resets), and `load` treats each as the environment of a
//! new process.

use std::io::BufRead as _;

include!("../tests/common/settings_fields.rs");

fn unhex(line: &str) -> String {
    let digits = line.as_bytes().chunks(2);
    let bytes = digits.map(|pair| std::str::from_utf8(pair).ok().and_then(|pair| u8::from_str_radix(pair, 16).ok()));
    String::from_utf8_lossy(&bytes.map(|byte| byte.unwrap_or(b'?')).collect::<Vec<_>>()).into_owned()
}

fn main() {
    let is_load = std::env::args().nth(1).as_deref() == Some("load");
    let mut output = std::io::BufWriter::new(std::io::stdout().lock());
    let mut settings = Settings::default();
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let report = if line == "!" {
            // No string resets this one, not even in PyTorch.
            let reserve = settings.pinned_reserve_segment_mb;
            settings = Settings { pinned_reserve_segment_mb: reserve, ..Settings::default() };
            format!("-\t\t{}", fields(&settings))
        } else if is_load {
            match Settings::from_environment(&unhex(&line)) {
                Ok(settings) => format!("-\t\t{}", fields(&settings)),
                Err(error) => outcome(Some(&error)),
            }
        } else {
            let error = settings.apply(&unhex(&line)).err();
            format!("{}\t{}", outcome(error.as_ref()), fields(&settings))
        };
        let _ = std::io::Write::write_fmt(&mut output, format_args!("{report}\n"));
    }
}

//! docs/json.md's tables and the Python package's types, made of the declarations of the JSON that commands print.
//!
//! `PARKADE_BLESS=1 cargo test -p parkade-cli schema` writes them; without the variable, the test says which of them is not up to date.

mod page;
mod python;
mod sections;

/// A generated file: its path from the repository's root, and its contents, which may depend on those that it has.
type Generated = (&'static str, fn(&str) -> String);

const FILES: [Generated; 3] = [
    ("docs/json.md", page::with_tables),
    ("python/parkade/_objects.py", |_| python::objects()),
    ("python/parkade/_fields.py", |_| python::fields()),
];

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::FILES;

    #[test]
    fn what_is_generated_is_up_to_date() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let mut stale = Vec::new();
        for (path, generate) in FILES {
            let file = root.join(path);
            let is = fs::read_to_string(&file).unwrap_or_default();
            let should_be = generate(&is);
            if is == should_be {
                continue;
            }
            if std::env::var_os("PARKADE_BLESS").is_some() {
                fs::write(&file, should_be).expect("a file that can be written");
            } else {
                let line = is.lines().zip(should_be.lines()).take_while(|(is, should_be)| is == should_be).count();
                stale.push(format!("{path} from line {}: {:?}", line + 1, should_be.lines().nth(line).unwrap_or_default()));
            }
        }
        assert!(stale.is_empty(), "write them anew with PARKADE_BLESS=1 cargo test -p parkade-cli schema: {stale:#?}");
    }
}

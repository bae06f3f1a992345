//! What pages state that can be looked up: hosts, sentences on lines, numbers that follow from the sources.

/// Hosts that may be cited: documentation, threads and standards. Software is named as a package with its version, not by where it lies.
const CITED: [&str; 8] = [
    "docs.pytorch.org",
    "docs.rs",
    "github.com",
    "keepachangelog.com",
    "pytorch.org",
    "ui.perfetto.dev",
    "www.apache.org",
    "www.w3.org",
];

/// Parts of addresses that lead to files rather than to a page.
const FILES: [&str; 5] = ["/archive/", "/releases/download/", "/raw/", "/tarball/", ".git"];

/// What a text must not contain: addresses of hosts that serve packages or sources, and commands that fetch from them.
pub(super) fn fetches(text: &str) -> Vec<String> {
    let ends = |c: char| c.is_whitespace() || "\"'`()<>[]{}\\|".contains(c);
    let addresses = text.split("://").skip(1).map(|rest| rest.split(ends).next().unwrap_or_default());
    let is_host = |address: &&str| address.split(['/', '#', ':']).next().is_some_and(|host| host.contains('.'));
    let is_cited = |address: &str| {
        let host = address.split(['/', '#', ':', ',']).next().unwrap_or_default();
        CITED.contains(&host) && !FILES.iter().any(|part| address.contains(part))
    };
    let uncited = addresses.filter(is_host).filter(|address| !is_cited(address)).map(str::to_owned);
    // Put together here, so that this file does not contain them.
    let commands =
        [["git", "clone"], ["git", "fetch"], ["git", "submodule"], ["curl", "-"], ["wget", "-"]].map(|words| words.join(" "));
    uncited.chain(commands.into_iter().filter(|command| text.contains(command.as_str()))).collect()
}

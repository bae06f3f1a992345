//! Settings from the command line, parsed as a PyTorch release parses them, with hints on how to correct those that it refuses.

use anyhow::Result;
use parkade::profile::Profile as Rules;
use parkade::settings::{ErrorKind, Settings, SettingsError};
use parkade_policies::items;
use parkade_replay::ReplaySettings;

use super::in_process::WrongArgument;
use super::output;
use super::similar::distance;

/// Parses settings.
///
/// # Errors
/// PyTorch refuses the settings. If possible, the error says how to correct them.
pub fn given(rules: &'static Rules, text: &str) -> Result<ReplaySettings> {
    ReplaySettings::given_as(rules, text).map_err(|error| match Settings::from_environment_as(&rules.dialect, text) {
        Err(refused) => {
            let (text, why) = (output::shorten(text, 200), refusal(rules, text, &refused));
            WrongArgument(format!("the settings {text:?} are refused: {why}")).into()
        }
        Ok(_) => error.into(),
    })
}

/// Says why PyTorch refuses settings and how to correct them. The reason is PyTorch's message, unless that is an internal assertion.
pub fn refusal(rules: &Rules, text: &str, error: &SettingsError) -> String {
    let why = match error.kind() {
        ErrorKind::Internal => "PyTorch stops with an internal error".to_owned(),
        _ => output::shorten(error.message(), 500),
    };
    match hint(rules, text) {
        Some(hint) => format!("{why} ({hint})"),
        None => why,
    }
}

/// Returns a correction for the first wrong part of the text.
pub fn hint(rules: &Rules, text: &str) -> Option<String> {
    let mut keys: Vec<&str> = rules.dialect.keys().collect();
    keys.sort_unstable();
    items(text).find_map(|part| hint_for(&keys, part))
}

fn hint_for(keys: &[&str], part: &str) -> Option<String> {
    let Some((key, value)) = part.split_once([':', '=']).map(|(key, value)| (key.trim(), value.trim())) else {
        let is_switch = keys.contains(&part) && SWITCHES.contains(&part);
        let value = if is_switch { "True" } else { "VALUE" };
        return keys.contains(&part).then(|| format!("write {part}:{value}"));
    };
    if !keys.contains(&key) {
        return nearest(keys, key).map(|near| format!("did you mean {near}?"));
    }
    let value = match value.to_ascii_lowercase().as_str() {
        "true" | "1" | "on" | "yes" if SWITCHES.contains(&key) => "True",
        "false" | "0" | "off" | "no" if SWITCHES.contains(&key) => "False",
        _ => value,
    };
    let right = format!("{key}:{value}");
    (part != right && part.replace(' ', "") != right).then(|| format!("write {right}"))
}

/// The keys with the values True and False.
const SWITCHES: [&str; 6] = [
    "expandable_segments",
    "graph_capture_record_stream_reuse",
    "pinned_use_background_threads",
    "pinned_use_cuda_host_register",
    "release_lock_on_cudamalloc",
    "throw_on_cudamalloc_oom",
];

/// Returns the key with the most similar spelling.
fn nearest<'a>(keys: &[&'a str], key: &str) -> Option<&'a str> {
    let begins = keys.iter().find(|known| !key.is_empty() && known.starts_with(key)).copied();
    let near = keys.iter().map(|known| (distance(key, known), *known)).min()?;
    begins.or((near.0 <= 3).then_some(near.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(text: &str) -> String {
        let error = Settings::from_environment_as(&Rules::PYTORCH_2_11.dialect, text).expect_err("it is refused");
        refusal(&Rules::PYTORCH_2_11, text, &error)
    }

    #[test]
    fn what_is_written_wrongly_is_written_right() {
        for (text, ends) in [
            ("expandable_segments=True", "internal error (write expandable_segments:True)"),
            ("expandable_segments", "internal error (write expandable_segments:True)"),
            ("max_split_size_mb", " (write max_split_size_mb:VALUE)"),
            ("max_split_size_mb:200,expandable_segments:true", " (write expandable_segments:True)"),
            ("expandable_segment:True", " (did you mean expandable_segments?)"),
            ("max_split:3", " (did you mean max_split_size_mb?)"),
        ] {
            assert!(said(text).ends_with(ends) && !said(text).contains("ASSERT"), "{text}: {}", said(text));
        }
        assert!(!said("nonsense:3").contains("did you mean"), "{}", said("nonsense:3"));
    }
}

//! From the options of C to a policy.

use parkade::policy::{Policy, PyTorch};
use parkade::profile::Profile;
use parkade::settings::Settings;
use parkade_policies::{BESIDE, CATALOGUE, named, needs_serial_work, why_unknown};

use crate::failure::Failure;
use crate::types::parkade_status::{PARKADE_INVALID_ARGUMENT, PARKADE_INVALID_SETTINGS};

/// The name that stands for PyTorch's rules with the caller's release and settings.
const PYTORCH: &str = "pytorch";

/// The policy of an allocator.
pub(crate) enum Chosen {
    /// PyTorch's rules.
    PyTorch(Box<PyTorch>),
    /// Any other.
    Other(Box<dyn Policy + Send>),
}

/// The names of all policies, PyTorch's first.
pub(crate) fn names() -> impl Iterator<Item = (&'static str, &'static str)> {
    CATALOGUE.iter().chain(BESIDE).map(|policy| (policy.name, policy.says))
}

/// The policy that the names stand for, where work is serial ([`PARKADE_WORK_IS_SERIAL`](crate::types::PARKADE_WORK_IS_SERIAL)), as on
/// a simulated device, or may not be.
pub(crate) fn policy(
    name: Option<&str>,
    settings: Option<&str>,
    release: Option<&str>,
    is_serial: bool,
) -> Result<Chosen, Failure> {
    let name = name.unwrap_or(PYTORCH);
    if !is_serial && needs_serial_work(name) {
        let text = format!(
            "the policy {name} replaces the memory of live tensors, which loses what another thread writes meanwhile: promise that none \
             does (PARKADE_WORK_IS_SERIAL), or use floating-handles"
        );
        return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
    }
    if name == PYTORCH {
        let profile = match release {
            None => &Profile::PYTORCH_2_11,
            Some(name) => Profile::of(name).map_err(|error| Failure::new(PARKADE_INVALID_ARGUMENT, error))?,
        };
        let settings = Settings::from_environment_as(&profile.dialect, settings.unwrap_or_default())
            .map_err(|error| Failure::new(PARKADE_INVALID_SETTINGS, error))?;
        return Ok(Chosen::PyTorch(Box::new(PyTorch::of(profile, settings))));
    }
    let Some(policy) = named(name) else {
        let known: Vec<&str> = names().map(|(name, _)| name).collect();
        let why = why_unknown(name).map(|why| format!("; {why}")).unwrap_or_default();
        let text = format!("there is no policy {name:?}{why}; there are {}", known.join(", "));
        return Err(Failure::new(PARKADE_INVALID_ARGUMENT, text));
    };
    if settings.is_some_and(|settings| !settings.trim().is_empty()) {
        let text = format!("the policy {name} takes no settings; only {PYTORCH} takes those of PYTORCH_CUDA_ALLOC_CONF");
        return Err(Failure::new(PARKADE_INVALID_SETTINGS, text));
    }
    Ok(Chosen::Other((policy.make)()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_that_breaks_handles_needs_a_promise() {
        assert!(policy(Some("breaking-handles"), None, None, true).is_ok());
        let Err(refused) = policy(Some("breaking-handles"), None, None, false) else { panic!("it is not refused") };
        let text = refused.to_string();
        assert!(text.contains("PARKADE_WORK_IS_SERIAL"), "{text}");
        assert!(policy(Some("floating-handles"), None, None, false).is_ok());
    }
}

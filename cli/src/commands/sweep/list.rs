//! `--list`: the names of workloads, generators, policies and address models.

use std::io::{self, Write};

use parkade_policies::{BESIDE, CATALOGUE as POLICIES, Named, named, needs_serial_work};
use parkade_research::study::Addresses;
use parkade_research::workload::{self, CATALOGUE, NamedWorkload};

use crate::terminal::json_struct::{all, view};

/// The sizes that some policies take for the driver's handles.
const HANDLE_SIZES: [&str; 11] =
    ["2MiB", "4MiB", "8MiB", "16MiB", "20MiB", "32MiB", "64MiB", "128MiB", "256MiB", "512MiB", "1GiB"];

pub(super) fn print(out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "workloads")?;
    for known in &CATALOGUE {
        writeln!(out, "  {:<26} {}", known.name, known.says)?;
    }
    writeln!(out, "  {:<26} the requests of a recorded program (a PyTorch memory snapshot)", "FILE")?;
    writeln!(out, "\ngenerators and the options of their descriptions (NAME:option=value,...)")?;
    for name in workload::generator_names() {
        writeln!(out, "  {name:<26} {}", workload::keys(name).unwrap_or_default().join(", "))?;
    }
    writeln!(out, "\npolicies")?;
    POLICIES.iter().try_for_each(|policy| print_policy(out, policy))?;
    writeln!(out, "\npolicies that are not among `all`")?;
    BESIDE.iter().try_for_each(|policy| print_policy(out, policy))?;
    writeln!(out, "\noptions of policies")?;
    writeln!(
        out,
        "  {:<26} handles of that size, 2MiB unless given; of floating-handles, of at most that size",
        "NAME:handle=SIZE"
    )?;
    for (sizes, names) in by_handle_sizes() {
        writeln!(out, "  {:<26} {}: {}", "", names.join(", "), sizes.join(", "))?;
    }
    writeln!(out, "\naddress models: where the device places segments (--addresses)")?;
    for model in Addresses::ALL {
        writeln!(out, "  {:<26} {}", model.name(), model.says())?;
    }
    Ok(())
}

fn print_policy(out: &mut dyn Write, policy: &Named) -> io::Result<()> {
    let serial = if needs_serial_work(policy.name) { "; needs serial work (serial=True of parkade.enable)" } else { "" };
    writeln!(out, "  {:<26} {}\n  {:<26} from {}{serial}", policy.name, policy.says, "", policy.source)
}

/// The sizes of handles that a policy takes as an option; none if it has no such option.
fn handle_sizes(policy: &Named) -> Vec<&'static str> {
    let is_taken = |size: &&str| named(&format!("{}:handle={size}", policy.name)).is_some();
    HANDLE_SIZES.into_iter().filter(is_taken).collect()
}

/// The policies with that option, and the sizes that they take alike.
fn by_handle_sizes() -> Vec<(Vec<&'static str>, Vec<&'static str>)> {
    let mut alike: Vec<(Vec<&str>, Vec<&str>)> = Vec::new();
    for policy in POLICIES.iter().chain(BESIDE) {
        let sizes = handle_sizes(policy);
        match alike.iter_mut().find(|(known, _)| *known == sizes) {
            Some((_, names)) => names.push(policy.name),
            None if sizes.is_empty() => {}
            None => alike.push((sizes, vec![policy.name])),
        }
    }
    alike
}

view! {
    pub(super) struct Object() {
        workloads: Vec<Workload> = all(&CATALOGUE, Workload::of),
        generators: Vec<Generator> = all(workload::generator_names(), Generator::of),
        policies: Vec<Policy> = all(POLICIES.iter().chain(BESIDE), Policy::of),
        address_models: Vec<Model> = all(Addresses::ALL, Model::of),
    }
}

view! {
    struct Workload(known: &'static NamedWorkload) {
        name: &'static str = known.name,
        says: &'static str = known.says,
        description: &'static str = known.text,
    }
}

view! {
    struct Generator(name: &'static str) {
        name: &'static str = name,
        options: Option<Vec<&'static str>> = workload::keys(name).map(|keys| keys.to_vec()),
    }
}

view! {
    struct Policy(policy: &'static Named) {
        name: &'static str = policy.name,
        says: &'static str = policy.says,
        source: &'static str = policy.source,
        is_among_all: bool = POLICIES.iter().any(|known| known.name == policy.name),
        needs_serial_work: bool = needs_serial_work(policy.name),
        handle_sizes: Vec<&'static str> = handle_sizes(policy),
    }
}

view! {
    struct Model(model: Addresses) {
        name: &'static str = model.name(),
        says: &'static str = model.says(),
    }
}

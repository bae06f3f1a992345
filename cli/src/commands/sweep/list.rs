//! `--list`: the names of workloads, generators, policies and address models.

use std::fmt::Write as _;

use parkade_policies::{BESIDE, CATALOGUE as POLICIES, Named, PARAMETERS, Parameter, needs_serial_work};
use parkade_research::study::Addresses;
use parkade_research::workload::{self, CATALOGUE, NamedWorkload};

use crate::terminal::json_struct::{all, view};
use crate::terminal::output;

/// Where the descriptions begin.
const COLUMN: usize = 29;

/// The names, with what is said of each beside it, in lines of so many columns.
pub(super) fn text(columns: usize) -> String {
    let mut text = String::new();
    let out = &mut text;
    let _ = writeln!(out, "workloads");
    for known in &CATALOGUE {
        add(out, columns, known.name, known.says);
    }
    add(out, columns, "FILE", "the requests of a recorded program (a PyTorch memory snapshot)");
    let _ = writeln!(out, "\ngenerators and their options (NAME:option=value,...)");
    for name in workload::generator_names() {
        add(out, columns, name, &workload::keys(name).unwrap_or_default().join(", "));
    }
    let _ = writeln!(out, "\npolicies");
    POLICIES.iter().for_each(|policy| add_policy(out, columns, policy));
    let _ = writeln!(out, "\npolicies that are not among `all`");
    BESIDE.iter().for_each(|policy| add_policy(out, columns, policy));
    let _ = writeln!(out, "\nparameters of policies (NAME:key=value;key=value)");
    for Parameter { policy, key, says, usual, values } in PARAMETERS {
        let usual = if usual.is_empty() { String::new() } else { format!("; {usual} unless given") };
        add(out, columns, &format!("{policy}:{key}="), &format!("{says}{usual}"));
        if !values.is_empty() {
            add(out, columns, "", &values.join(", "));
        }
    }
    let _ = writeln!(out, "\naddress models: where the device places segments (--addresses)");
    for model in Addresses::ALL {
        add(out, columns, model.name(), model.says());
    }
    text
}

fn add(out: &mut String, columns: usize, name: &str, says: &str) {
    out.push_str(&output::listed(&format!("  {name}"), COLUMN, says, columns));
}

fn add_policy(out: &mut String, columns: usize, policy: &Named) {
    let serial = if needs_serial_work(&policy.name) { "; needs serial work (serial=True of parkade.enable)" } else { "" };
    add(out, columns, &policy.name, &policy.says);
    add(out, columns, "", &format!("from {}{serial}", policy.source));
}

view! {
    pub(super) struct Object() {
        /// The catalogue.
        workloads: Vec<Workload> = all(&CATALOGUE, Workload::of),
        /// The generators.
        generators: Vec<Generator> = all(workload::generator_names(), Generator::of),
        /// The policies.
        policies: Vec<Policy> = all(POLICIES.iter().chain(BESIDE), Policy::of),
        /// Where a device places segments.
        address_models: Vec<Model> = all(Addresses::ALL, Model::of),
    }
}

view! {
    struct Workload(known: &'static NamedWorkload) {
        /// The workload's name.
        name: &'static str = known.name,
        /// What it is.
        says: &'static str = known.says,
        /// The description that generates it.
        description: &'static str = known.text,
    }
}

view! {
    struct Generator(name: &'static str) {
        /// The generator's name.
        name: &'static str = name,
        /// The options of its descriptions.
        options: Option<Vec<&'static str>> = workload::keys(name).map(|keys| keys.to_vec()),
    }
}

view! {
    struct Policy(policy: &'static Named) {
        /// The policy's name.
        name: &'static str = &policy.name,
        /// What it does.
        says: &'static str = &policy.says,
        /// Where it comes from.
        source: &'static str = policy.source,
        /// Whether `all` of `sweep` includes it.
        is_among_all: bool = POLICIES.iter().any(|known| known.name == policy.name),
        /// Whether under PyTorch one thread at a time may use the GPU (`serial=True`).
        needs_serial_work: bool = needs_serial_work(&policy.name),
        /// What its name takes as `key=value`.
        parameters: Vec<Taken> = all(PARAMETERS.iter().filter(|taken| taken.policy == policy.name), Taken::of),
    }
}

view! {
    struct Taken(parameter: &'static Parameter) {
        /// The key.
        key: &'static str = parameter.key,
        /// What it sets.
        says: &'static str = parameter.says,
        /// The value that holds without it; empty if it is none of the values.
        usual: &'static str = parameter.usual,
        /// The values; empty if there are too many to list.
        values: Vec<&'static str> = parameter.values.to_vec(),
    }
}

view! {
    struct Model(model: Addresses) {
        /// The model's name.
        name: &'static str = model.name(),
        /// What it does.
        says: &'static str = model.says(),
    }
}

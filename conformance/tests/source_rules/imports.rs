//! Finds which file in a crate uses which other file, from the paths in its code; follows re-exports to the definition.
//!
//! Module declarations, re-exports and tests do not count as uses.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use syn::visit::{self, Visit};
use syn::{Attribute, Item, ItemMod, UseTree, Visibility};

/// A module's path from the crate's root.
type ModulePath = Vec<String>;

/// The meaning of a name in a module.
enum Name {
    /// An item that the module itself defines.
    Defined,
    /// Another path, as it is written there.
    Alias(Vec<String>),
}

struct Module {
    file: PathBuf,
    names: BTreeMap<String, Name>,
    globs: Vec<Vec<String>>,
    /// The paths that its code uses, as written.
    used: Vec<Vec<String>>,
}

/// The modules of a crate.
pub(super) struct Crate {
    modules: BTreeMap<ModulePath, Module>,
}

fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        attribute.path().is_ident("cfg")
            && attribute.meta.require_list().is_ok_and(|list| list.tokens.to_string().starts_with("test"))
    })
}

impl Crate {
    /// Reads a crate from its root file.
    pub(super) fn read(root: &Path) -> Crate {
        let mut modules = Crate { modules: BTreeMap::new() };
        modules.add(Vec::new(), root, true);
        modules
    }

    fn add(&mut self, path: ModulePath, file: &Path, owns_folder: bool) {
        let text = std::fs::read_to_string(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let parsed = syn::parse_file(&text).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        let mut folder = file.parent().expect("a folder").to_owned();
        if !owns_folder {
            folder.push(file.file_stem().expect("a name"));
        }
        self.add_items(path, file, &folder, &parsed.items);
    }

    fn add_items(&mut self, path: ModulePath, file: &Path, folder: &Path, items: &[Item]) {
        let mut module = Module { file: file.to_owned(), names: BTreeMap::new(), globs: Vec::new(), used: Vec::new() };
        for item in items {
            match item {
                Item::Mod(child) if is_test(&child.attrs) => {}
                Item::Mod(child) => self.add_child(&path, file, folder, child),
                Item::Use(import) if is_test(&import.attrs) => {}
                Item::Use(import) => module.import(&import.tree, matches!(import.vis, Visibility::Inherited)),
                item => {
                    module.names.extend(defined(item).map(|name| (name, Name::Defined)));
                    module.visit_item(item);
                }
            }
        }
        self.modules.insert(path, module);
    }

    fn add_child(&mut self, path: &[String], file: &Path, folder: &Path, child: &ItemMod) {
        let name = child.ident.to_string();
        let child_path = [path, std::slice::from_ref(&name)].concat();
        if let Some((_, items)) = &child.content {
            return self.add_items(child_path, file, &folder.join(&name), items);
        }
        let (beside, inside) = (folder.join(format!("{name}.rs")), folder.join(&name).join("mod.rs"));
        match beside.is_file() {
            true => self.add(child_path, &beside, false),
            false => self.add(child_path, &inside, true),
        }
    }

    /// Returns the file that defines the item of a path, as seen from a module; `None` for other crates and for unknown
    /// items.
    fn resolve(&self, from: &[String], path: &[String], depth: u32) -> Option<&Path> {
        let (first, rest) = path.split_first()?;
        let mut at = from.to_vec();
        let rest = match first.as_str() {
            "crate" => {
                at.clear();
                rest
            }
            "self" => rest,
            "super" => {
                at.pop()?;
                return self.resolve(&at, &[&["self".to_owned()], rest].concat(), depth);
            }
            _ => path,
        };
        for (place, name) in rest.iter().enumerate() {
            let child = [&at[..], std::slice::from_ref(name)].concat();
            if self.modules.contains_key(&child) {
                at = child;
                continue;
            }
            let module = self.modules.get(&at)?;
            return match module.names.get(name) {
                Some(Name::Defined) => Some(&module.file),
                Some(Name::Alias(to)) if depth < 8 => self.resolve(&at, &[&to[..], &rest[place + 1..]].concat(), depth + 1),
                Some(Name::Alias(_)) => None,
                None if depth < 8 => {
                    module.globs.iter().find_map(|glob| self.resolve(&at, &[&glob[..], &rest[place..]].concat(), depth + 1))
                }
                None => None,
            };
        }
        // A path that ends at a module uses the declarations in the module's file only if a name
        // follows.
        None
    }

    /// Returns the files that each file uses.
    pub(super) fn uses(&self) -> BTreeMap<PathBuf, BTreeSet<PathBuf>> {
        let mut uses: BTreeMap<PathBuf, BTreeSet<PathBuf>> = BTreeMap::new();
        for (path, module) in &self.modules {
            let targets = module.used.iter().filter_map(|used| self.resolve(path, used, 0));
            let targets = targets.filter(|target| *target != module.file).map(Path::to_owned);
            uses.entry(module.file.clone()).or_default().extend(targets);
        }
        uses
    }
}

/// Returns the name of the item's definition.
fn defined(item: &Item) -> Option<String> {
    let name = match item {
        Item::Const(item) => &item.ident,
        Item::Enum(item) => &item.ident,
        Item::Fn(item) => &item.sig.ident,
        Item::Macro(item) => item.ident.as_ref()?,
        Item::Static(item) => &item.ident,
        Item::Struct(item) => &item.ident,
        Item::Trait(item) => &item.ident,
        Item::Type(item) => &item.ident,
        _ => return None,
    };
    Some(name.to_string())
}

impl Module {
    /// Records a `use`: it introduces names, and a private one counts as a use of the item that it
    /// names.
    fn import(&mut self, tree: &UseTree, is_private: bool) {
        let mut leaves = Vec::new();
        collect(tree, &mut Vec::new(), &mut leaves);
        for (name, path) in leaves {
            match name {
                Some(name) => drop(self.names.insert(name, Name::Alias(path.clone()))),
                None => self.globs.push(path.clone()),
            }
            if is_private {
                self.used.push(path);
            }
        }
    }
}

/// Returns the leaves of a `use`: the name that each one introduces (`None` for a glob) and its
/// path.
fn collect(tree: &UseTree, prefix: &mut Vec<String>, leaves: &mut Vec<(Option<String>, Vec<String>)>) {
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            collect(&path.tree, prefix, leaves);
            prefix.pop();
        }
        UseTree::Name(name) if name.ident == "self" => leaves.push((prefix.last().cloned(), prefix.clone())),
        UseTree::Name(name) => leaves.push((Some(name.ident.to_string()), [&prefix[..], &[name.ident.to_string()]].concat())),
        UseTree::Rename(name) => leaves.push((Some(name.rename.to_string()), [&prefix[..], &[name.ident.to_string()]].concat())),
        UseTree::Glob(_) => leaves.push((None, prefix.clone())),
        UseTree::Group(group) => group.items.iter().for_each(|item| collect(item, prefix, leaves)),
    }
}

impl<'ast> Visit<'ast> for Module {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            self.used.push(path.segments.iter().map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

    fn visit_item_mod(&mut self, module: &'ast ItemMod) {
        if !is_test(&module.attrs) {
            visit::visit_item_mod(self, module);
        }
    }
}

/// Returns the cycles of files, each as a sorted list of its files.
pub(super) fn circles(uses: &BTreeMap<PathBuf, BTreeSet<PathBuf>>) -> Vec<Vec<PathBuf>> {
    let reached = |from: &PathBuf| {
        let (mut seen, mut left) = (BTreeSet::new(), vec![from]);
        while let Some(file) = left.pop() {
            left.extend(uses.get(file).into_iter().flatten().filter(|next| seen.insert((*next).clone())));
        }
        seen
    };
    let reach: BTreeMap<&PathBuf, BTreeSet<PathBuf>> = uses.keys().map(|file| (file, reached(file))).collect();
    let mut found = BTreeSet::new();
    for (file, targets) in &reach {
        let mut circle: Vec<PathBuf> =
            targets.iter().filter(|other| reach.get(other).is_some_and(|back| back.contains(*file))).cloned().collect();
        circle.sort();
        if circle.len() > 1 {
            found.insert(circle);
        }
    }
    found.into_iter().collect()
}

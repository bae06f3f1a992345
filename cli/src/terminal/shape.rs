//! The shape of a type as JSON, derived from its declaration. The tables in docs/json.md and the types of the Python package are generated
//! from it.

use std::collections::BTreeMap;

/// A type with a known JSON shape.
pub(crate) trait Shaped {
    fn shape() -> Shape;
}

/// The shape of a JSON value.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Shape {
    Null,
    Text,
    Integer,
    Number,
    Boolean,
    /// One of these strings.
    Words(&'static [&'static str]),
    Nullable(Box<Shape>),
    Array(Box<Shape>),
    /// An array with a fixed number of values.
    Tuple(Vec<Shape>),
    /// An object whose keys depend on the data.
    Map(Box<Shape>),
    Object(Object),
    /// One of these objects.
    OneOf(Vec<Shape>),
}

/// A view.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) module: &'static str,
    pub(crate) name: &'static str,
    pub(crate) attributes: &'static [Attribute],
    /// A function, because a view may contain itself.
    pub(crate) members: fn() -> Vec<Member>,
}

impl PartialEq for Object {
    fn eq(&self, other: &Object) -> bool {
        (self.module, self.name) == (other.module, other.name)
    }
}

/// A field of a view, as declared.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) key: &'static str,
    pub(crate) shape: Shape,
    pub(crate) attributes: &'static [Attribute],
}

/// The meaning of an attribute of a view or a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Attribute {
    /// A line of a doc comment.
    Doc(&'static str),
    /// The field's keys replace the field.
    Flat,
    /// The key is missing if the value is `None`.
    SkippedIfNone,
}

/// Parses an [`Attribute`] from tokens.
macro_rules! attribute {
    (doc = $line:literal) => {
        $crate::terminal::shape::Attribute::Doc($line)
    };
    (serde(flatten)) => {
        $crate::terminal::shape::Attribute::Flat
    };
    (serde(skip_serializing_if = "Option::is_none")) => {
        $crate::terminal::shape::Attribute::SkippedIfNone
    };
    ($($other:tt)*) => {
        compile_error!("shape.rs does not know this attribute")
    };
}
pub(crate) use attribute;

/// A key of an object.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) key: &'static str,
    pub(crate) doc: String,
    pub(crate) shape: Shape,
    /// Whether some of the objects lack it.
    pub(crate) may_be_missing: bool,
    /// The view in which it is declared, if that is not the object itself.
    pub(crate) flat: Option<Object>,
}

impl Object {
    /// The documentation.
    pub(crate) fn doc(&self) -> String {
        doc(self.attributes)
    }

    /// Returns its keys, in the order of their declaration.
    pub(crate) fn keys(&self) -> Vec<Key> {
        let mut keys = Vec::new();
        for member in (self.members)() {
            let doc = doc(member.attributes);
            if member.attributes.contains(&Attribute::Flat) {
                assert!(
                    doc.is_empty(),
                    "{}::{}.{} has no key, so nobody reads its doc comment",
                    self.module,
                    self.name,
                    member.key
                );
                keys.extend(flat_keys(&member.shape));
                continue;
            }
            let may_be_missing = member.attributes.contains(&Attribute::SkippedIfNone);
            let shape = match member.shape {
                Shape::Nullable(inner) if may_be_missing => *inner,
                shape => shape,
            };
            keys.push(Key { key: member.key, doc, shape, may_be_missing, flat: None });
        }
        keys
    }
}

/// Returns the shape of a choice between these objects; a single one is itself.
pub(crate) fn one_of(mut shapes: Vec<Shape>) -> Shape {
    if shapes.len() == 1 { shapes.remove(0) } else { Shape::OneOf(shapes) }
}

impl Shape {
    /// Returns the keys of an object, or the merged keys of a choice between objects.
    pub(crate) fn keys(&self) -> Option<Vec<Key>> {
        match self {
            Shape::Object(object) => Some(object.keys()),
            Shape::OneOf(shapes) => Some(united(shapes.iter().map(Shape::keys).collect::<Option<_>>()?)),
            _ => None,
        }
    }
}

/// Returns the keys of an object that is flattened into a different one.
fn flat_keys(shape: &Shape) -> Vec<Key> {
    match shape {
        Shape::Object(object) => object.keys().into_iter().map(|key| Key { flat: Some(*object), ..key }).collect(),
        Shape::Nullable(inner) => flat_keys(inner).into_iter().map(|key| Key { may_be_missing: true, ..key }).collect(),
        Shape::OneOf(shapes) => {
            let keys = shapes.iter().map(flat_keys).collect();
            united(keys)
        }
        _ => panic!("{shape:?} has no keys"),
    }
}

/// Merges the keys of several objects: a key may be missing if one lacks it, and null if it is null in one.
pub(crate) fn united(objects: Vec<Vec<Key>>) -> Vec<Key> {
    let of_all = objects.len();
    let mut united: Vec<(Key, usize)> = Vec::new();
    for key in objects.into_iter().flatten() {
        match united.iter_mut().find(|(known, _)| known.key == key.key) {
            None => united.push((key, 1)),
            Some((known, times)) => {
                *times += 1;
                known.may_be_missing |= key.may_be_missing;
                if matches!(key.shape, Shape::Nullable(_) | Shape::Null) && !matches!(known.shape, Shape::Nullable(_)) {
                    known.shape = Shape::Nullable(Box::new(known.shape.clone()));
                }
            }
        }
    }
    united.into_iter().map(|(key, times)| Key { may_be_missing: key.may_be_missing || times < of_all, ..key }).collect()
}

fn doc(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| match attribute {
        Attribute::Doc(line) => Some(line.trim()),
        _ => None,
    });
    lines.collect::<Vec<_>>().join(" ")
}

macro_rules! shaped {
    ($($type:ty)* => $shape:expr) => { $(impl Shaped for $type {
        fn shape() -> Shape {
            $shape
        }
    })* };
}
shaped!(() => Shape::Null);
shaped!(String str => Shape::Text);
shaped!(u32 u64 usize i64 => Shape::Integer);
shaped!(f64 => Shape::Number);
shaped!(bool => Shape::Boolean);
shaped!(parkade_research::study::sweep::Capacity parkade_research::study::sweep::Share => Shape::Text);

impl<T: Shaped + ?Sized> Shaped for &T {
    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Shaped> Shaped for Box<T> {
    fn shape() -> Shape {
        T::shape()
    }
}

impl<T: Shaped> Shaped for Option<T> {
    fn shape() -> Shape {
        Shape::Nullable(Box::new(T::shape()))
    }
}

impl<T: Shaped> Shaped for [T] {
    fn shape() -> Shape {
        Shape::Array(Box::new(T::shape()))
    }
}

impl<T: Shaped> Shaped for Vec<T> {
    fn shape() -> Shape {
        <[T]>::shape()
    }
}

impl<T: Shaped, const N: usize> Shaped for [T; N] {
    fn shape() -> Shape {
        <[T]>::shape()
    }
}

impl<A: Shaped, B: Shaped> Shaped for (A, B) {
    fn shape() -> Shape {
        Shape::Tuple(vec![A::shape(), B::shape()])
    }
}

impl<K, V: Shaped> Shaped for BTreeMap<K, V> {
    fn shape() -> Shape {
        Shape::Map(Box::new(V::shape()))
    }
}

#[cfg(test)]
mod tests {
    use super::{Key, Shape, Shaped, united};
    use crate::terminal::json_struct::{Word, one_of, view};

    enum Colour {
        Red,
        Green,
    }

    parkade_recording::names! {
        Colour {
            Colour::Red => "red",
            Colour::Green => "green",
        }
    }

    view! {
        /// A node.
        struct Node<'a>(name: &'a str, inner: Vec<Node<'a>>) {
            /// Its name,
            /// in two lines.
            name: &'a str = name,
            colour: Word<Colour> = Word::of(if name == "leaf" { &Colour::Green } else { &Colour::Red }),
            /// What is in it.
            inner: Vec<Node<'a>> = inner,
            #[serde(skip_serializing_if = "Option::is_none")]
            span: Option<Option<(u64, u64)>> = None,
            #[serde(flatten)]
            size: Option<Size> = None,
        }
    }

    view! {
        struct Size {
            bytes: u64,
        }
    }

    view! {
        struct Many {
            bytes: Option<u64>,
            devices: Vec<Size>,
        }
    }

    one_of! {
        enum OneOrMany {
            One(Size),
            Many(Many),
        }
    }

    fn keys<T: Shaped>() -> Vec<Key> {
        T::shape().keys().expect("an object")
    }

    #[test]
    fn a_view_has_the_keys_that_serde_writes() {
        let value = serde_json::to_value(Node::of("root", vec![Node::of("leaf", Vec::new())])).expect("JSON");
        assert_eq!(value["inner"][0]["colour"], "green");
        let keys = keys::<Node<'_>>();
        let always: Vec<&str> = keys.iter().filter(|key| !key.may_be_missing).map(|key| key.key).collect();
        assert_eq!(always, ["name", "colour", "inner"]);
        assert!(always.iter().all(|key| value.get(key).is_some()) && value.as_object().map(serde_json::Map::len) == Some(3));
        let rest: Vec<&str> = keys.iter().filter(|key| key.may_be_missing).map(|key| key.key).collect();
        assert_eq!(rest, ["span", "bytes"]);
        assert_eq!((keys[0].doc.as_str(), keys[1].doc.as_str()), ("Its name, in two lines.", ""));
    }

    #[test]
    fn a_view_that_contains_itself_and_words_have_shapes() {
        let keys = keys::<Node<'_>>();
        assert_eq!(keys[1].shape, Shape::Words(&["red", "green"]));
        assert_eq!(keys[2].shape, Shape::Array(Box::new(Node::shape())));
        // Of two layers of `Option` the outer one decides whether the key is there.
        let pair = Shape::Tuple(vec![Shape::Integer, Shape::Integer]);
        assert_eq!(keys[3].shape, Shape::Nullable(Box::new(pair)));
        let Shape::Object(object) = Node::shape() else { panic!("no object") };
        assert_eq!((object.name, object.doc().as_str()), ("Node", "A node."));
    }

    #[test]
    fn of_several_objects_keys_may_be_missing_or_null() {
        let written = [OneOrMany::One(Size { bytes: 1 }), OneOrMany::Many(Many { bytes: None, devices: Vec::new() })];
        assert_eq!(serde_json::to_string(&written).expect("JSON"), r#"[{"bytes":1},{"bytes":null,"devices":[]}]"#);
        let keys = united(vec![keys::<Size>(), keys::<Many>()]);
        let [bytes, devices] = keys.as_slice() else { panic!("{keys:?}") };
        assert!(!bytes.may_be_missing && devices.may_be_missing);
        assert_eq!(bytes.shape, Shape::Nullable(Box::new(Shape::Integer)));
        assert_eq!(self::keys::<OneOrMany>().len(), 2);
    }
}

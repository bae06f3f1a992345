//! One of two iterators, where either order of free blocks may answer.

/// One of two iterators.
pub(in crate::index) enum Either<A, B> {
    First(A),
    Second(B),
}

impl<T, A: Iterator<Item = T>, B: Iterator<Item = T>> Iterator for Either<A, B> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        match self {
            Either::First(iterator) => iterator.next(),
            Either::Second(iterator) => iterator.next(),
        }
    }
}

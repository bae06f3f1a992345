//! The sizes that expandable segments reserve.

use super::*;

/// The sizes that PyTorch reserved on a device of 1 GiB, before rounding to pages.
#[test]
fn sizes_are_parts_or_gibibytes() {
    let bytes = |text| ReserveSize::parse(text).map(|size| size.bytes(Bytes::mib(1024)).0);
    assert_eq!(bytes("0.5"), Some(1 << 29));
    assert_eq!(bytes("2G"), Some(2 << 30));
    assert_eq!([bytes("x"), bytes("-1"), bytes("0"), bytes("inf"), bytes("")], [None; 5]);
}

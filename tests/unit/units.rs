//! Sizes: rounding, parsing and printing.

use super::*;

#[test]
fn bytes_add_and_subtract() {
    let mut bytes = Bytes(700);
    bytes += Bytes(30);
    assert_eq!(bytes, Bytes(730));
    bytes -= Bytes(31);
    assert_eq!(bytes, Bytes(699));
    assert_eq!((Bytes(3) + Bytes(4), Bytes(9) - Bytes(4)), (Bytes(7), Bytes(5)));
    assert_eq!((Bytes(9).saturating_sub(Bytes(4)), Bytes(4).saturating_sub(Bytes(9))), (Bytes(5), Bytes::ZERO));
    assert_eq!((Bytes(3).checked_add(Bytes(4)), Bytes::MAX.checked_add(Bytes(1))), (Some(Bytes(7)), None));
    let rounded = [0, 1, 512, 513].map(|bytes| Bytes(bytes).checked_round_up(Bytes(512)).map(Bytes::get));
    assert_eq!(rounded, [Some(0), Some(512), Some(512), Some(1024)]);
    assert_eq!((Bytes(1).checked_round_up(Bytes::ZERO), Bytes::MAX.checked_round_up(Bytes(512))), (None, None));
    assert_eq!((Bytes::mib(3), Bytes(7).get()), (Bytes(3 << 20), 7));
}

#[test]
fn what_is_shown() {
    use alloc::string::ToString;
    assert_eq!((Bytes(1234).to_string(), DeviceAddress(0xab00).to_string()), ("1234".into(), "0xab00".into()));
    assert_eq!((StreamId(0x3000).to_string(), StreamId(7).get()), ("0x3000".into(), 7));
    assert_eq!((DeviceAddress(5).get(), DeviceAddress(5).offset(Bytes(6))), (5, DeviceAddress(11)));
    assert_eq!([PoolClass::Small, PoolClass::Large].map(PoolClass::name), ["small", "large"]);
}

#[test]
fn a_stream_of_another_device_is_told_from_all_others() {
    let ids =
        [(0, 0), (0, 0x1000), (1, 0), (254, 0xff_ffff_ffff_ffff)].map(|(device, handle)| StreamId::elsewhere(device, handle));
    let devices = ids.map(|id| id.unwrap().device_elsewhere());
    assert_eq!(devices, [Some(0), Some(0), Some(1), Some(254)]);
    assert_eq!([StreamId::DEFAULT, StreamId(0xff_ffff_ffff_ffff)].map(StreamId::device_elsewhere), [None, None]);
    assert_eq!([StreamId::elsewhere(255, 0), StreamId::elsewhere(0, 1 << 56), StreamId::elsewhere(u32::MAX, 0)], [None; 3]);
}

//! Compares the device with the fake driver on which the real PyTorch allocator is tested: the same calls must produce
//! the same log.
//!
//! The fake driver printed the expected lines (`oracle-2.11.0 --log=2`, 1 GiB or 200 MiB).

use parkade::device::DeviceBackend;
use parkade::units::{Bytes, DeviceAddress, StreamId};
use parkade_sim::address::{Ascending, Descending, Reuse};
use parkade_sim::{LogLevel, SimDevice, SimEvent, SimOptions};

fn fake(options: SimOptions) -> SimDevice {
    let mut device = SimDevice::new(options);
    device.set_log_level(LogLevel::Events);
    device
}

fn log(device: &mut SimDevice) -> Vec<String> {
    device.take_log().iter().map(|call| call.render()).collect()
}

fn recorded(device: &mut SimDevice, stream: u64) -> SimEvent {
    let mut event = device.create_event().unwrap();
    device.record_event(&mut event, StreamId(stream)).unwrap();
    event
}

#[test]
fn memory_calls_have_the_same_names_and_counts() {
    let mut device = fake(SimOptions::fake_driver(Bytes(1_073_741_824)));
    let c0 = device.malloc(Bytes(20_971_520)).unwrap();
    let c1 = device.malloc(Bytes(2_097_152)).unwrap();
    let c2 = device.malloc(Bytes(25_165_824)).unwrap();
    assert_eq!(
        log(&mut device),
        [r#"["cudaMalloc",0,20971520,"c0"]"#, r#"["cudaMalloc",0,2097152,"c1"]"#, r#"["cudaMalloc",0,25165824,"c2"]"#]
    );
    assert_eq!(device.name_address(c1.offset(Bytes(1536))), "c1+1536");
    assert_eq!(device.memory_info().unwrap().free, Bytes(1_025_507_328));
    assert_eq!((device.used_bytes(), device.peak_used_bytes()), (Bytes(48_234_496), Bytes(48_234_496)));
    device.malloc(Bytes(1_000_341_504)).unwrap();
    device.malloc(Bytes(501_219_328)).unwrap_err();
    device.free(c0).unwrap();
    device.free(c2).unwrap();
    device.set_external_bytes(Bytes(300_000_000));
    device.memory_info().unwrap();
    device.fail_next(1);
    device.malloc(Bytes(31_457_280)).unwrap_err();
    device.synchronize();
    let expected = [
        r#"["cudaMemGetInfo",0,1025507328,1073741824]"#,
        r#"["cudaMalloc",0,1000341504,"c3"]"#,
        r#"["cudaMalloc",2,501219328]"#,
        r#"["cudaFree",0,"c0"]"#,
        r#"["cudaFree",0,"c2"]"#,
        r#"["cudaMemGetInfo",0,0,1073741824]"#,
        r#"["cudaMalloc",2,31457280]"#,
        r#"["cudaDeviceSynchronize",0]"#,
    ];
    assert_eq!(log(&mut device), expected);
    assert_eq!(device.peak_used_bytes(), Bytes(1_048_576_000));
}

#[test]
fn failing_frees_are_logged_with_the_full_name() {
    let mut device = fake(SimOptions::fake_driver(Bytes::mib(100)));
    let c0 = device.malloc(Bytes::mib(2)).unwrap();
    device.free(c0.offset(Bytes(512))).unwrap_err();
    device.free(DeviceAddress(0x123)).unwrap_err();
    assert_eq!(log(&mut device)[1..], [r#"["cudaFree",1,"c0+512"]"#, r#"["cudaFree",1,"0x123"]"#]);
}

#[test]
fn events_complete_and_are_logged_the_same_way() {
    let mut device = fake(SimOptions::fake_driver(Bytes::mib(100)));
    let e0 = recorded(&mut device, 4096);
    let e1 = recorded(&mut device, 8192);
    assert_eq!((device.is_complete(&e1), device.is_complete(&e0)), (Ok(false), Ok(false)));
    assert_eq!(device.complete_one(StreamId(4096)), 1);
    assert_eq!(device.complete_one(StreamId(4096)), 0);
    device.complete(StreamId(8192));
    assert_eq!((device.is_complete(&e1), device.is_complete(&e0)), (Ok(true), Ok(true)));
    assert_eq!(device.live_events(), 2);
    device.wait(&e1).unwrap();
    device.destroy_event(e1);
    assert_eq!(device.live_events(), 1);
    let expected = [
        r#"["cudaEventCreate",0,0,2]"#,
        r#"["cudaEventRecord",0,0,4096]"#,
        r#"["cudaEventCreate",0,1,2]"#,
        r#"["cudaEventRecord",0,1,8192]"#,
        r#"["cudaEventQuery",600,1]"#,
        r#"["cudaEventQuery",600,0]"#,
        r#"["cudaEventQuery",0,1]"#,
        r#"["cudaEventQuery",0,0]"#,
        r#"["cudaEventSynchronize",0,1]"#,
        r#"["cudaEventDestroy",0,1]"#,
    ];
    assert_eq!(log(&mut device), expected);
}

#[test]
fn levels_choose_what_is_logged() {
    let mut device = fake(SimOptions::fake_driver(Bytes::mib(100)));
    for (level, lines) in [(LogLevel::Off, 0), (LogLevel::Memory, 1), (LogLevel::Events, 3)] {
        device.set_log_level(level);
        device.memory_info().unwrap();
        recorded(&mut device, 1);
        assert_eq!(device.take_log().len(), lines, "{level:?}");
    }
}

/// Runs one script under the fake driver's three address policies and compares the addresses with those that it
/// printed.
#[test]
fn addresses_are_those_of_each_policy() {
    let run = |options: SimOptions| {
        let mut device = SimDevice::new(options);
        let mut mallocs = |sizes: &[u64]| sizes.iter().map(|&size| device.malloc(Bytes(size)).unwrap().get()).collect::<Vec<_>>();
        let mut addresses = mallocs(&[20_971_520, 20_971_520, 20_971_520, 41_943_040]);
        device.free(DeviceAddress(addresses[1])).unwrap();
        device.free(DeviceAddress(addresses[2])).unwrap();
        let mut mallocs = |sizes: &[u64]| sizes.iter().map(|&size| device.malloc(Bytes(size)).unwrap().get()).collect::<Vec<_>>();
        addresses.extend(mallocs(&[31_457_280, 10_485_760, 20_971_520]));
        device.malloc(Bytes(901_775_360)).unwrap_err();
        device.free(DeviceAddress(addresses[0])).unwrap();
        addresses.push(device.malloc(Bytes(2_097_152)).unwrap().get());
        assert_eq!((device.used_bytes(), device.peak_used_bytes()), (Bytes(106_954_752), Bytes(125_829_120)));
        addresses
    };
    let options = || SimOptions::fake_driver(Bytes(209_715_200));
    assert_eq!(
        run(options().address_model(Ascending::new())),
        [
            17_592_186_044_416,
            17_592_207_015_936,
            17_592_227_987_456,
            17_592_248_958_976,
            17_592_290_902_016,
            17_592_322_359_296,
            17_592_332_845_056,
            17_592_353_816_576,
        ]
    );
    assert_eq!(
        run(options().address_model(Descending::new())),
        [
            34_084_839_489_536,
            34_084_818_518_016,
            34_084_797_546_496,
            34_084_755_603_456,
            34_084_724_146_176,
            34_084_713_660_416,
            34_084_692_688_896,
            34_084_690_591_744,
        ]
    );
    assert_eq!(
        run(options().address_model(Reuse::new())),
        [
            17_592_186_044_416,
            17_592_207_015_936,
            17_592_227_987_456,
            17_592_248_958_976,
            17_592_207_015_936,
            17_592_238_473_216,
            17_592_290_902_016,
            17_592_186_044_416,
        ]
    );
}

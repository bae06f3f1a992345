//! Tests the lock: two threads never work at the same time, no thread waits forever as long as calls end, and every
//! thread notices a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use parkade::Allocator;
use parkade::policy::PyTorch;
use parkade::settings::Settings;
use parkade::units::{Bytes, StreamId};
use parkade_shared::{Error, Shared};
use parkade_sim::{SimDevice, SimOptions};

type Core = Shared<SimDevice, PyTorch>;

fn shared() -> Core {
    let device = SimDevice::new(SimOptions::new(Bytes::mib(256)));
    Shared::new(Allocator::new(device, PyTorch::new(Settings::default()), ()))
}

#[test]
fn threads_share_one_device() {
    let shared = shared();
    std::thread::scope(|scope| {
        for stream in 0..8 {
            let shared = &shared;
            scope.spawn(move || {
                for bytes in 1..2_000 {
                    let address = shared.raw_allocate(Bytes(bytes), StreamId(stream)).expect("there is memory");
                    shared.free(address).expect("it is allocated");
                }
            });
        }
    });
    let stats = shared.with(|core| core.allocator().stats().entries()).expect("no thread panics");
    let value = |key: &str| stats.iter().find(|(name, _)| *name == key).map(|(_, value)| *value);
    assert_eq!(value("allocation.all.allocated"), Some(8 * 1_999));
    assert_eq!(value("allocation.all.current"), Some(0));
}

#[test]
fn a_block_of_one_thread_is_freed_by_another() {
    let shared = Arc::new(shared());
    let (send, receive) = channel();
    let maker = Arc::clone(&shared);
    let made = std::thread::spawn(move || {
        for _ in 0..100 {
            let address = maker.allocate(Bytes(1_000), StreamId(1)).expect("there is memory");
            send.send(address).expect("it is received");
        }
    });
    for address in receive {
        shared.record_stream(address, StreamId(2)).expect("it is allocated");
        shared.free(address).expect("it is allocated");
    }
    made.join().expect("no panic");
}

#[test]
fn who_waits_for_long_gets_the_lock_soon_after() {
    let shared = shared();
    let (send, receive) = channel();
    let held = Duration::from_millis(80);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            shared.with(|_| {
                send.send(Instant::now()).expect("it is received");
                std::thread::sleep(held);
            })
        });
        let since = receive.recv().expect("the other thread has the lock");
        shared.allocate(Bytes(1_000), StreamId::DEFAULT).expect("there is memory");
        assert!(since.elapsed() >= held, "{:?}", since.elapsed());
        // The wait exceeds `held` by at most one sleep; the bound leaves room for a busy machine.
        assert!(since.elapsed() < 20 * held, "{:?}", since.elapsed());
    });
}

#[test]
fn a_call_from_inside_is_refused() {
    let shared = shared();
    let inside = shared.with(|_| shared.allocate(Bytes(1_000), StreamId::DEFAULT));
    assert_eq!(inside, Ok(Err(Error::Reentered)));
    assert!(shared.allocate(Bytes(1_000), StreamId::DEFAULT).is_ok(), "the lock was released");
}

#[test]
fn a_callback_is_refused_too_and_another_thread_is_not() {
    let shared = Arc::new(shared());
    let (weak, (send, receive)) = (Arc::downgrade(&shared), channel());
    let callback = move |_: &mut Allocator<SimDevice, PyTorch>| {
        if let Some(shared) = weak.upgrade() {
            send.send(shared.allocate(Bytes(1), StreamId::DEFAULT)).expect("it is received");
        }
        false
    };
    shared.with(|core| core.allocator_mut().register_free_memory_callback(Box::new(callback))).expect("no panic");
    shared.allocate(Bytes(1_000), StreamId::DEFAULT).expect("there is memory");
    assert_eq!(receive.recv(), Ok(Err(Error::Reentered)));
}

#[test]
fn after_a_panic_no_request_is_served() {
    let shared = shared();
    let address = shared.allocate(Bytes(1_000), StreamId::DEFAULT).expect("there is memory");
    let panicked = catch_unwind(AssertUnwindSafe(|| shared.with(|_| panic!("a panic during a request"))));
    assert!(panicked.is_err());
    assert_eq!(shared.free(address), Err(Error::Poisoned));
    assert_eq!(shared.allocate(Bytes(1_000), StreamId::DEFAULT), Err(Error::Poisoned));
    assert_eq!(shared.with(|_| ()), Err(Error::Poisoned), "and again");
    let elsewhere = std::thread::scope(|scope| scope.spawn(|| shared.free(address)).join().expect("no panic"));
    assert_eq!(elsewhere, Err(Error::Poisoned));
    assert!(matches!(shared.into_inner(), Err(Error::Poisoned)));
}

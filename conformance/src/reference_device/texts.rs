//! The text of a logged call: a JSON array without spaces, as the fake driver writes it.

use parkade_sim::{AccessError, AddressName, Call, CallName, CallSubject};

/// Returns the driver's name of a call.
pub(super) fn name(call: CallName) -> &'static str {
    match call {
        CallName::MemGetInfo => "cudaMemGetInfo",
        CallName::Malloc => "cudaMalloc",
        CallName::Free => "cudaFree",
        CallName::EventCreate => "cudaEventCreate",
        CallName::EventRecord => "cudaEventRecord",
        CallName::EventQuery => "cudaEventQuery",
        CallName::EventSynchronize => "cudaEventSynchronize",
        CallName::EventDestroy => "cudaEventDestroy",
        CallName::DeviceSynchronize => "cudaDeviceSynchronize",
        CallName::AddressReserve => "cuMemAddressReserve",
        CallName::AddressFree => "cuMemAddressFree",
        CallName::MemCreate => "cuMemCreate",
        CallName::MemMap => "cuMemMap",
        CallName::MemSetAccess => "cuMemSetAccess",
        CallName::MemUnmap => "cuMemUnmap",
        CallName::MemRelease => "cuMemRelease",
        CallName::StreamSynchronize => "cudaStreamSynchronize",
        CallName::StreamWaitEvent => "cudaStreamWaitEvent",
    }
}

/// Returns the text of an illegal access.
pub(super) fn illegal(error: AccessError) -> &'static str {
    match error {
        AccessError::NotMapped => "no memory is mapped at the address",
        AccessError::NoAccess => "the device has no access to the memory mapped at the address",
        AccessError::NotWords => "the address and the size must be multiples of 4 bytes",
    }
}

/// Returns the text of a call.
pub(super) fn line(call: &Call) -> String {
    let mut items = vec![quoted(name(call.name)), call.result.to_string()];
    items.extend(arguments(call));
    format!("[{}]", items.join(","))
}

fn quoted(text: &str) -> String {
    format!("\"{text}\"")
}

/// Returns the name of an address. An offset is left out of the start of a range that the call has ended.
fn named(name: AddressName, has_ended: bool) -> String {
    match name {
        AddressName::InRange { ordinal, .. } if has_ended => quoted(&format!("c{ordinal}")),
        AddressName::InReservation { ordinal, .. } if has_ended => quoted(&format!("v{ordinal}")),
        AddressName::InRange { ordinal, offset_bytes } => quoted(&format!("c{ordinal}+{offset_bytes}")),
        AddressName::InReservation { ordinal, offset_bytes } => quoted(&format!("v{ordinal}+{offset_bytes}")),
        AddressName::Unknown(address) => quoted(&format!("0x{address:x}")),
    }
}

fn arguments(call: &Call) -> Vec<String> {
    let succeeded = call.result == 0;
    let number = |number: u64| number.to_string();
    match call.subject {
        CallSubject::Info { free_bytes, total_bytes } => vec![number(free_bytes), number(total_bytes)],
        CallSubject::Allocation { bytes, range } => {
            [Some(number(bytes)), range.map(|(ordinal, _)| quoted(&format!("c{ordinal}")))].into_iter().flatten().collect()
        }
        CallSubject::Reservation { bytes, range } => {
            [Some(number(bytes)), range.map(|(ordinal, _)| quoted(&format!("v{ordinal}")))].into_iter().flatten().collect()
        }
        CallSubject::Release { name, .. } => vec![named(name, succeeded)],
        CallSubject::ReservationEnd { name, bytes, .. } => vec![named(name, succeeded), number(bytes)],
        // A refused type of handle is shown, and the type of a new handle.
        CallSubject::Creation { bytes, handle_type, handle } => match handle {
            Some(handle) => vec![number(bytes), quoted(&format!("h{handle}")), handle_type.to_string()],
            None if call.result == 800 => vec![number(bytes), handle_type.to_string()],
            None => vec![number(bytes)],
        },
        CallSubject::Mapping { name, bytes, handle, .. } => {
            let handle = handle.map(|handle| quoted(&format!("h{handle}")));
            [Some(named(name, false)), Some(number(bytes)), handle].into_iter().flatten().collect()
        }
        CallSubject::Access { name, bytes, device, .. } => vec![named(name, false), number(bytes), device.to_string()],
        CallSubject::Handle(handle) => vec![quoted(&format!("h{handle}"))],
        CallSubject::Stream(stream) => vec![number(stream)],
        CallSubject::Event { ordinal, argument } => [Some(ordinal), argument].into_iter().flatten().map(number).collect(),
        CallSubject::Device => Vec::new(),
    }
}

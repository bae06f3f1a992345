//! Links the core and the policies into a crate without std. If anything in them brought std along, its panic handler would clash with this one.
#![no_std]

extern crate parkade;
extern crate parkade_policies;

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    loop {}
}

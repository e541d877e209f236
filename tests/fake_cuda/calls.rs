//! The exported functions, under the names of CUDA and of HIP.
#![allow(unsafe_code, non_snake_case)] // a library for C, with its names

use std::ffi::{c_char, c_void};
use std::sync::atomic::Ordering;

use crate::memory::{DeviceMemory, pin};
use crate::state::*;
use crate::stream::{Event, Source, Stream, Work};

/// Exports functions under two names each.
macro_rules! export {
    ($(fn $cuda:ident, $hip:ident($($argument:ident: $kind:ty),*) $body:block)*) => {
        $(
            #[unsafe(no_mangle)]
            unsafe extern "C" fn $cuda($($argument: $kind),*) -> Code {
                let body = || -> Result<(), Code> { $body };
                body().err().unwrap_or(0)
            }

            #[unsafe(no_mangle)]
            unsafe extern "C" fn $hip($($argument: $kind),*) -> Code {
                // SAFETY: passes on what its caller promises.
                unsafe { $cuda($($argument),*) }
            }
        )*
    };
}

export! {
    fn cuInit, hipInit(_flags: u32) {
        state().begin();
        State::used().map(drop)
    }

    fn cuDeviceGetCount, hipGetDeviceCount(count: *mut i32) {
        drop(State::used()?);
        write(count, DEVICES)
    }

    fn cuDeviceGet, hipDeviceGet(device: *mut i32, ordinal: i32) {
        drop(State::used()?);
        write(device, if (0..DEVICES).contains(&ordinal) { ordinal } else { return Err(INVALID_DEVICE) })
    }

    fn cuDeviceGetPCIBusId, hipDeviceGetPCIBusId(id: *mut c_char, len: i32, _device: i32) {
        drop(State::used()?);
        if len > 0 { write(id, 0) } else { Err(INVALID_VALUE) }
    }

    fn cuDevicePrimaryCtxGetState, hipDevicePrimaryCtxGetState(device: i32, flags: *mut u32, active: *mut i32) {
        let is_active = State::used()?.active.contains(&device);
        write(flags, 0)?;
        write(active, is_active.into())
    }

    fn cuDevicePrimaryCtxRetain, hipDevicePrimaryCtxRetain(context: *mut usize, device: i32) {
        let mut state = State::used()?;
        state.active.insert(device);
        state.counts.devices |= 1 << device;
        write(context, FIRST_CONTEXT + device as usize)
    }

    fn cuCtxGetCurrent, hipCtxGetCurrent(context: *mut usize) {
        // A context that has failed is still current.
        match State::used() {
            Err(ILLEGAL_ADDRESS) | Ok(_) => write(context, CURRENT.get()),
            Err(code) => Err(code),
        }
    }

    fn cuCtxSetCurrent, hipCtxSetCurrent(context: usize) {
        match State::used() {
            Err(ILLEGAL_ADDRESS) | Ok(_) => CURRENT.set(context),
            Err(code) => return Err(code),
        }
        Ok(())
    }

    fn cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode(mode: *mut i32) {
        drop(state()); // ends a forked child
        // SAFETY: the caller has a mode there.
        let before = CAPTURE_MODE.replace(unsafe { mode.read() });
        write(mode, before)
    }

    fn cuMemHostRegister_v2, hipHostRegister(start: *mut c_void, len: usize, flags: u32) {
        let mut state = State::used()?;
        current()?;
        disturb_captures()?;
        let start = start as usize;
        if flags & PORTABLE == 0 {
            violation("memory was registered for one context only");
        }
        take_one(&mut state.registrations_left, NOT_SUPPORTED)?;
        if state.host.overlaps(start, len) {
            return Err(ALREADY_REGISTERED);
        }
        pin(start, len, flags & READ_ONLY != 0)?;
        state.host.insert(start, len);
        state.counts.registered += 1;
        state.counts.registered_bytes += len as u64;
        Ok(())
    }

    fn cuMemHostUnregister, hipHostUnregister(start: *mut c_void) {
        let mut state = State::used()?;
        current()?;
        let Some((len, is_read)) = state.host.remove(start as usize) else {
            violation("memory was unregistered that is not registered");
            return Err(NOT_REGISTERED);
        };
        if is_read {
            violation("memory was unregistered that copies still read");
        }
        state.counts.unregistered += 1;
        state.counts.registered_bytes -= len as u64;
        Ok(())
    }

    fn cuMemAlloc_v2, hipMalloc(address: *mut u64, len: usize) {
        let mut state = State::used()?;
        current()?;
        disturb_captures()?;
        if len == 0 {
            return Err(INVALID_VALUE);
        }
        take_one(&mut state.allocations_left, OUT_OF_MEMORY)?;
        let memory = DeviceMemory::new(len);
        write(address, memory.address())?;
        state.memory.insert(memory.address(), memory);
        state.counts.allocations += 1;
        Ok(())
    }

    fn cuMemFree_v2, hipFree(address: u64) {
        let mut state = State::used()?;
        current()?;
        let Some(memory) = state.memory.remove(&address) else {
            violation("memory of a device was freed that is not there");
            return Err(INVALID_VALUE);
        };
        memory.is_freed.store(true, Ordering::SeqCst);
        state.counts.allocations -= 1;
        Ok(())
    }

    fn cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync(to: u64, from: *const c_void, len: usize, stream: usize) {
        let mut state = State::used()?;
        let stream = state.stream(stream)?;
        let Some(memory) = state.memory_at(to, len) else {
            violation("a copy to what is not a device's memory");
            return Err(INVALID_VALUE);
        };
        take_one(&mut state.copies_taken_left, CAPTURE_UNSUPPORTED)?;
        if take_one(&mut state.copies_left, ILLEGAL_ADDRESS).is_err() {
            IS_LOST.store(true, Ordering::SeqCst);
            return Err(ILLEGAL_ADDRESS);
        }
        let from = match state.host.reading(from as usize, len) {
            Some(reading) => {
                state.counts.copies += 1;
                state.counts.copied_bytes += len as u64;
                Source::Registered { address: from as usize, _reading: reading }
            }
            None if state.host.overlaps(from as usize, len) => {
                violation("a copy crosses the border of registered memory");
                return Err(INVALID_VALUE);
            }
            None => {
                state.counts.pageable_bytes += len as u64;
                // SAFETY: the caller has these bytes.
                Source::Copied(unsafe { std::slice::from_raw_parts(from.cast(), len) }.to_vec())
            }
        };
        stream.push(Work::Copy { memory, to, from, len });
        Ok(())
    }

    fn cuStreamCreate, hipStreamCreateWithFlags(stream: *mut usize, _flags: u32) {
        let mut state = State::used()?;
        let context = current()?;
        let handle = state.new_handle();
        state.streams.insert((context, handle), Stream::start(context));
        write(stream, handle)
    }

    fn cuStreamDestroy_v2, hipStreamDestroy(stream: usize) {
        let mut state = State::used()?;
        let gone = state.streams.remove(&(current()?, stream)).ok_or(INVALID_HANDLE)?;
        gone.push(Work::End);
        state.counts.handles -= 1;
        Ok(())
    }

    fn cuStreamWaitEvent, hipStreamWaitEvent(stream: usize, event: usize, _flags: u32) {
        let mut state = State::used()?;
        let event = state.event(event)?;
        let count = event.recorded();
        state.stream(stream)?.push(Work::Wait(event, count));
        Ok(())
    }

    fn cuEventCreate, hipEventCreateWithFlags(event: *mut usize, _flags: u32) {
        let mut state = State::used()?;
        let context = current()?;
        let handle = state.new_handle();
        state.events.insert(handle, Event::new(context));
        write(event, handle)
    }

    fn cuEventRecord, hipEventRecord(event: usize, stream: usize) {
        let mut state = State::used()?;
        let event = state.event(event)?;
        let stream = state.stream(stream)?;
        if event.context != stream.context {
            return Err(INVALID_HANDLE);
        }
        let count = event.record();
        stream.push(Work::Record(event, count));
        Ok(())
    }

    fn cuEventQuery, hipEventQuery(event: usize) {
        let event = State::used()?.event(event)?;
        ask_event()?;
        if event.has_passed() { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuEventSynchronize, hipEventSynchronize(event: usize) {
        let event = State::used()?.event(event)?;
        ask_event()?;
        event.wait(event.recorded());
        State::used().map(drop)
    }

    fn cuEventDestroy_v2, hipEventDestroy(event: usize) {
        let mut state = State::used()?;
        state.events.remove(&event).ok_or(INVALID_HANDLE)?;
        state.counts.handles -= 1;
        Ok(())
    }

    fn cuGetErrorName, hipDrvGetErrorName(code: Code, name: *mut *const c_char) {
        let text = match code {
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
            INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
            ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
            CAPTURE_UNSUPPORTED => c"CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
            _ => return Err(INVALID_VALUE),
        };
        write(name, text.as_ptr())
    }
}

/// Writes a result.
fn write<T>(to: *mut T, value: T) -> Result<(), Code> {
    // SAFETY: the caller of an exported function has room for its result there.
    unsafe { to.write(value) };
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn fake_violations() -> u64 {
    VIOLATIONS.load(Ordering::SeqCst)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn fake_counts(counts: *mut Counts) {
    let _ = write(counts, state().counts); // does not fail
}

#[unsafe(no_mangle)]
extern "C" fn fake_refuse_registration(after: u64) {
    state().registrations_left = Some(after);
}

#[unsafe(no_mangle)]
extern "C" fn fake_fail_allocation(after: u64) {
    state().allocations_left = Some(after);
}

#[unsafe(no_mangle)]
extern "C" fn fake_lose_after(copies: u64) {
    state().copies_left = Some(copies);
}

#[unsafe(no_mangle)]
extern "C" fn fake_refuse_copies(after: u64) {
    state().copies_taken_left = Some(after);
}

#[unsafe(no_mangle)]
extern "C" fn fake_fail_events(code: u64) {
    EVENT_FAULT.store(code as Code, Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn fake_capture(is_on: u64) {
    IS_CAPTURING.store(is_on != 0, Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn fake_hold(is_on: u64) {
    IS_HELD.store(is_on != 0, Ordering::SeqCst);
}

#[unsafe(no_mangle)]
extern "C" fn fake_delay(is_random: u32) {
    DELAYS.store(is_random != 0, Ordering::Relaxed);
}

#[unsafe(no_mangle)]
extern "C" fn fake_is_registered(start: usize, len: usize) -> u32 {
    state().host.reading(start, len).is_some().into()
}

#[unsafe(no_mangle)]
extern "C" fn fake_expect(stream: usize, at: u64, len: usize, digest: u64) -> Code {
    let queued = State::used().and_then(|mut state| {
        let memory = state.memory_at(at, len).ok_or(INVALID_VALUE)?;
        state.stream(stream)?.push(Work::Expect { memory, at, len, digest });
        Ok(())
    });
    queued.err().unwrap_or(0)
}

const DEVICES: i32 = 2;
const FIRST_CONTEXT: usize = 0x1000;
const PORTABLE: u32 = 1;
const READ_ONLY: u32 = 8;

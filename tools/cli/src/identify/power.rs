//! The power states of a controller, in the forms of nvme-cli.

use serde_json::{Value, json};

/// The descriptors of the NPSS + 1 power states.
pub(super) fn states(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    page[2048..3072].chunks_exact(32).take(usize::from(page[263]) + 1)
}

/// The lines of power state `number`.
pub(super) fn lines(number: usize, state: &[u8]) -> Vec<String> {
    let watts = |power: u16, scale: u16, digits: usize| {
        format!("{}.{:0digits$}W", power / scale, power % scale)
    };
    let scaled = |power: u16, scale: u8| match scale {
        0 => "-".to_owned(),
        1 => watts(power, 10_000, 4),
        2 => watts(power, 100, 2),
        _ => "reserved".to_owned(),
    };
    let most = scaled(u16_at(state, 0), if state[3] & MXPS != 0 { 1 } else { 2 });
    let non = if state[3] & NOPS != 0 { "non-" } else { "" };
    let enlat = u32_at(state, 4);
    let exlat = u32_at(state, 8);
    let idle = scaled(u16_at(state, 16), state[18] >> 6);
    let active = scaled(u16_at(state, 20), state[22] >> 6);
    let workload = match state[22] & 7 {
        0 => "-",
        1 => "1MiB 32 RW, 30s idle",
        2 => "80K 128KiB SW",
        _ => "reserved",
    };
    let time = |what: &str, time: u8, scale: u8| {
        let value = match (time, SCALES.get(usize::from(scale))) {
            (0, _) => "-".to_owned(),
            (1..=99, scale) => format!("{time} (unit: {})", scale.unwrap_or(&"Reserved")),
            _ => "reserved".to_owned(),
        };
        format!("{:12}{what}: {value}", "")
    };
    vec![
        format!(
            "ps   {number:4} : mp:{most} {non}operational enlat:{enlat} exlat:{exlat} rrt:{} rrl:{}",
            state[12], state[13]
        ),
        format!(
            "            rwt:{} rwl:{} idle_power:{idle} active_power:{active}",
            state[14], state[15]
        ),
        format!("            active_power_workload:{workload}"),
        time("emergency power fail recovery time", state[23], state[26] & 0xF),
        time("forced quiescence vault time", state[24], state[26] >> 4),
        time("emergency power fail vault time", state[25], state[27] & 0xF),
    ]
}

/// The same as a JSON object.
pub(super) fn object(state: &[u8]) -> Value {
    json!({
        "max_power": u16_at(state, 0),
        "max_power_scale": state[3] & MXPS,
        "non-operational_state": u8::from(state[3] & NOPS != 0),
        "entry_lat": u32_at(state, 4),
        "exit_lat": u32_at(state, 8),
        "read_tput": state[12],
        "read_lat": state[13],
        "write_tput": state[14],
        "write_lat": state[15],
        "idle_power": u16_at(state, 16),
        "idle_scale": state[18] >> 6,
        "active_power": u16_at(state, 20),
        "active_power_work": state[22] & 7,
        "active_scale": state[22] >> 6,
        "emerg_power_fail_recover_time": state[23],
        "emerg_power_fail_recover_scale": state[26] & 0xF,
        "force_quiesce_vault_time": state[24],
        "force_quiesce_vault_scale": state[26] >> 4,
        "emerg_power_fail_vault_time": state[25],
        "emerg_power_fail_vault_scale": state[27] & 0xF,
    })
}

fn u16_at(state: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([state[at], state[at + 1]])
}

fn u32_at(state: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([state[at], state[at + 1], state[at + 2], state[at + 3]])
}

/// MXPS: the maximum power is in units of 0.1 mW instead of 10 mW.
const MXPS: u8 = 1;
/// NOPS: the state is non-operational.
const NOPS: u8 = 2;
/// Names of the units of time.
const SCALES: [&str; 13] = [
    "1 microsecond",
    "10 microseconds",
    "100 microseconds",
    "1 millisecond",
    "10 milliseconds",
    "100 milliseconds",
    "1 second",
    "10 seconds",
    "100 seconds",
    "1,000 seconds",
    "10,000 seconds",
    "100,000 seconds",
    "1,000,000 seconds",
];

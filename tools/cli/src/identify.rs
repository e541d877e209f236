//! Identify data structures as text and as JSON, in the forms of nvme-cli 2.13 to 2.16. Only formats bytes;
//! asks no target.

use serde_json::{Map, Value, json};

use dlfs::units::Nsid;

/// Identify Controller as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn controller(page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec!["NVME Identify Controller:".to_owned()];
    lines.extend(self::lines(CONTROLLER, page, 10));
    let mut object = object(CONTROLLER, page);
    for (number, state) in states(page).enumerate() {
        lines.extend(power_lines(number, state));
    }
    object.insert("psds".to_owned(), states(page).map(power_object).collect());
    (lines, Value::Object(object))
}

/// Identify Namespace as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn namespace(nsid: Nsid, page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec![format!("NVME Identify Namespace {}:", nsid.0)];
    lines.extend(self::lines(NAMESPACE, page, 8));
    let mut object = object(NAMESPACE, page);
    // NLBAF is 0-based; FLBAS gives the format in use.
    let in_use = usize::from(page[26] & 0xF | (page[26] & 0x60) >> 1);
    let with_attributes = usize::from(page[25]);
    let all = usize::from(page[25]) + usize::from(page[82]);
    let formats = page[128..384].chunks_exact(4).take(all + 1);
    let mut list = Vec::new();
    for (number, format) in formats.enumerate() {
        let ms = u16::from_le_bytes([format[0], format[1]]);
        let ds = format[2];
        let rp = format[3] & 3;
        let mark = if number == in_use { "(in use)" } else { "" };
        let rp = if rp == 0 { "0".to_owned() } else { format!("{rp:#x}") }; // as C's %#x
        lines.push(format!("lbaf {number:2} : ms:{ms:<3} lbads:{ds:<2} rp:{rp} {mark}"));
        if number > with_attributes {
            continue; // nvme-cli's JSON has only the first kind
        }
        list.push(json!({
            "lbaf": number, "ms": ms, "ds": ds, "rp": format[3] & 3,
            "in_use": u8::from(number == in_use),
        }));
    }
    object.insert("lbafs".to_owned(), list.into());
    object.insert("vs".to_owned(), vendor_specific(&page[384..]).into());
    (lines, Value::Object(object))
}

/// The vendor specific bytes up to the first zero, as rows of 16 characters, as in a hex dump.
fn vendor_specific(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
    bytes[..end].chunks(16).map(|chunk| chunk.iter().map(shown).collect()).collect()
}

/// A field: its name, its position, and its form.
struct Field {
    name: &'static str,
    offset: usize,
    len: usize,
    form: Form,
}

/// The form in which a field is shown.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    /// A number, decimal in text and JSON.
    Number,
    /// A number, hexadecimal in text and decimal in JSON.
    Hex,
    /// ASCII, padded with spaces or terminated by NUL.
    Text,
    /// The bytes of an identifier, in hexadecimal.
    Bytes,
    /// An OUI, stored with its lowest byte first: hexadecimal in text, a number in JSON.
    Oui,
    /// A UUID.
    Uuid,
}

impl Field {
    const fn new(name: &'static str, offset: usize, len: usize, form: Form) -> Field {
        Field { name, offset, len, form }
    }

    fn bytes<'a>(&self, page: &'a [u8]) -> &'a [u8] {
        &page[self.offset..self.offset + self.len]
    }

    fn number(&self, page: &[u8]) -> u128 {
        let low_first = self.bytes(page).iter().rev();
        low_first.fold(0, |number, &byte| number << 8 | u128::from(byte))
    }

    fn text(&self, page: &[u8]) -> String {
        let bytes = self.bytes(page);
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Returns whether nvme-cli shows the field: it shows some fields of namespaces only if NSFEAT.OPTPERF
    /// marks them as valid.
    fn is_there(&self, page: &[u8]) -> bool {
        match self.name {
            "npwg" | "npwa" | "npda" | "nows" => page[NSFEAT] & 0x30 != 0,
            "npdg" => page[NSFEAT] & 0x10 != 0,
            _ => true,
        }
    }

    /// The value as nvme-cli shows it in text.
    fn shown(&self, page: &[u8]) -> String {
        let hex = |bytes: &mut dyn Iterator<Item = &u8>| -> String {
            bytes.map(|byte| format!("{byte:02x}")).collect()
        };
        match self.form {
            Form::Number => self.number(page).to_string(),
            Form::Hex => match self.number(page) {
                0 => "0".to_owned(),
                number => format!("{number:#x}"),
            },
            Form::Text => self.text(page),
            Form::Bytes => hex(&mut self.bytes(page).iter()),
            Form::Oui => hex(&mut self.bytes(page).iter().rev()),
            Form::Uuid => uuid(self.bytes(page)),
        }
    }

    /// The value as nvme-cli writes it in JSON.
    fn json(&self, page: &[u8]) -> Value {
        match self.form {
            // nvme-cli writes a JSON number of up to 39 digits. Many readers lose digits of such a number, so
            // it is a string here.
            Form::Number | Form::Hex => match u64::try_from(self.number(page)) {
                Ok(number) => number.into(),
                Err(_) => self.number(page).to_string().into(),
            },
            Form::Oui => (self.number(page) as u64).into(),
            Form::Text | Form::Bytes | Form::Uuid => self.shown(page).into(),
        }
    }
}

/// The 16 bytes of a UUID as a string.
pub(crate) fn uuid(bytes: &[u8]) -> String {
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    [&digits[..8], &digits[8..12], &digits[12..16], &digits[16..20], &digits[20..]].join("-")
}

/// `name : value` for each field, with names padded as in nvme-cli.
fn lines(fields: &[Field], page: &[u8], width: usize) -> Vec<String> {
    let line = |field: &Field| match field.name {
        "nsattr" => format!("nsattr\t: {}", field.shown(page)), // nvme-cli has a tab there
        name => format!("{name:<width$}: {}", field.shown(page)),
    };
    fields.iter().filter(|field| field.is_there(page)).map(line).collect()
}

/// The fields as a JSON object.
fn object(fields: &[Field], page: &[u8]) -> Map<String, Value> {
    let fields = fields.iter().filter(|field| field.is_there(page));
    fields.map(|field| (field.name.to_owned(), field.json(page))).collect()
}

/// The offset of NSFEAT.
const NSFEAT: usize = 24;

macro_rules! fields {
    ($($name:ident $offset:literal $len:literal $form:ident;)*) => {
        &[$(Field::new(stringify!($name), $offset, $len, Form::$form)),*]
    };
}

/// Identify Controller.
const CONTROLLER: &[Field] = fields! {
    vid 0 2 Hex;
    ssvid 2 2 Hex;
    sn 4 20 Text;
    mn 24 40 Text;
    fr 64 8 Text;
    rab 72 1 Number;
    ieee 73 3 Oui;
    cmic 76 1 Hex;
    mdts 77 1 Number;
    cntlid 78 2 Hex;
    ver 80 4 Hex;
    rtd3r 84 4 Hex;
    rtd3e 88 4 Hex;
    oaes 92 4 Hex;
    ctratt 96 4 Hex;
    rrls 100 2 Hex;
    bpcap 102 1 Hex;
    nssl 104 4 Hex;
    plsi 110 1 Number;
    cntrltype 111 1 Number;
    fguid 112 16 Uuid;
    crdt1 128 2 Number;
    crdt2 130 2 Number;
    crdt3 132 2 Number;
    crcap 134 1 Number;
    nvmsr 253 1 Number;
    vwci 254 1 Number;
    mec 255 1 Number;
    oacs 256 2 Hex;
    acl 258 1 Number;
    aerl 259 1 Number;
    frmw 260 1 Hex;
    lpa 261 1 Hex;
    elpe 262 1 Number;
    npss 263 1 Number;
    avscc 264 1 Hex;
    apsta 265 1 Hex;
    wctemp 266 2 Number;
    cctemp 268 2 Number;
    mtfa 270 2 Number;
    hmpre 272 4 Number;
    hmmin 276 4 Number;
    tnvmcap 280 16 Number;
    unvmcap 296 16 Number;
    rpmbs 312 4 Hex;
    edstt 316 2 Number;
    dsto 318 1 Number;
    fwug 319 1 Number;
    kas 320 2 Number;
    hctma 322 2 Hex;
    mntmt 324 2 Number;
    mxtmt 326 2 Number;
    sanicap 328 4 Hex;
    hmminds 332 4 Number;
    hmmaxd 336 2 Number;
    nsetidmax 338 2 Number;
    endgidmax 340 2 Number;
    anatt 342 1 Number;
    anacap 343 1 Number;
    anagrpmax 344 4 Number;
    nanagrpid 348 4 Number;
    pels 352 4 Number;
    domainid 356 2 Number;
    kpioc 358 1 Number;
    mptfawr 360 2 Number;
    megcap 368 16 Number;
    tmpthha 384 1 Hex;
    cqt 386 2 Number;
    sqes 512 1 Hex;
    cqes 513 1 Hex;
    maxcmd 514 2 Number;
    nn 516 4 Number;
    oncs 520 2 Hex;
    fuses 522 2 Hex;
    fna 524 1 Hex;
    vwc 525 1 Hex;
    awun 526 2 Number;
    awupf 528 2 Number;
    icsvscc 530 1 Number;
    nwpc 531 1 Number;
    acwu 532 2 Number;
    ocfs 534 2 Hex;
    sgls 536 4 Hex;
    mnan 540 4 Number;
    maxdna 544 16 Number;
    maxcna 560 4 Number;
    oaqd 564 4 Number;
    rhiri 568 1 Number;
    hirt 569 1 Number;
    cmmrtd 570 2 Number;
    nmmrtd 572 2 Number;
    minmrtg 574 1 Number;
    maxmrtg 575 1 Number;
    trattr 576 1 Number;
    mcudmq 578 2 Number;
    mnsudmq 580 2 Number;
    mcmr 582 2 Number;
    nmcmr 584 2 Number;
    mcdqpc 586 2 Number;
    subnqn 768 256 Text;
    ioccsz 1792 4 Number;
    iorcsz 1796 4 Number;
    icdoff 1800 2 Number;
    fcatt 1802 1 Hex;
    msdbd 1803 1 Number;
    ofcs 1804 2 Number;
};

/// Identify Namespace, without its LBA formats.
const NAMESPACE: &[Field] = fields! {
    nsze 0 8 Hex;
    ncap 8 8 Hex;
    nuse 16 8 Hex;
    nsfeat 24 1 Hex;
    nlbaf 25 1 Number;
    flbas 26 1 Hex;
    mc 27 1 Hex;
    dpc 28 1 Hex;
    dps 29 1 Hex;
    nmic 30 1 Hex;
    rescap 31 1 Hex;
    fpi 32 1 Hex;
    dlfeat 33 1 Number;
    nawun 34 2 Number;
    nawupf 36 2 Number;
    nacwu 38 2 Number;
    nabsn 40 2 Number;
    nabo 42 2 Number;
    nabspf 44 2 Number;
    noiob 46 2 Number;
    nvmcap 48 16 Number;
    npwg 64 2 Number;
    npwa 66 2 Number;
    npdg 68 2 Number;
    npda 70 2 Number;
    nows 72 2 Number;
    mssrl 74 2 Number;
    mcl 76 4 Number;
    msrc 80 1 Number;
    kpios 81 1 Number;
    nulbaf 82 1 Number;
    kpiodaag 84 4 Number;
    anagrpid 92 4 Number;
    nsattr 99 1 Number;
    nvmsetid 100 2 Number;
    endgid 102 2 Number;
    nguid 104 16 Bytes;
    eui64 120 8 Bytes;
};

/// The descriptors of the NPSS + 1 power states.
fn states(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    page[2048..3072].chunks_exact(32).take(usize::from(page[263]) + 1)
}

/// The lines of power state `number`.
fn power_lines(number: usize, state: &[u8]) -> Vec<String> {
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
fn power_object(state: &[u8]) -> Value {
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn fields_are_read_from_their_places_and_shown_as_nvme_cli_shows_them() {
        let mut page = vec![0; 4096];
        page[0..2].copy_from_slice(&0x144Du16.to_le_bytes());
        page[4..24].copy_from_slice(b"S4              1234");
        page[73..76].copy_from_slice(&[0x38, 0x25, 0x00]);
        page[280..296].copy_from_slice(&(1u128 << 70).to_le_bytes());
        page[768..774].copy_from_slice(b"nqn.x\0");
        let (lines, json) = controller(&page);
        for line in [
            "vid       : 0x144d",
            "ssvid     : 0",
            "sn        : S4              1234",
            "ieee      : 002538",
        ] {
            assert!(lines.iter().any(|known| known == line), "{line}: {lines:?}");
        }
        assert_eq!((&json["vid"], &json["ieee"]), (&json!(0x144D), &json!(0x2538)));
        assert_eq!(
            (&json["tnvmcap"], &json["subnqn"]),
            (&json!("1180591620717411303424"), &json!("nqn.x"))
        );
    }

    #[test]
    fn power_states_are_shown_as_nvme_cli_shows_them() {
        let mut page = vec![0; 4096];
        page[263] = 1;
        page[2048..2050].copy_from_slice(&900_u16.to_le_bytes());
        let second = &mut page[2080..2112];
        (second[3], second[4], second[18], second[22]) = (3, 5, 0x40, 0x81);
        second[0..2].copy_from_slice(&63_u16.to_le_bytes());
        second[16..18].copy_from_slice(&45_u16.to_le_bytes());
        second[20..22].copy_from_slice(&123_u16.to_le_bytes());
        (second[24], second[26]) = (7, 0x60);
        let (lines, json) = controller(&page);
        let expected = "\
ps      0 : mp:9.00W operational enlat:0 exlat:0 rrt:0 rrl:0
            rwt:0 rwl:0 idle_power:- active_power:-
            active_power_workload:-
            emergency power fail recovery time: -
            forced quiescence vault time: -
            emergency power fail vault time: -
ps      1 : mp:0.0063W non-operational enlat:5 exlat:0 rrt:0 rrl:0
            rwt:0 rwl:0 idle_power:0.0045W active_power:1.23W
            active_power_workload:1MiB 32 RW, 30s idle
            emergency power fail recovery time: -
            forced quiescence vault time: 7 (unit: 1 second)
            emergency power fail vault time: -";
        assert_eq!(lines[lines.len() - 12..].join("\n"), expected);
        assert_eq!(json["psds"][0]["max_power"], 900);
        assert_eq!(
            (&json["psds"][1]["idle_scale"], &json["psds"][1]["exit_lat"]),
            (&json!(1), &json!(0))
        );
    }

    #[test]
    fn fields_that_only_some_namespaces_have_are_shown_for_those() {
        let mut page = vec![0; 4096];
        let has = |page: &[u8], name: &str| {
            let (lines, json) = namespace(Nsid(1), page);
            let start = format!("{name:<8}:");
            (lines.iter().any(|line| line.starts_with(&start)), !json[name].is_null())
        };
        assert_eq!((has(&page, "npwg"), has(&page, "npdg")), ((false, false), (false, false)));
        page[24] = 0x20;
        assert_eq!((has(&page, "npwg"), has(&page, "npdg")), ((true, true), (false, false)));
        page[24] = 0x10;
        assert_eq!((has(&page, "npwg"), has(&page, "npdg")), ((true, true), (true, true)));
        page[384..387].copy_from_slice(b"a b");
        assert_eq!(namespace(Nsid(1), &page).1["vs"], json!(["a.b"]));
    }

    #[test]
    fn the_format_in_use_is_marked() {
        let mut page = vec![0; 4096];
        (page[25], page[26]) = (1, 1);
        (page[130], page[134]) = (9, 12);
        let (lines, json) = namespace(Nsid(3), &page);
        assert_eq!(lines[0], "NVME Identify Namespace 3:");
        assert_eq!(
            lines[lines.len() - 2..],
            ["lbaf  0 : ms:0   lbads:9  rp:0 ", "lbaf  1 : ms:0   lbads:12 rp:0 (in use)"]
        );
        assert_eq!(
            json["lbafs"],
            json!([
                {"lbaf": 0, "ms": 0, "ds": 9, "rp": 0, "in_use": 0},
                {"lbaf": 1, "ms": 0, "ds": 12, "rp": 0, "in_use": 1}
            ])
        );
    }
}

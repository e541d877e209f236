//! Identify data structures as text and as JSON, in the forms of nvme-cli 2.13 to 2.16. Pure: the bytes are an
//! argument.

use serde_json::{Map, Value, json};

use dlfs::units::Nsid;

use crate::out::counted;

/// Identify Controller as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn controller(page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec!["NVME Identify Controller:".to_owned()];
    let fields = fields(CONTROLLER);
    lines.extend(self::lines(&fields, page, 10));
    let mut object = object(&fields, page);
    for (number, state) in states(page).enumerate() {
        lines.extend(power_lines(number, state));
    }
    object.insert("psds".to_owned(), states(page).map(power_object).collect());
    (lines, Value::Object(object))
}

/// Identify Namespace as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn namespace(nsid: Nsid, page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec![format!("NVME Identify Namespace {}:", nsid.0)];
    let fields = fields(NAMESPACE);
    lines.extend(self::lines(&fields, page, 8));
    let mut object = object(&fields, page);
    let in_use = usize::from(page[FLBAS] & 0xF | (page[FLBAS] & 0x60) >> 1);
    // NLBAF is 0-based. NULBAF more formats, with unique attributes, follow those that NLBAF counts.
    let last_common = usize::from(page[NLBAF]);
    let last = last_common + usize::from(page[NULBAF]);
    let formats = page[LBA_FORMATS].chunks_exact(4).take(last + 1);
    let mut list = Vec::new();
    for (number, format) in formats.enumerate() {
        let ms = u16::from_le_bytes([format[0], format[1]]);
        let ds = format[2];
        let rp = format[3] & 3;
        let mark = if number == in_use { "(in use)" } else { "" };
        let rp = if rp == 0 { "0".to_owned() } else { format!("{rp:#x}") }; // as C's %#x
        lines.push(format!("lbaf {number:2} : ms:{ms:<3} lbads:{ds:<2} rp:{rp} {mark}"));
        if number > last_common {
            continue; // nvme-cli's JSON lacks these
        }
        list.push(json!({
            "lbaf": number, "ms": ms, "ds": ds, "rp": format[3] & 3,
            "in_use": u8::from(number == in_use),
        }));
    }
    object.insert("lbafs".to_owned(), list.into());
    object.insert("vs".to_owned(), vendor_specific(&page[LBA_FORMATS.end..]).into());
    (lines, Value::Object(object))
}

/// The vendor specific bytes up to the first zero, as rows of 16 characters, as in a hex dump.
fn vendor_specific(bytes: &[u8]) -> Vec<String> {
    let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    let shown = |byte: &u8| if byte.is_ascii_graphic() { char::from(*byte) } else { '.' };
    bytes[..end].chunks(16).map(|chunk| chunk.iter().map(shown).collect()).collect()
}

/// A field of a data structure: its name, its position in bytes, and its form in text and JSON.
///
/// | form | value                                                                |
/// |------|----------------------------------------------------------------------|
/// |      | a number, decimal                                                    |
/// | `x`  | a number, hexadecimal in text and decimal in JSON                    |
/// | `s`  | ASCII, padded with spaces or terminated by NUL                       |
/// | `b`  | the bytes of an identifier, in hexadecimal                           |
/// | `o`  | an OUI, its lowest byte first: hexadecimal in text, a number in JSON |
/// | `u`  | a UUID                                                               |
struct Field {
    name: &'static str,
    offset: usize,
    len: usize,
    form: &'static str,
}

/// Parses a layout: a list of `NAME:LEN` with the letter of the form. A field begins where the previous one ends, or at
/// the `@OFFSET` before it.
fn fields(layout: &'static str) -> Vec<Field> {
    let mut offset = 0;
    let field = |word: &'static str| {
        if let Some(at) = word.strip_prefix('@') {
            offset = at.parse().expect("the layouts below are well-formed");
            return None;
        }
        let (name, rest) = word.split_once(':')?;
        let form = rest.trim_start_matches(|c: char| c.is_ascii_digit());
        let len = rest[..rest.len() - form.len()].parse::<usize>();
        let len = len.expect("the layouts below are well-formed");
        offset += len;
        Some(Field { name, offset: offset - len, len, form })
    };
    layout.split_whitespace().filter_map(field).collect()
}

impl Field {
    /// The bytes of the field.
    fn bytes<'a>(&self, page: &'a [u8]) -> &'a [u8] {
        &page[self.offset..self.offset + self.len]
    }

    /// The value as a number, of at most 16 bytes, little-endian.
    fn number(&self, page: &[u8]) -> u128 {
        let highest_first = self.bytes(page).iter().rev();
        highest_first.fold(0, |number, &byte| number << 8 | u128::from(byte))
    }

    /// The value as a string, up to the first NUL.
    fn text(&self, page: &[u8]) -> String {
        let bytes = self.bytes(page);
        let end = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
        String::from_utf8_lossy(&bytes[..end]).into_owned()
    }

    /// Returns whether nvme-cli shows the field: it shows some fields of namespaces only if NSFEAT.OPTPERF
    /// marks them as valid.
    fn is_shown(&self, page: &[u8]) -> bool {
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
            "" => self.number(page).to_string(),
            "x" => match self.number(page) {
                0 => "0".to_owned(),
                number => format!("{number:#x}"),
            },
            "s" => self.text(page),
            "b" => hex(&mut self.bytes(page).iter()),
            "o" => hex(&mut self.bytes(page).iter().rev()),
            _ => uuid(self.bytes(page)),
        }
    }

    /// The value as nvme-cli writes it in JSON.
    fn json(&self, page: &[u8]) -> Value {
        match self.form {
            // nvme-cli writes JSON numbers of up to 39 digits. Many readers lose digits of such numbers, so those above
            // 64 bits are strings here.
            "" | "x" => match u64::try_from(self.number(page)) {
                Ok(number) => number.into(),
                Err(_) => self.number(page).to_string().into(),
            },
            "o" => (self.number(page) as u64).into(),
            _ => self.shown(page).into(),
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
    fields.iter().filter(|field| field.is_shown(page)).map(line).collect()
}

/// The fields as a JSON object.
fn object(fields: &[Field], page: &[u8]) -> Map<String, Value> {
    let fields = fields.iter().filter(|field| field.is_shown(page));
    fields.map(|field| (field.name.to_owned(), field.json(page))).collect()
}

/// Offsets in Identify Namespace.
const NSFEAT: usize = 24;
const NLBAF: usize = 25;
const FLBAS: usize = 26;
const NULBAF: usize = 82;
/// The LBA formats in Identify Namespace, 4 bytes each; the vendor specific bytes follow.
const LBA_FORMATS: std::ops::Range<usize> = 128..384;

/// Identify Controller.
const CONTROLLER: &str = "
    @0     vid:2x ssvid:2x sn:20s mn:40s fr:8s rab:1 ieee:3o cmic:1x mdts:1 cntlid:2x
    @80    ver:4x rtd3r:4x rtd3e:4x oaes:4x ctratt:4x rrls:2x bpcap:1x
    @104   nssl:4x
    @110   plsi:1 cntrltype:1 fguid:16u crdt1:2 crdt2:2 crdt3:2 crcap:1
    @253   nvmsr:1 vwci:1 mec:1 oacs:2x acl:1 aerl:1 frmw:1x lpa:1x elpe:1 npss:1
    @264   avscc:1x apsta:1x wctemp:2 cctemp:2 mtfa:2 hmpre:4 hmmin:4 tnvmcap:16
    @296   unvmcap:16 rpmbs:4x edstt:2 dsto:1 fwug:1 kas:2 hctma:2x mntmt:2 mxtmt:2
    @328   sanicap:4x hmminds:4 hmmaxd:2 nsetidmax:2 endgidmax:2 anatt:1 anacap:1
    @344   anagrpmax:4 nanagrpid:4 pels:4 domainid:2 kpioc:1
    @360   mptfawr:2
    @368   megcap:16 tmpthha:1x
    @386   cqt:2
    @512   sqes:1x cqes:1x maxcmd:2 nn:4 oncs:2x fuses:2x fna:1x vwc:1x awun:2 awupf:2
    @530   icsvscc:1 nwpc:1 acwu:2 ocfs:2x sgls:4x mnan:4 maxdna:16 maxcna:4 oaqd:4
    @568   rhiri:1 hirt:1 cmmrtd:2 nmmrtd:2 minmrtg:1 maxmrtg:1 trattr:1
    @578   mcudmq:2 mnsudmq:2 mcmr:2 nmcmr:2 mcdqpc:2
    @768   subnqn:256s
    @1792  ioccsz:4 iorcsz:4 icdoff:2 fcatt:1x msdbd:1 ofcs:2";

/// Identify Namespace, without its LBA formats.
const NAMESPACE: &str = "
    @0     nsze:8x ncap:8x nuse:8x nsfeat:1x nlbaf:1 flbas:1x mc:1x dpc:1x dps:1x
    @30    nmic:1x rescap:1x fpi:1x dlfeat:1 nawun:2 nawupf:2 nacwu:2 nabsn:2 nabo:2
    @44    nabspf:2 noiob:2 nvmcap:16 npwg:2 npwa:2 npdg:2 npda:2 nows:2 mssrl:2 mcl:4
    @80    msrc:1 kpios:1 nulbaf:1
    @84    kpiodaag:4
    @92    anagrpid:4
    @99    nsattr:1 nvmsetid:2 endgid:2 nguid:16b eui64:8b";

/// The descriptors of the NPSS + 1 power states.
fn states(page: &[u8]) -> impl Iterator<Item = &[u8]> {
    page[2048..3072].chunks_exact(32).take(usize::from(page[263]) + 1)
}

/// The lines of text about power state `number`.
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
        let unit = match u32::from(scale) {
            scale @ 0..=2 => counted(10_u64.pow(scale), "microsecond"),
            scale @ 3..=5 => counted(10_u64.pow(scale - 3), "millisecond"),
            scale @ 6..=12 => counted(10_u64.pow(scale - 6), "second"),
            _ => "Reserved".to_owned(),
        };
        let value = match time {
            0 => "-".to_owned(),
            1..=99 => format!("{time} (unit: {unit})"),
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

/// A power state as a JSON object.
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

/// MXPS: the maximum power is in units of 0.1 mW instead of 10 mW.
const MXPS: u8 = 1;
/// NOPS: the state is non-operational.
const NOPS: u8 = 2;

fn u16_at(state: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([state[at], state[at + 1]])
}

fn u32_at(state: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([state[at], state[at + 1], state[at + 2], state[at + 3]])
}

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

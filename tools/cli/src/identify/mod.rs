//! Identify data structures as text and as JSON, in the forms of nvme-cli 2.13 to 2.16. Only formats bytes;
//! asks no target.

mod fields;
mod power;

pub(crate) use fields::uuid;
use serde_json::{Value, json};

use dlfs::units::Nsid;

/// Identify Controller as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn controller(page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec!["NVME Identify Controller:".to_owned()];
    lines.extend(fields::lines(fields::CONTROLLER, page, 10));
    let mut object = fields::object(fields::CONTROLLER, page);
    for (number, state) in power::states(page).enumerate() {
        lines.extend(power::lines(number, state));
    }
    object.insert("psds".to_owned(), power::states(page).map(power::object).collect());
    (lines, Value::Object(object))
}

/// Identify Namespace as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn namespace(nsid: Nsid, page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec![format!("NVME Identify Namespace {}:", nsid.0)];
    lines.extend(fields::lines(fields::NAMESPACE, page, 8));
    let mut object = fields::object(fields::NAMESPACE, page);
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

//! Identify data structures as text and as JSON, in the forms of nvme-cli. It asks no target.

mod fields;

use serde_json::{Map, Value, json};

use dlfs::units::Nsid;

/// Identify Controller as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn controller(page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec!["NVME Identify Controller:".to_owned()];
    lines.extend(fields::lines(fields::CONTROLLER, page, 10));
    let mut object = fields::object(fields::CONTROLLER, page);
    object.insert("psds".to_owned(), json!([]));
    (lines, Value::Object(object))
}

/// Identify Namespace as text and as JSON. `page` has 4,096 bytes.
pub(crate) fn namespace(nsid: Nsid, page: &[u8]) -> (Vec<String>, Value) {
    let mut lines = vec![format!("NVME Identify Namespace {}:", nsid.0)];
    lines.extend(fields::lines(fields::NAMESPACE, page, 8));
    let mut object = fields::object(fields::NAMESPACE, page);
    // NLBAF is 0-based; FLBAS says which of the formats is in use.
    let in_use = usize::from(page[26] & 0xF);
    let formats = page[128..].chunks_exact(4).take(usize::from(page[25]).min(63) + 1);
    let mut list = Vec::new();
    for (number, format) in formats.enumerate() {
        let (ms, ds, rp) = (u16::from_le_bytes([format[0], format[1]]), format[2], format[3] & 3);
        let mark = if number == in_use { "(in use)" } else { "" };
        let rp = if rp == 0 { "0".to_owned() } else { format!("{rp:#x}") }; // as C's %#x
        lines.push(format!("lbaf {number:2} : ms:{ms:<3} lbads:{ds:<2} rp:{rp} {mark}"));
        list.push(Value::Object(Map::from_iter([
            ("ms".to_owned(), ms.into()),
            ("ds".to_owned(), ds.into()),
            ("rp".to_owned(), (format[3] & 3).into()),
        ])));
    }
    object.insert("lbafs".to_owned(), list.into());
    (lines, Value::Object(object))
}

#[cfg(test)]
mod tests {
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
            json!([{"ms": 0, "ds": 9, "rp": 0}, {"ms": 0, "ds": 12, "rp": 0}])
        );
    }
}

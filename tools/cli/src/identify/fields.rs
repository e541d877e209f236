//! The fields of Identify data structures, with the names and forms of nvme-cli.

use serde_json::{Map, Value};

/// A field: its name, its position, and its form.
pub(super) struct Field {
    pub(super) name: &'static str,
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
    pub(super) fn shown(&self, page: &[u8]) -> String {
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
    pub(super) fn json(&self, page: &[u8]) -> Value {
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
pub(super) fn lines(fields: &[Field], page: &[u8], width: usize) -> Vec<String> {
    let line = |field: &Field| match field.name {
        "nsattr" => format!("nsattr\t: {}", field.shown(page)), // nvme-cli has a tab there
        name => format!("{name:<width$}: {}", field.shown(page)),
    };
    fields.iter().filter(|field| field.is_there(page)).map(line).collect()
}

/// The fields as a JSON object.
pub(super) fn object(fields: &[Field], page: &[u8]) -> Map<String, Value> {
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
pub(super) const CONTROLLER: &[Field] = fields! {
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
pub(super) const NAMESPACE: &[Field] = fields! {
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

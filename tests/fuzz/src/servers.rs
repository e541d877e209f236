//! Answers of servers of stores and catalogues, files in the folder of a catalogue, and lines of the control socket.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::channel;
use std::sync::{Arc, LazyLock, Mutex};
use std::time::Duration;

use dlfs::address::CatalogPlace;
use dlfs::catalog::Catalog;
#[cfg(feature = "cloud")]
use dlfs::places::{Client, Place, PlaceOptions};

use super::Target;

#[allow(dead_code, unreachable_pub)] // the command uses the other side
#[path = "../../../tools/cli/src/service/control.rs"]
mod control;

/// After a byte that chooses the store and whether it follows a good head: an answer of HTTP.
#[cfg(feature = "cloud")]
pub const STORE: Target = Target {
    name: "store",
    seeds: answers,
    refit: None,
    run: list,
    heap_bytes: 32 << 20,
    rounds: 60,
};

/// The answer of a server in place of Redis. Its address is in the variable `DLFS_CATALOGS`, which `run` sets.
pub const REDIS: Target = Target {
    name: "redis",
    seeds: replies,
    refit: None,
    run: ask,
    heap_bytes: 16 << 20,
    rounds: 60,
};

/// After a byte that chooses the file: a file in the folder of a catalogue.
pub const CATALOG: Target = Target {
    name: "catalog",
    seeds: files,
    refit: None,
    run: read,
    heap_bytes: 4 << 20,
    rounds: 300,
};

/// Lines of the control socket.
pub const CONTROL: Target = Target {
    name: "control",
    seeds: lines,
    refit: None,
    run: serve,
    heap_bytes: 4 << 20,
    rounds: 300,
};

/// A server that answers each connection with what it has, and closes it.
struct Server {
    port: u16,
    answer: Arc<Mutex<Answers>>,
}

/// An answer, and how often it is given: a listing that goes on and on would never end.
type Answers = (Vec<u8>, u32);

impl Server {
    fn start(port: u16) -> Server {
        let listener = TcpListener::bind(("127.0.0.1", port)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let answer = Arc::<Mutex<Answers>>::default();
        let given = Arc::clone(&answer);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut asked = [0; 4096];
                let len = stream.read(&mut asked).unwrap_or(0);
                let is_revision = asked[..len].windows(10).any(|word| word == b"/revision/");
                let mut given = given.lock().unwrap();
                let left = given.1;
                given.1 = left.saturating_sub(1);
                let bytes = match (left, is_revision) {
                    (0, _) => &b""[..],
                    (_, true) => COMMIT,
                    (_, false) => &given.0,
                };
                // A client that goes away early has seen enough.
                let _ = stream.write_all(bytes).and_then(|()| stream.shutdown(Shutdown::Write));
            }
        });
        Server { port, answer }
    }

    fn answers(&self, bytes: Vec<u8>) {
        *self.answer.lock().unwrap() = (bytes, 4);
    }
}

#[cfg(feature = "cloud")]
const STORES: [&str; 5] = ["s3://b/", "az://c/", "gs://b/", "hf://datasets/o/n/", "http://"];

#[cfg(feature = "cloud")]
fn answers() -> Vec<Vec<u8>> {
    let s3 = "<ListBucketResult><KeyCount>1</KeyCount><IsTruncated>false</IsTruncated><Contents><Key>a/b.bin</Key>\
        <LastModified>2026-11-27T00:00:00.000Z</LastModified><ETag>\"1\"</ETag><Size>7</Size></Contents>\
        </ListBucketResult>";
    let azure = "<EnumerationResults><Blobs><Blob><Name>a/b.bin</Name><Properties><Last-Modified>Fri, 27 Nov 2026 \
        00:00:00 GMT</Last-Modified><Content-Length>7</Content-Length><Content-Type>x</Content-Type><Etag>1</Etag>\
        </Properties></Blob></Blobs><NextMarker/></EnumerationResults>";
    let hub = r#"[{"type": "file", "path": "a/b.bin", "size": 7, "lfs": {"size": 7}}]"#;
    let page = "<title>Index of /a/</title><a href=\"../\">..</a><a href=\"b%20c.bin\">b c.bin</a><a href=\"d/\">d</a>";
    let head = "HTTP/1.1 200 OK\r\nContent-Length: 7\r\nETag: \"1\"\r\nLast-Modified: Fri, 27 Nov 2026 00:00:00 GMT\
        \r\nContent-Range: bytes 0-0/7\r\nLink: <http://h/?cursor=a>; rel=\"next\"\r\n\r\ncontent";
    let all =
        [(0, s3), (1, azure), (2, s3), (3, hub), (4, page), (8, head), (11, head), (12, head)];
    all.iter().map(|(kind, text)| [&[*kind][..], text.as_bytes()].concat()).collect()
}

#[cfg(feature = "cloud")]
fn list(input: &[u8]) {
    static STARTED: LazyLock<(Server, Vec<Client>)> = LazyLock::new(|| {
        let server = Server::start(0);
        let clients = STORES.iter().map(|store| client(store, server.port));
        let clients = clients.collect();
        (server, clients)
    });
    let Some((kind, rest)) = input.split_first() else { return };
    let (server, clients) = &*STARTED;
    let len = rest.len();
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Length: {len}\r\nContent-Type: text/html\r\n\r\n");
    let head = if kind & 8 == 0 { head.as_bytes() } else { b"" };
    server.answers([head, rest].concat());
    let client = &clients[usize::from(kind & 7) % clients.len()];
    let _ = client.list("a/", &mut |object| {
        assert!(!object.key.is_empty(), "an object has a key");
        Ok(())
    });
    let _ = client.head("a/b.bin").and_then(|object| {
        let mut byte = [0; 1];
        client
            .fetch(&object, 0..object.len_bytes.min(1))
            .read_into(&mut byte[..object.len_bytes.min(1) as usize])
    });
}

#[cfg(feature = "cloud")]
fn client(store: &str, port: u16) -> Client {
    let url = format!("http://127.0.0.1:{port}");
    let settings = [
        ("aws_endpoint_url", &*url),
        ("aws_access_key_id", "a"),
        ("aws_secret_access_key", "b"),
        ("aws_region", "c"),
        ("azure_storage_endpoint", &url),
        ("azure_storage_account_name", "account"),
        ("azure_storage_sas_key", "sv=1&sig=2"),
        ("google_base_url", &url),
        ("google_skip_signature", "true"),
        ("hf_endpoint", &url),
        ("hf_token", ""),
    ];
    let options = PlaceOptions {
        settings: settings.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
        range_bytes: 1 << 16,
        window_bytes: 1 << 20,
        silence: Duration::from_secs(2),
        patience: Duration::ZERO,
        ..PlaceOptions::default()
    };
    let place = if store == "http://" { format!("{url}/") } else { store.to_owned() };
    Client::open(&Place::parse(&place).unwrap(), &options).unwrap()
}

fn replies() -> Vec<Vec<u8>> {
    let hash = format!("*2\r\n$1\r\n1\r\n${}\r\n{RECORD}\r\n", RECORD.len());
    let others =
        ["*1\r\n$5\r\ntrain\r\n", "-ERR no\r\n", "%1\r\n+1\r\n,1.5\r\n", "$-1\r\n:7\r\n*-1\r\n"];
    others.iter().map(|text| text.as_bytes().to_vec()).chain([hash.into_bytes()]).collect()
}

fn ask(input: &[u8]) {
    static STARTED: LazyLock<Option<Server>> = LazyLock::new(|| {
        let places = std::env::var("DLFS_CATALOGS").ok()?;
        let port = places.strip_prefix("fuzz=redis://127.0.0.1:")?.parse().ok()?;
        Some(Server::start(port))
    });
    let Some(server) = &*STARTED else { return };
    server.answers(input.to_vec());
    check(&Catalog::open(&CatalogPlace::Configured("fuzz".to_owned())).unwrap());
}

const FILES: [&str; 4] =
    ["train/versions/1.json", "train/index.json", "train/aliases/a/1.json", "dlfs-catalog.json"];

const RECORD: &str = r#"{"image": "01000000-0000-4000-8000-000000000000", "generation": 1, "sites": ["/a.dlfs"],
    "samples": 1, "bytes": 1, "chunks": 1, "snapshot": "crc32c:00000000,4096 bytes", "dlfs": "0.1.0",
    "committed_s": 1, "parent": {"image": "0", "generation": 0}, "labels": {"a": "b"}, "fields": ["c"]}"#;

fn files() -> Vec<Vec<u8>> {
    let index = r#"{"format": 1, "generation": 1, "chunks": []}"#;
    let all = [(0, RECORD), (1, index), (2, r#"{"generation": 1}"#), (3, "{}")];
    all.iter().map(|(kind, text)| [&[*kind][..], text.as_bytes()].concat()).collect()
}

fn read(input: &[u8]) {
    let Some((kind, content)) = input.split_first() else { return };
    let dir = tempfile::tempdir().unwrap();
    for folder in ["train/versions", "train/aliases/a"] {
        std::fs::create_dir_all(dir.path().join(folder)).unwrap();
    }
    std::fs::write(dir.path().join(FILES[3]), "{\"catalogue of dlfs\": 1}\n").unwrap();
    std::fs::write(dir.path().join(FILES[0]), RECORD).unwrap();
    std::fs::write(dir.path().join(FILES[usize::from(*kind) % FILES.len()]), content).unwrap();
    check(&Catalog::open(&CatalogPlace::Folder(dir.path().to_owned())).unwrap());
}

/// Asks for all that a catalogue says.
fn check(catalog: &Catalog) {
    let _ = (catalog.names(), catalog.aliases("train"), catalog.history("train", "a"));
    let _ = (catalog.index("train"), catalog.find("train", None));
    for (_, record) in catalog.versions("train").unwrap_or_default() {
        let _ = record.addresses().inspect(|sites| assert!(!sites.is_empty(), "a site at least"));
    }
}

fn lines() -> Vec<Vec<u8>> {
    let texts = [
        "{\"id\": 1, \"method\": \"stats\"}\n",
        "{\"method\": \"add-ns\", \"params\": {\"address\": \"a\"}}\n{",
    ];
    texts.map(|text| text.as_bytes().to_vec()).into()
}

/// Each line gets one answer, which is a line; what is no request is refused.
fn serve(input: &[u8]) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("socket");
    let (events, asked) = channel();
    let control = control::Control::open(&path, events).unwrap();
    let answering = std::thread::spawn(move || {
        let mut requests = 0;
        for event in asked {
            if let control::Event::Asked(request, reply) = event {
                requests += 1;
                let _ = reply.send(Ok(request.params));
            }
        }
        requests
    });
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(input).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut answers = String::new();
    // It may have been closed with bytes that nobody read.
    let _ = client.read_to_string(&mut answers);
    drop(control);
    let requests = answering.join().unwrap();
    let lines = input.iter().filter(|byte| **byte == b'\n').count();
    assert!(requests <= lines && answers.lines().count() <= lines, "{answers}");
}

const COMMIT: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 18\r\n\r\n{\"sha\": \"0123456\"}";

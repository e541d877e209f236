//! Redirects of stores, and answers without an end: what is passed on to another server, and what ends the request.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dlfs::places::{Client, Place, PlaceOptions};
use dlfs::{ErrorKind, Result};

type Heads = Arc<Mutex<Vec<String>>>;

/// A server that keeps the heads of requests and answers each by a function, which ends the connection.
struct Server {
    address: String,
    heads: Heads,
}

impl Server {
    fn new(
        answer: impl Fn(&str, &mut TcpStream) -> io::Result<()> + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let heads = Heads::default();
        let answer = Arc::new(answer);
        let kept = Arc::clone(&heads);
        // It ends with the test program.
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let kept = Arc::clone(&kept);
                let answer = Arc::clone(&answer);
                std::thread::spawn(move || {
                    let head = head_of(&stream)?;
                    kept.lock().unwrap().push(head.clone());
                    answer(&head, &mut stream)
                });
            }
        });
        Server { address, heads }
    }

    fn redirecting(location: impl Fn(&str) -> String + Send + Sync + 'static) -> Server {
        Server::new(move |head, to| {
            let location = location(head);
            write!(to, "HTTP/1.1 307 Elsewhere\r\nLocation: {location}\r\n{SHORT}\r\n")
        })
    }

    /// One file, whatever it is called.
    fn of_a_file() -> Server {
        Server::new(|head, to| {
            let body = if head.starts_with("HEAD") { "" } else { "content" };
            write!(
                to,
                "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nLast-Modified: Fri, 27 Nov 2026 00:00:00 GMT\r\n"
            )?;
            write!(to, "Content-Length: 7\r\nConnection: close\r\n\r\n{body}")
        })
    }

    fn heads(&self) -> Vec<String> {
        self.heads.lock().unwrap().clone()
    }

    /// Addresses that lead to it, with each provider's credentials, all of which are called SECRET.
    fn doors(&self) -> Vec<(String, Vec<(String, String)>)> {
        let settings = |pairs: &[(&str, &str)]| {
            let pair = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
            pairs.iter().map(pair).collect::<Vec<_>>()
        };
        let url = format!("http://{}", self.address);
        let s3 = [
            ("aws_endpoint_url", &*url),
            ("aws_access_key_id", "AKIDSECRET"),
            ("aws_secret_access_key", "aws-SECRET"),
            ("aws_session_token", "session-SECRET"),
            ("aws_region", "us-east-1"),
        ];
        let az = [
            ("azure_storage_endpoint", &*url),
            ("azure_storage_account_name", "account"),
            ("azure_storage_sas_key", "sv=2024&sig=sas-SECRET"),
        ];
        let hf = [("hf_endpoint", &*url), ("hf_token", "hf_SECRET")];
        vec![
            ("s3://bucket/x".to_owned(), settings(&s3)),
            ("az://container/x".to_owned(), settings(&az)),
            ("hf://datasets/owner/name/x".to_owned(), settings(&hf)),
            (format!("{url}/x?X-Amz-Signature=url-SECRET"), Vec::new()),
        ]
    }
}

fn head_of(stream: &TcpStream) -> io::Result<String> {
    let mut head = String::new();
    let mut from = BufReader::new(stream);
    while from.read_line(&mut head)? > 2 {}
    Ok(head)
}

const SHORT: &str = "Content-Length: 0\r\nConnection: close\r\n";

/// The bytes of the object at `address`.
fn read((address, settings): &(String, Vec<(String, String)>)) -> Result<Vec<u8>> {
    let options = PlaceOptions {
        settings: settings.clone(),
        silence: Duration::from_secs(10),
        patience: Duration::from_secs(600),
        ..PlaceOptions::default()
    };
    let place = Place::parse(address)?;
    let client = Client::open(&place, &options)?;
    let object = client.head(place.key())?;
    let mut bytes = vec![0; object.len_bytes as usize];
    client.fetch(&object, 0..object.len_bytes).read_into(&mut bytes)?;
    Ok(bytes)
}

#[test]
fn nothing_of_a_credential_goes_to_another_origin() {
    let other = Server::of_a_file();
    let url = format!("http://{}/there", other.address);
    let first = Server::redirecting(move |head| {
        // The hub says itself which commit a revision is.
        if head.contains("/api/") { "ftp://nowhere/".to_owned() } else { url.clone() }
    });
    for door in first.doors().iter().filter(|(address, _)| !address.starts_with("hf:")) {
        assert_eq!(read(door).unwrap(), b"content", "{}", door.0);
    }
    assert!(first.heads().iter().filter(|head| head.contains("SECRET")).count() >= 3);
    let heads = other.heads();
    assert!(heads.len() >= 6, "{heads:?}");
    for head in heads {
        let head = head.to_ascii_lowercase();
        for secret in ["secret", "referer", "authorization", "cookie", "x-amz-", "x-ms-", "sig="] {
            assert!(!head.contains(secret), "{secret}: {head}");
        }
    }
}

#[test]
fn the_user_of_a_url_is_shown_to_its_server_and_to_no_other() {
    const BASIC: &str = "Basic bWU6cCBTRUNSRVQ="; // me:p SECRET
    let own = Server::new(|head, to| {
        let body = if head.starts_with("HEAD") { "" } else { "content" };
        if !head.contains(BASIC) {
            write!(to, "HTTP/1.1 401 Unauthorized\r\n{SHORT}\r\n")
        } else if head.contains(" /x ") {
            write!(to, "HTTP/1.1 302 Found\r\nLocation: /y\r\n{SHORT}\r\n")
        } else {
            write!(to, "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nContent-Length: 7\r\n")?;
            write!(
                to,
                "Last-Modified: Fri, 27 Nov 2026 00:00:00 GMT\r\nConnection: close\r\n\r\n{body}"
            )
        }
    });
    let with_user = |server: &Server, path: &str| {
        (format!("http://me:p%20SECRET@{}/{path}", server.address), Vec::new())
    };
    for path in ["y", "x"] {
        assert_eq!(read(&with_user(&own, path)).unwrap(), b"content", "{path}");
    }
    let error = read(&(format!("http://{}/y", own.address), Vec::new())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    let other = Server::of_a_file();
    let url = format!("http://{}/there", other.address);
    let first = Server::redirecting(move |_| url.clone());
    assert_eq!(read(&with_user(&first, "x")).unwrap(), b"content");
    assert!(first.heads().iter().all(|head| head.contains(BASIC)), "{:?}", first.heads());
    let heads = other.heads().concat().to_ascii_lowercase();
    assert!(!heads.is_empty() && !heads.contains("authorization"), "{heads}");
}

#[test]
fn a_redirect_that_hands_on_what_signs_a_request_or_leads_to_another_scheme_ends_at_once() {
    let other = Server::of_a_file();
    let url = format!("http://{}/there", other.address);
    let handing = Server::redirecting(move |head| {
        let query = head.lines().next().and_then(|line| line.split([' ', '?']).nth(2));
        format!("{url}?{}", query.unwrap_or_default())
    });
    let error = read(&handing.doors()[3]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.report().contains("with what signs the request"), "{}", error.report());
    assert!(!error.report().contains("SECRET") && other.heads().is_empty());
    for (to, told) in [("ftp://127.0.0.1/x", "another scheme"), ("/x?again", "in a circle")] {
        let server = Server::redirecting(move |_| to.to_owned());
        for door in server.doors() {
            let error = read(&door).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Refused, "{}: {}", door.0, error.report());
            assert!(error.report().contains(told), "{}: {}", door.0, error.report());
        }
    }
}

#[test]
pub fn answers_and_listings_without_an_end_are_errors() {
    let endless = |status: &'static str| {
        Server::new(move |_, to| {
            write!(to, "HTTP/1.1 {status}\r\nConnection: close\r\n\r\n<ListBucketResult>")?;
            loop {
                to.write_all(&[b' '; 1 << 16])?;
            }
        })
    };
    let list = |server: &Server| {
        let (_, settings) = server.doors().remove(0);
        let options = PlaceOptions { settings, ..PlaceOptions::default() };
        let client = Client::open(&Place::parse("s3://bucket/").unwrap(), &options).unwrap();
        client.list("", &mut |_| Ok(())).unwrap_err()
    };
    let refused = list(&endless("403 No"));
    assert_eq!(refused.kind(), ErrorKind::Refused, "{}", refused.report());
    let long = list(&endless("200 OK"));
    assert_eq!(long.kind(), ErrorKind::BadSource, "{}", long.report());
    assert!(long.report().contains("more than 64 MiB"), "{}", long.report());
    let pages = Mutex::new(0);
    let cursors = Server::new(move |_, to| {
        let mut page = pages.lock().unwrap();
        *page += 1;
        let body = format!(
            "<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>{page}\
             </NextContinuationToken></ListBucketResult>"
        );
        write!(
            to,
            "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
            body.len()
        )
    });
    let error = list(&cursors);
    assert!(error.report().contains("has no end"), "{}", error.report());
}

//! Addresses of metrics: `HOST:PORT`, or `http://HOST:PORT/PATH`.

use std::fmt;
use std::str::FromStr;

/// An address that serves metrics over HTTP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MetricsAddress {
    /// `HOST:PORT`, for the socket and for the Host header.
    pub(crate) authority: String,
    /// Begins with `/`.
    pub(crate) path: String,
}

impl FromStr for MetricsAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<MetricsAddress, String> {
        let wrong = || format!("{text:?} is not HOST:PORT or http://HOST:PORT{DEFAULT_PATH}");
        if text.starts_with("https://") {
            return Err("metrics are served without TLS: give http://HOST:PORT".to_owned());
        }
        let rest = text.strip_prefix("http://").unwrap_or(text);
        let (authority, path) = match rest.find('/') {
            Some(at) => rest.split_at(at),
            None => (rest, DEFAULT_PATH),
        };
        let path = if path == "/" { DEFAULT_PATH } else { path };
        let (host, port) = authority.rsplit_once(':').ok_or_else(wrong)?;
        let bracketed = host.starts_with('[') && host.ends_with(']');
        let is_host = !host.is_empty() && (bracketed || !host.contains(['[', ']', ':', '@']));
        // A line break would end the request line.
        let is_printable = rest.chars().all(|c| c.is_ascii_graphic());
        match port.parse::<u16>() {
            Ok(1..) if is_host && is_printable => {
                Ok(MetricsAddress { authority: authority.to_owned(), path: path.to_owned() })
            }
            _ => Err(wrong()),
        }
    }
}

/// The shortest form that can be given again.
impl fmt::Display for MetricsAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path == DEFAULT_PATH { "" } else { &self.path };
        write!(f, "{}{path}", self.authority)
    }
}

const DEFAULT_PATH: &str = "/metrics";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_port_or_a_url() {
        for (text, authority, path, shown) in [
            ("127.0.0.1:9410", "127.0.0.1:9410", "/metrics", "127.0.0.1:9410"),
            ("http://127.0.0.1:9410/metrics", "127.0.0.1:9410", "/metrics", "127.0.0.1:9410"),
            ("http://node-7:80/", "node-7:80", "/metrics", "node-7:80"),
            ("[::1]:9410", "[::1]:9410", "/metrics", "[::1]:9410"),
            ("proxy:80/a/metrics", "proxy:80", "/a/metrics", "proxy:80/a/metrics"),
        ] {
            let found: MetricsAddress = text.parse().unwrap();
            assert_eq!((&*found.authority, &*found.path), (authority, path), "{text}");
            assert_eq!(found.to_string(), shown);
        }
    }

    #[test]
    fn what_is_no_address_says_what_one_is() {
        for text in [
            "",
            "node7",
            ":9410",
            "node7:",
            "node7:0",
            "node7:65536",
            "::1:9410",
            "user@node7:9410",
            "node7:9410/a b",
            "node7:9410/\r\nX: y",
        ] {
            let error = text.parse::<MetricsAddress>().unwrap_err();
            assert!(error.contains("HOST:PORT"), "{text:?}: {error}");
        }
        let error = "https://node7:9410/metrics".parse::<MetricsAddress>().unwrap_err();
        assert!(error.contains("without TLS"), "{error}");
    }
}

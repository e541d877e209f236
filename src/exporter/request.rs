//! Parses the head of a request of HTTP/1.0 or 1.1; a body is ignored.

/// A request, parsed from the bytes so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Request {
    /// The head is incomplete.
    Incomplete,
    /// A request for the metrics.
    Metrics {
        /// True for HEAD: the answer has no body.
        is_head: bool,
    },
    /// A request to refuse, with this status and sentence.
    Refused(&'static str, &'static str),
}

/// Parses the head of a request from the bytes that have arrived.
pub(super) fn parse(bytes: &[u8]) -> Request {
    let Some(head_len) = end_of_head(bytes) else {
        if bytes.len() < MAX_HEAD_BYTES {
            return Request::Incomplete;
        }
        return Request::Refused("431 Request Header Fields Too Large", "The request is too long.");
    };
    let line = bytes[..head_len].split(|&byte| byte == b'\n').next().unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let bad = Request::Refused("400 Bad Request", "This is no request of HTTP/1.1.");
    let Ok(line) = std::str::from_utf8(line) else { return bad };
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return bad;
    };
    if !["HTTP/1.0", "HTTP/1.1"].contains(&version) {
        return if version.starts_with("HTTP/") {
            Request::Refused("505 HTTP Version Not Supported", "Ask with HTTP/1.1.")
        } else {
            bad
        };
    }
    if !["GET", "HEAD"].contains(&method) {
        return Request::Refused("405 Method Not Allowed", "Only GET and HEAD are answered.");
    }
    let path = target.split('?').next().unwrap_or(target);
    if path != "/metrics" {
        return Request::Refused("404 Not Found", "The metrics are at /metrics.");
    }
    Request::Metrics { is_head: method == "HEAD" }
}

/// The length of the head including its empty line; `None` until the empty line has arrived.
fn end_of_head(bytes: &[u8]) -> Option<usize> {
    let ends: [&[u8]; 2] = [b"\r\n\r\n", b"\n\n"];
    let find = |end: &[u8]| {
        bytes.windows(end.len()).position(|window| window == end).map(|at| at + end.len())
    };
    ends.into_iter().filter_map(find).min()
}

/// The longest head of a request. Prometheus sends some hundred bytes.
pub(super) const MAX_HEAD_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    fn status(request: &str) -> &'static str {
        match parse(request.as_bytes()) {
            Request::Incomplete => "incomplete",
            Request::Metrics { is_head: false } => "metrics",
            Request::Metrics { is_head: true } => "head",
            Request::Refused(status, _) => &status[..3],
        }
    }

    #[test]
    fn only_the_metrics_are_answered_and_every_other_request_says_why_not() {
        for (request, expected) in [
            ("", "incomplete"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n", "incomplete"),
            ("GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n", "metrics"),
            ("GET /metrics?name=x HTTP/1.1\r\n\r\nbody", "metrics"),
            ("GET /metrics HTTP/1.0\n\n", "metrics"),
            ("HEAD /metrics HTTP/1.1\r\n\r\n", "head"),
            ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
            ("GET / HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics/../../etc/passwd HTTP/1.1\r\n\r\n", "404"),
            ("GET /metrics HTTP/2.0\r\n\r\n", "505"),
            ("GET /metrics\r\n\r\n", "400"),
            ("GET  /metrics HTTP/1.1\r\n\r\n", "400"),
            ("\u{16}\u{3}\u{1}\n\n", "400"),
            ("\r\n\r\n", "400"),
        ] {
            assert_eq!(status(request), expected, "{request:?}");
        }
        assert_eq!(status(&"x".repeat(MAX_HEAD_BYTES - 1)), "incomplete");
        assert_eq!(status(&"x".repeat(MAX_HEAD_BYTES)), "431");
    }

    #[test]
    fn no_bytes_make_it_panic() {
        let request = b"GET /metrics HTTP/1.1\r\n\r\n";
        for at in 0..request.len() {
            for byte in 0..=255 {
                let mut changed = *request;
                changed[at] = byte;
                let _ = parse(&changed); // any result will do, but no panic
                let _ = parse(&changed[at..]);
            }
        }
    }
}

//! HTTP/1.1, as much as a scraper needs: requests without a body, answers of known length.

use httparse::{EMPTY_HEADER, Request as Head, Status};

use crate::openmetrics::accept::Format;
use crate::openmetrics::limits::{MAX_HEADERS, MAX_REQUEST_BYTES};

/// What a client wants.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Request {
    pub what: What,
    /// Without what the answer's body would be.
    pub head_only: bool,
    /// The connection ends with the answer.
    pub close: bool,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum What {
    /// `/metrics`
    Figures(Format),
    /// `/`
    Index,
    /// What there is not, or cannot be done.
    Refused(Refusal),
}

/// Why not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    NotHttp,
    NotFound,
    Method,
    TooLong,
}

impl Refusal {
    /// Status, reason, and what to do instead.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Self::NotHttp => ("400 Bad Request", "this is not HTTP/1.1: GET /metrics is\n"),
            Self::NotFound => ("404 Not Found", "not there: figures are at /metrics\n"),
            Self::Method => (
                "405 Method Not Allowed",
                "only GET and HEAD are known here\n",
            ),
            Self::TooLong => (
                "431 Request Header Fields Too Large",
                "a request has at most 8192 bytes and 64 header fields\n",
            ),
        }
    }
}

impl Request {
    fn refused(why: Refusal) -> Self {
        Request {
            what: What::Refused(why),
            head_only: false,
            // What follows cannot be told apart from it.
            close: true,
        }
    }

    /// Takes the first request out of what came; `None`: it is not complete.
    pub fn take(input: &mut Vec<u8>) -> Option<Self> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut head = Head::new(&mut headers);
        match head.parse(input) {
            Ok(Status::Complete(len)) => {
                let request = Self::of(&head);
                input.drain(..len);
                Some(request)
            }
            Ok(Status::Partial) if input.len() >= MAX_REQUEST_BYTES => {
                Some(Self::refused(Refusal::TooLong))
            }
            Ok(Status::Partial) => None,
            Err(httparse::Error::TooManyHeaders) => Some(Self::refused(Refusal::TooLong)),
            Err(_) => Some(Self::refused(Refusal::NotHttp)),
        }
    }

    fn of(head: &Head<'_, '_>) -> Self {
        let field = |name: &str| {
            let mut fields = head.headers.iter();
            let found = fields.find(|field| field.name.eq_ignore_ascii_case(name));
            found.map(|field| String::from_utf8_lossy(field.value))
        };
        let connection = field("connection").unwrap_or_default().to_ascii_lowercase();
        let keeps = match head.version {
            Some(1) => !connection.contains("close"),
            _ => connection.contains("keep-alive"),
        };
        // Nobody reads a body: the connection ends, so that it is not taken for a request.
        let has_body = field("transfer-encoding").is_some()
            || field("content-length").is_some_and(|length| length.trim() != "0");
        let path = head.path.unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let what = match (head.method.unwrap_or_default(), path) {
            ("GET" | "HEAD", "/metrics") => {
                What::Figures(Format::wanted(&field("accept").unwrap_or_default()))
            }
            ("GET" | "HEAD", "/") => What::Index,
            ("GET" | "HEAD", _) => What::Refused(Refusal::NotFound),
            _ => What::Refused(Refusal::Method),
        };
        Request {
            what,
            head_only: head.method == Some("HEAD"),
            close: !keeps || has_body,
        }
    }

    /// The answer, with a body that the caller has for what is not refused.
    pub fn answer(&self, body: impl FnOnce() -> String) -> Vec<u8> {
        let plain = "text/plain; charset=utf-8";
        let (status, kind, body) = match self.what {
            What::Figures(format) => ("200 OK", format.content_type(), body()),
            What::Index => ("200 OK", plain, body()),
            What::Refused(why) => {
                let (status, words) = why.words();
                (status, plain, words.to_owned())
            }
        };
        let allow = match self.what {
            What::Refused(Refusal::Method) => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let connection = if self.close { "close" } else { "keep-alive" };
        let mut answer = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
             Connection: {connection}\r\n\r\n",
            body.len()
        );
        if !self.head_only {
            answer.push_str(&body);
        }
        answer.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(text: &str) -> Option<Request> {
        Request::take(&mut text.as_bytes().to_vec())
    }

    #[track_caller]
    fn refused(text: &str, why: Refusal) -> Request {
        let request = taken(text);
        assert!(
            matches!(&request, Some(Request { what: What::Refused(found), .. }) if *found == why),
            "{request:?}"
        );
        request.unwrap_or_else(|| Request::refused(why))
    }

    #[test]
    fn requests_are_taken_one_by_one() {
        let mut input =
            b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\n\r\nGET".to_vec();
        let figures = Request {
            what: What::Figures(Format::OpenMetrics),
            head_only: false,
            close: false,
        };
        assert_eq!(Request::take(&mut input), Some(figures));
        let index = Request {
            what: What::Index,
            head_only: true,
            close: false,
        };
        assert_eq!(Request::take(&mut input), Some(index));
        assert_eq!(Request::take(&mut input), None);
        assert_eq!(input, b"GET");
    }

    #[test]
    fn who_cannot_go_on_is_hung_up_on() {
        for text in [
            "GET / HTTP/1.0\r\n\r\n",
            "GET / HTTP/1.1\r\nConnection: Close\r\n\r\n",
            "GET / HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc",
            "GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n",
        ] {
            assert!(taken(text).is_some_and(|request| request.close), "{text}");
        }
        let kept = taken("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
        assert!(kept.is_some_and(|request| !request.close));
    }

    #[test]
    fn what_is_wrong_is_said() {
        refused("GET /x HTTP/1.1\r\n\r\n", Refusal::NotFound);
        let post = refused("POST /metrics HTTP/1.1\r\n\r\n", Refusal::Method);
        let answer = String::from_utf8(post.answer(String::new)).unwrap_or_default();
        assert!(
            answer.starts_with("HTTP/1.1 405 Method Not Allowed\r\n"),
            "{answer}"
        );
        assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
        assert!(refused("\x16\x03\x01", Refusal::NotHttp).close);
        refused("GET / HTTP/2\r\n\r\n", Refusal::NotHttp);
        let long = "x".repeat(MAX_REQUEST_BYTES);
        refused(&format!("GET /{long}"), Refusal::TooLong);
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        refused(&format!("GET / HTTP/1.1\r\n{many}\r\n"), Refusal::TooLong);
    }

    #[test]
    fn an_answer_says_its_length() {
        let request = taken("GET / HTTP/1.1\r\n\r\n");
        let answer = request.map(|request| request.answer(|| "hello".to_owned()));
        let answer = String::from_utf8(answer.unwrap_or_default()).unwrap_or_default();
        assert!(answer.contains("\r\nContent-Length: 5\r\n"), "{answer}");
        assert!(answer.ends_with("\r\n\r\nhello"), "{answer}");
    }
}

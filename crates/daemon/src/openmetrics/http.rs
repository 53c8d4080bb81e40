//! The part of HTTP/1.1 that a scraper needs: parses requests without a body, and encodes responses of known length.

use httparse::{EMPTY_HEADER, Request as Head, Status};

use crate::openmetrics::format::MetricsTextFormat;
use crate::openmetrics::limits::{MAX_HEADERS, MAX_REQUEST_BYTES};

/// A parsed request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpRequest {
    pub page: RequestedPage,
    /// HEAD: the response has no body.
    pub head_only: bool,
    /// The connection is closed after the response.
    pub close_after: bool,
}

/// The page that a request asks for, or the error that answers it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum RequestedPage {
    /// `/metrics`
    Metrics(MetricsTextFormat),
    /// `/`
    Index,
    /// A request that is answered with an error status.
    Invalid(HttpError),
}

/// Error of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HttpError {
    NotHttp,
    NotFound,
    MethodNotAllowed,
    TooLarge,
}

impl HttpError {
    /// Status line and body of the response.
    fn status_and_body(self) -> (&'static str, &'static str) {
        match self {
            Self::NotHttp => (
                "400 Bad Request",
                "this is not an HTTP/1.1 request; send GET /metrics\n",
            ),
            Self::NotFound => ("404 Not Found", "no such page: metrics are at /metrics\n"),
            Self::MethodNotAllowed => (
                "405 Method Not Allowed",
                "only GET and HEAD are supported\n",
            ),
            Self::TooLarge => (
                "431 Request Header Fields Too Large",
                "a request has at most 8192 bytes and 64 header fields\n",
            ),
        }
    }
}

impl HttpRequest {
    /// Creates the request that stands for input that cannot be parsed.
    fn new_invalid(error: HttpError) -> Self {
        HttpRequest {
            page: RequestedPage::Invalid(error),
            head_only: false,
            // Where the next request would begin is unknown.
            close_after: true,
        }
    }

    /// Removes the first request from the input and parses it; `None` if it is incomplete.
    pub fn parse_next(input: &mut Vec<u8>) -> Option<Self> {
        let mut headers = [EMPTY_HEADER; MAX_HEADERS];
        let mut head = Head::new(&mut headers);
        match head.parse(input) {
            Ok(Status::Complete(len)) => {
                let request = Self::from_head(&head);
                input.drain(..len);
                Some(request)
            }
            Ok(Status::Partial) if input.len() >= MAX_REQUEST_BYTES => {
                Some(Self::new_invalid(HttpError::TooLarge))
            }
            Ok(Status::Partial) => None,
            Err(httparse::Error::TooManyHeaders) => Some(Self::new_invalid(HttpError::TooLarge)),
            Err(_) => Some(Self::new_invalid(HttpError::NotHttp)),
        }
    }

    /// The request with this method, path and header fields.
    fn from_head(head: &Head<'_, '_>) -> Self {
        let header_field = |name: &str| {
            let mut fields = head.headers.iter();
            let found = fields.find(|field| field.name.eq_ignore_ascii_case(name));
            found.map(|field| String::from_utf8_lossy(field.value))
        };
        let connection = header_field("connection")
            .unwrap_or_default()
            .to_ascii_lowercase();
        let keep_alive = match head.version {
            Some(1) => !connection.contains("close"),
            _ => connection.contains("keep-alive"),
        };
        // Bodies are not read: the connection is closed, so that a body is not parsed as a request.
        let has_body = header_field("transfer-encoding").is_some()
            || header_field("content-length").is_some_and(|length| length.trim() != "0");
        let path = head.path.unwrap_or_default();
        let path = path.split_once('?').map_or(path, |(path, _)| path);
        let page = match (head.method.unwrap_or_default(), path) {
            ("GET" | "HEAD", "/metrics") => RequestedPage::Metrics(MetricsTextFormat::negotiate(
                &header_field("accept").unwrap_or_default(),
            )),
            ("GET" | "HEAD", "/") => RequestedPage::Index,
            ("GET" | "HEAD", _) => RequestedPage::Invalid(HttpError::NotFound),
            _ => RequestedPage::Invalid(HttpError::MethodNotAllowed),
        };
        HttpRequest {
            page,
            head_only: head.method == Some("HEAD"),
            close_after: !keep_alive || has_body,
        }
    }

    /// The bytes of the response; `body` is called for requests that are valid.
    pub fn encode_response(&self, body: impl FnOnce() -> String) -> Vec<u8> {
        let plain = "text/plain; charset=utf-8";
        let (status, content_type, body) = match self.page {
            RequestedPage::Metrics(format) => ("200 OK", format.content_type(), body()),
            RequestedPage::Index => ("200 OK", plain, body()),
            RequestedPage::Invalid(error) => {
                let (status, body) = error.status_and_body();
                (status, plain, body.to_owned())
            }
        };
        let allow = match self.page {
            RequestedPage::Invalid(HttpError::MethodNotAllowed) => "Allow: GET, HEAD\r\n",
            _ => "",
        };
        let connection = if self.close_after {
            "close"
        } else {
            "keep-alive"
        };
        let mut response = format!(
            "HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {}\r\n{allow}Cache-Control: no-store\r\n\
             Connection: {connection}\r\n\r\n",
            body.len()
        );
        if !self.head_only {
            response.push_str(&body);
        }
        response.into_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Option<HttpRequest> {
        HttpRequest::parse_next(&mut text.as_bytes().to_vec())
    }

    #[test]
    fn pipelined_requests_are_parsed_one_by_one() {
        let mut input =
            b"GET /metrics?x=1 HTTP/1.1\r\nHost: h\r\n\r\nHEAD / HTTP/1.1\r\n\r\nGET".to_vec();
        let metrics = RequestedPage::Metrics(MetricsTextFormat::OpenMetrics);
        for (page, head_only) in [(metrics, false), (RequestedPage::Index, true)] {
            let expected = HttpRequest {
                page,
                head_only,
                close_after: false,
            };
            assert_eq!(HttpRequest::parse_next(&mut input), Some(expected));
        }
        assert_eq!(HttpRequest::parse_next(&mut input), None);
        assert_eq!(input, b"GET");
    }

    #[test]
    fn connection_closes_after_http_1_0_close_or_a_body() {
        for (rest, closes) in [
            ("1.0\r\n\r\n", true),
            ("1.0\r\nConnection: keep-alive\r\n\r\n", false),
            ("1.1\r\nConnection: Close\r\n\r\n", true),
            ("1.1\r\nContent-Length: 3\r\n\r\nabc", true),
            ("1.1\r\nTransfer-Encoding: chunked\r\n\r\n", true),
        ] {
            let request = parse(&format!("GET / HTTP/{rest}")).unwrap();
            assert_eq!(request.close_after, closes, "{rest}");
        }
    }

    #[test]
    fn invalid_requests_are_answered_with_their_error() {
        let long = format!("GET /{}", "x".repeat(MAX_REQUEST_BYTES));
        let many = "a: b\r\n".repeat(MAX_HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        for (text, error, closes) in [
            ("GET /x HTTP/1.1\r\n\r\n", HttpError::NotFound, false),
            ("PUT / HTTP/1.1\r\n\r\n", HttpError::MethodNotAllowed, false),
            ("\x16\x03\x01", HttpError::NotHttp, true),
            ("GET / HTTP/2\r\n\r\n", HttpError::NotHttp, true),
            (&long, HttpError::TooLarge, true),
            (&many, HttpError::TooLarge, true),
        ] {
            let request = parse(text).unwrap();
            assert_eq!(request.page, RequestedPage::Invalid(error), "{text}");
            assert_eq!(request.close_after, closes, "{text}");
        }
    }

    #[test]
    fn response_has_a_content_length_and_an_error_says_what_is_allowed() {
        for (request, first, field, body) in [
            (
                "GET / HTTP/1.1\r\n\r\n",
                "200 OK",
                "Content-Length: 5",
                "hello",
            ),
            (
                "PUT / HTTP/1.1\r\n\r\n",
                "405 Method",
                "Allow: GET, HEAD",
                "\n",
            ),
        ] {
            let response = parse(request).unwrap().encode_response(|| "hello".into());
            let response = String::from_utf8(response).unwrap();
            assert!(
                response.starts_with(&format!("HTTP/1.1 {first}")),
                "{response}"
            );
            assert!(response.contains(&format!("\r\n{field}\r\n")), "{response}");
            assert!(response.ends_with(body), "{response}");
        }
    }
}

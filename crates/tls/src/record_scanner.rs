//! Scanner for record headers in received bytes (RFC 8446, section 5.1): a record costs time however little it contains, so a turn
//! counts them.

/// Bytes of a record's header: its type, a version, and the length of what follows.
const HEADER_BYTES: usize = 5;

/// The state of a scan of a stream: how far into a record, or its header, the scanned bytes reach.
#[derive(Clone, Copy, Default)]
pub(crate) struct RecordScanner {
    /// The part of the next header that has come.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes of the current record that have not come.
    left: usize,
}

/// The extent of one scan.
pub(crate) struct ScanResult {
    /// Bytes that were scanned.
    pub len_bytes: usize,
    /// Records that begin in these bytes.
    pub records: usize,
}

impl RecordScanner {
    /// Scans the next bytes of the stream, up to the end of the `max_records`-th record that begins in them.
    pub fn scan(&mut self, bytes: &[u8], max_records: usize) -> ScanResult {
        let (mut at, mut records) = (0, 0);
        while at < bytes.len() {
            if self.left > 0 {
                let len = self.left.min(bytes.len() - at);
                self.left -= len;
                at += len;
                continue;
            }
            if self.header_len == 0 {
                if records == max_records {
                    break;
                }
                records += 1;
            }
            self.header[self.header_len] = bytes[at];
            self.header_len += 1;
            at += 1;
            if self.header_len == HEADER_BYTES {
                let [.., high, low] = self.header;
                self.left = u16::from_be_bytes([high, low]).into();
                self.header_len = 0;
            }
        }
        ScanResult {
            len_bytes: at,
            records,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Records of these lengths, one after the other.
    fn stream(lengths: &[u16]) -> Vec<u8> {
        let record = |len: &u16| {
            let [high, low] = len.to_be_bytes();
            [&[23, 3, 3, high, low][..], &vec![7; usize::from(*len)]].concat()
        };
        lengths.iter().flat_map(record).collect()
    }

    #[test]
    fn records_are_counted_where_they_begin_however_the_stream_is_divided() {
        let bytes = stream(&[0, 1, 300, 16_000, 22, 22]);
        for step in [1, 2, 3, 5, 6, 7, 400, 20_000] {
            let (mut scanner, mut records) = (RecordScanner::default(), 0);
            for part in bytes.chunks(step) {
                let scanned = scanner.scan(part, usize::MAX);
                assert_eq!(scanned.len_bytes, part.len());
                records += scanned.records;
            }
            assert_eq!(records, 6, "{step}");
            assert_eq!((scanner.left, scanner.header_len), (0, 0));
        }
    }

    #[test]
    fn scan_stops_at_the_end_of_the_last_permitted_record() {
        let bytes = stream(&[22; 10]);
        let mut scanner = RecordScanner::default();
        let mut scan = |bytes: &[u8], max_records| {
            let scanned = scanner.scan(bytes, max_records);
            (scanned.len_bytes, scanned.records)
        };
        assert_eq!(scan(&bytes[..30], 2), (30, 2));
        assert_eq!(
            scan(&bytes[30..], 2),
            (24 + 2 * 27, 2),
            "and the rest of one"
        );
        assert_eq!(scan(&bytes[108..], 100), (162, 6));
    }
}

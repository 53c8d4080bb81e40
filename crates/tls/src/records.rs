//! Finds where records begin in what was received (RFC 8446, section 5.1): each costs time, however little it contains.

/// Bytes of a record's header: its type, a version, and the length of what follows.
const HEADER_BYTES: usize = 5;

/// How far the records of a stream were followed.
#[derive(Clone, Copy, Default)]
pub(crate) struct Records {
    /// The part of the next header that has come.
    header: [u8; HEADER_BYTES],
    header_len: usize,
    /// Bytes of the present record that have not come.
    left: usize,
}

impl Records {
    /// Follows the next bytes of the stream up to the end of the last of `most` records that begin in them. Returns how many bytes that
    /// are, and how many records begin in them.
    pub fn follow(&mut self, bytes: &[u8], most: usize) -> (usize, usize) {
        let (mut at, mut begun) = (0, 0);
        while at < bytes.len() {
            if self.left > 0 {
                let len = self.left.min(bytes.len() - at);
                self.left -= len;
                at += len;
                continue;
            }
            if self.header_len == 0 {
                if begun == most {
                    break;
                }
                begun += 1;
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
        (at, begun)
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
            let (mut records, mut begun) = (Records::default(), 0);
            for part in bytes.chunks(step) {
                let (len, more) = records.follow(part, usize::MAX);
                assert_eq!(len, part.len());
                begun += more;
            }
            assert_eq!(begun, 6, "{step}");
            assert_eq!((records.left, records.header_len), (0, 0));
        }
    }

    #[test]
    fn no_more_bytes_are_followed_than_those_of_so_many_records() {
        let bytes = stream(&[22; 10]);
        let mut records = Records::default();
        assert_eq!(records.follow(&bytes[..30], 2), (30, 2));
        assert_eq!(
            records.follow(&bytes[30..], 2),
            (24 + 2 * 27, 2),
            "and the rest of one"
        );
        assert_eq!(records.follow(&bytes[108..], 100), (162, 6));
    }
}

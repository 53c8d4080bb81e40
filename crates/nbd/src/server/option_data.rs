//! Data of options: names, lists of information requests, lists of queries.

use crate::wire::MAX_STRING_BYTES;

/// Data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct InfoRequest<'a> {
    pub name: &'a str,
    infos: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Parses the data.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(data: &'a [u8]) -> Result<Self, &'static str> {
        let mut data = Reader(data);
        let name = data.string()?;
        let count = data.u16()?;
        let infos = data.0;
        match infos.len() == usize::from(count) * 2 {
            true => Ok(InfoRequest { name, infos }),
            false => {
                Err("the number of information requests does not fit the length of the option")
            }
        }
    }

    /// Whether the client asks for this [information](crate::wire::info).
    pub fn asks_for(&self, info: u16) -> bool {
        let mut infos = self.infos.chunks_exact(2);
        infos.any(|asked| asked == info.to_be_bytes())
    }
}

/// Data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ContextQueries<'a> {
    pub export: &'a str,
    pub queries: Vec<&'a str>,
}

impl<'a> ContextQueries<'a> {
    /// Parses the data.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(data: &'a [u8]) -> Result<Self, &'static str> {
        let mut data = Reader(data);
        let export = data.string()?;
        let count = data.u32()?;
        let mut queries = Vec::new();
        for _ in 0..count {
            queries.push(data.string()?);
        }
        match data.0 {
            [] => Ok(ContextQueries { export, queries }),
            _ => Err("there is data after the queries"),
        }
    }
}

/// Checks the name of an export, which is all data of `NBD_OPT_EXPORT_NAME`.
pub(super) fn parse_name(data: &[u8]) -> Result<&str, &'static str> {
    if data.len() > MAX_STRING_BYTES as usize {
        return Err("a string is longer than 4096 bytes");
    }
    std::str::from_utf8(data).map_err(|_| "a string is not UTF-8")
}

/// Reads fields off the front of data.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, len: usize) -> Result<&'a [u8], &'static str> {
        let (bytes, rest) = self
            .0
            .split_at_checked(len)
            .ok_or("the option is shorter than the lengths in it")?;
        self.0 = rest;
        Ok(bytes)
    }

    fn u16(&mut self) -> Result<u16, &'static str> {
        let bytes = self.bytes(2)?;
        Ok(u16::from_be_bytes([bytes[0], bytes[1]]))
    }

    fn u32(&mut self) -> Result<u32, &'static str> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A string after its length.
    fn string(&mut self) -> Result<&'a str, &'static str> {
        let len = self.u32()? as usize;
        parse_name(self.bytes(len)?)
    }
}

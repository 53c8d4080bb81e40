//! Tests of headers against bytes as the specification defines them.

use super::*;

#[test]
fn magics_spell_what_the_specification_says() {
    assert_eq!(&NBD_MAGIC.to_be_bytes(), b"NBDMAGIC");
    assert_eq!(&OPTION_MAGIC.to_be_bytes(), b"IHAVEOPT");
}

#[test]
fn a_request_has_the_layout_of_the_specification() {
    let bytes = [
        0x25, 0x60, 0x95, 0x13, // magic
        0x00, 0x01, // flags: FUA
        0x00, 0x01, // WRITE
        0, 0, 0, 0, 0, 0, 0, 7, // cookie
        0, 0, 0, 0, 0, 0, 0x10, 0, // offset
        0, 0, 2, 0, // length
    ];
    let request = Request {
        magic: REQUEST_MAGIC,
        flags: command_flag::FUA,
        command: command::WRITE,
        cookie: 7,
        offset: 4096,
        length: 512,
    };
    assert_eq!(Request::decode(&bytes), request);
    assert_eq!(request.encode(), bytes);
    assert_eq!(Request::decode_first(&bytes[1..]), None);
}

#[test]
fn an_extended_reply_has_the_layout_of_the_specification() {
    let reply = ExtendedReply {
        magic: EXTENDED_REPLY_MAGIC,
        flags: reply_flag::DONE,
        chunk: chunk::ERROR,
        cookie: 1,
        offset: 2,
        length: 6,
    };
    let bytes = [
        0x6e, 0x8a, 0x27, 0x8c, 0, 1, 0x80, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0,
        0, 0, 0, 0, 0, 0, 6,
    ];
    assert_eq!(reply.encode(), bytes);
    assert_eq!(ExtendedReply::decode(&bytes), reply);
}

#[test]
fn errors_of_linux_have_their_counterparts() {
    let (erofs, edquot, enoent) = (30, 122, 2);
    assert_eq!(NbdErrno::from_linux(erofs), NbdErrno::Perm);
    assert_eq!(NbdErrno::from_linux(edquot), NbdErrno::NoSpc);
    assert_eq!(NbdErrno::from_linux(enoent), NbdErrno::Io);
    assert_eq!(NbdErrno::from_wire(12_345), NbdErrno::Inval);
    for errno in [1, 5, 12, 22, 28, 75, 95, 108] {
        assert_eq!(NbdErrno::from_wire(errno).to_wire(), errno);
        assert_eq!(
            NbdErrno::from_linux(errno.cast_signed()).to_linux(),
            errno.cast_signed()
        );
    }
}

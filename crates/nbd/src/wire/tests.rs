//! Tests of error numbers.

use super::*;

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

//! The rule by which disks share a bounded resource, such as worker threads: a part stays free for those that come later.
//!
//! A request that has a thread or a place keeps it until it ends, which may take seconds. If one disk could take all, another
//! one would wait for that. So a disk may use at most [`PARTS`] times what is left free: alone seven eighths of the whole, and
//! two that want more than there is seven fifteenths each. Of fewer than eight a single disk may use all.

/// How many times the free rest a disk may use.
const PARTS: usize = 7;

/// How much more a disk may take that uses `used`, when `free` is free. Taken one by one or at once, the result is the same.
#[inline]
#[must_use]
pub fn fair_room(free: usize, used: usize) -> usize {
    let allowed = free.saturating_mul(PARTS);
    allowed.saturating_sub(used).div_ceil(PARTS + 1)
}

#[cfg(test)]
mod tests {
    use super::fair_room;

    /// How much each of some disks has of `all` when they take one at a time, in turn, until none may.
    fn shares(all: usize, disks: usize) -> Vec<usize> {
        let mut shares = vec![0; disks];
        loop {
            let before = shares.clone();
            for disk in 0..disks {
                let free = all - shares.iter().sum::<usize>();
                shares[disk] += fair_room(free, shares[disk]).min(1);
            }
            if shares == before {
                return shares;
            }
        }
    }

    #[test]
    fn disks_get_equal_parts_and_leave_an_eighth_or_less() {
        assert_eq!(shares(64, 1), [56]);
        assert_eq!(shares(64, 2), [30, 30]);
        assert_eq!(shares(1024, 1), [896]);
        assert_eq!(shares(1024, 3), [326, 326, 326]);
        assert_eq!(shares(8, 1), [7]);
        for all in 1..8 {
            assert_eq!(shares(all, 1), [all], "so few are not divided");
        }
    }

    #[test]
    fn a_disk_that_has_nothing_gets_something_while_anything_is_free() {
        for free in 1..1000 {
            let room = fair_room(free, 0);
            assert!((1..=free).contains(&room), "{room} of {free}");
        }
        assert_eq!(fair_room(0, 0), 0);
    }

    #[test]
    fn what_is_taken_at_once_is_what_may_be_taken_one_by_one() {
        for (free, used) in [(1024, 0), (500, 100), (129, 895), (7, 1), (100, 690)] {
            let (mut rest, mut taken) = (free, 0);
            while fair_room(rest, used + taken) > 0 {
                (rest, taken) = (rest - 1, taken + 1);
            }
            assert_eq!(fair_room(free, used), taken, "{free} free, {used} used");
        }
    }
}

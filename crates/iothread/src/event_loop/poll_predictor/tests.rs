//! Tests of adaptive polling.

use super::*;

const SETTINGS: PollSettings = PollSettings {
    max_ns: 160_000,
    grow: 0,
    shrink: 0,
    cpu_max_percent: 100,
};

fn after(gaps_ns: impl IntoIterator<Item = u64>) -> GapStatistics {
    let mut gaps = GapStatistics::default();
    for gap_ns in gaps_ns {
        gaps.add_gap_and_set_window(&SETTINGS, gap_ns);
    }
    gaps
}

fn found(woke_ns: u64) -> IdleEnd {
    let polled = PollOutcome::Found;
    IdleEnd { woke_ns, polled }
}

fn window_ns(gaps_ns: impl IntoIterator<Item = u64>) -> u64 {
    after(gaps_ns).window_ns
}

#[test]
fn a_steady_gap_is_polled_for_to_the_end_of_its_part() {
    for (gap_ns, window) in [
        (0, 10_000),
        (9_999, 10_000),
        (10_000, 20_000),
        (61_000, 70_000),
    ] {
        assert_eq!(window_ns([gap_ns; 3]), window);
        assert_eq!(window_ns([gap_ns; 1000]), window);
    }
    assert_eq!(window_ns([155_000; 50]), 0, "costs what it gains");
    assert_eq!(window_ns([u64::MAX; 1000]), 0);
}

#[test]
fn a_window_without_history_grows_and_shrinks_as_set() {
    assert_eq!(window_ns([]), 0);
    assert_eq!(window_ns([60_000]), 4_000);
    assert_eq!(window_ns([60_000; 2]), 8_000);
    assert_eq!(window_ns([60_000, 1_000_000]), 0);
    let settings = PollSettings {
        grow: 5,
        shrink: 4,
        ..SETTINGS
    };
    let mut gaps = GapStatistics::default();
    gaps.add_gap_and_set_window(&settings, 60_000);
    let mut later = gaps;
    gaps.add_gap_and_set_window(&settings, 60_000);
    assert_eq!(gaps.window_ns, 20_000);
    later.add_gap_and_set_window(&settings, 1_000_000);
    assert_eq!(later.window_ns, 1_000);
}

#[test]
fn the_frequent_quick_part_is_polled_for_and_the_tail_is_not() {
    // Half within 20 us, half after a second.
    let half = (0..100).map(|index| {
        if index % 2 == 0 {
            15_000
        } else {
            1_000_000_000
        }
    });
    assert_eq!(window_ns(half), 20_000);
    // One in twelve: 20 us of polling, eleven times in vain, cost more than a wake-up.
    let seldom = (0..120).map(|index| {
        if index % 12 == 0 {
            15_000
        } else {
            1_000_000_000
        }
    });
    assert_eq!(window_ns(seldom), 0);
    // Of who has not come within 20 us some come at 140 us, but too few to wait for.
    let tail = (0..100).map(|index| match index % 5 {
        0 if index % 3 == 0 => 140_000,
        0 => 1_000_000_000,
        _ => 15_000,
    });
    assert_eq!(window_ns(tail), 20_000);
}

#[test]
fn what_has_changed_is_believed_after_a_few_samples() {
    let slow_ns = 1_000_000_000;
    for before in [10, 13, 1000] {
        let mut gaps = after(std::iter::repeat_n(60_000, before));
        let wasted = (0..100).take_while(|_| {
            gaps.add_gap_and_set_window(&SETTINGS, slow_ns);
            gaps.window_ns > 0
        });
        assert!(wasted.count() < 24, "after {before}");
        let mut gaps = after(std::iter::repeat_n(slow_ns, before));
        let missed = (0..100).take_while(|_| {
            gaps.add_gap_and_set_window(&SETTINGS, 60_000);
            gaps.window_ns == 0
        });
        assert!(missed.count() < 12, "after {before}");
    }
}

#[test]
fn counts_never_overflow_and_are_never_all_forgotten() {
    // Spread evenly: each part has one sample when the counts are halved.
    let spread: Vec<_> = (0..10_000).map(|index| index * 7_919 % 170_000).collect();
    let mut gaps = GapStatistics::default();
    for gap_ns in spread {
        gaps.add_gap_and_set_window(&SETTINGS, gap_ns);
        assert!(
            gaps.total_weight() < FULL_TOTAL && gaps.total_weight() >= u16::from(SAMPLE_WEIGHT)
        );
    }
}

#[test]
fn the_guest_is_polled_for_and_a_library_is_not() {
    let mut predictor = PollPredictor::default();
    let (mut now_ns, mut progress) = (1, 0);
    for _ in 0..20 {
        for (awaited, window) in [(AwaitedSide::Guest, 20_000), (AwaitedSide::Library, 0)] {
            let until_ns = predictor.predict_poll_deadline_ns(&SETTINGS, now_ns, progress, awaited);
            if now_ns > 300_000 {
                assert_eq!(until_ns, now_ns + window, "{awaited:?}");
            }
            now_ns += 15_000;
            progress += 1;
            predictor.learn_from_idle(&SETTINGS, found(now_ns), progress);
        }
    }
}

#[test]
fn guest_and_disk_are_learnt_apart() {
    // The guest asks once a second; its disk takes 60 us.
    let mut predictor = PollPredictor::default();
    let (mut now_ns, mut progress) = (1, 0);
    for _ in 0..20 {
        for (awaited, gap_ns, window) in [
            (AwaitedSide::Guest, 1_000_000_000, 0),
            (AwaitedSide::Disk { in_flight: 1 }, 60_000, 70_000),
        ] {
            let until_ns = predictor.predict_poll_deadline_ns(&SETTINGS, now_ns, progress, awaited);
            if now_ns > 10_000_000_000 {
                assert_eq!(until_ns, now_ns + window);
            }
            now_ns += gap_ns;
            progress += 1;
            predictor.learn_from_idle(&SETTINGS, found(now_ns), progress);
        }
    }
}

#[test]
fn a_gap_lasts_from_the_sources_own_event_though_others_end_the_idle_time() {
    let mut predictor = PollPredictor::default();
    for round in 0..10 {
        let begin_ns = 1 + round * 1_000_000;
        // Others need the loop every 10 us.
        for step in 0..7 {
            let now_ns = begin_ns + step * 10_000;
            let until_ns = predictor.predict_poll_deadline_ns(
                &SETTINGS,
                now_ns,
                round,
                AwaitedSide::Disk { in_flight: 1 },
            );
            assert!(round < 3 || until_ns == begin_ns + 70_000);
            predictor.learn_from_idle(&SETTINGS, found(now_ns + 9_000), round);
        }
        predictor.learn_from_idle(&SETTINGS, found(begin_ns + 65_000), round + 1);
    }
}

#[test]
fn a_long_queue_is_not_polled_for() {
    let mut predictor = PollPredictor::default();
    let mut windows = |in_flight, gap_ns: u64| {
        let mut window_ns = 0;
        for event in 0..100 {
            let now_ns = 1 + event * 1_000_000;
            let awaited = AwaitedSide::Disk { in_flight };
            window_ns =
                predictor.predict_poll_deadline_ns(&SETTINGS, now_ns, event, awaited) - now_ns;
            predictor.learn_from_idle(&SETTINGS, found(now_ns + gap_ns), event + 1);
        }
        window_ns
    };
    // Each takes as long as all of them together: 12 us times 8, and times 128.
    assert_eq!(windows(8, 12_000), 20_000);
    assert_eq!(windows(128, 12_000), 0);
    assert_eq!(
        windows(128, 2_000),
        10_000,
        "a disk that is fast in spite of it"
    );
    assert_eq!(windows(1, 60_000), 70_000);
}

#[test]
fn other_settings_begin_anew() {
    let mut predictor = PollPredictor::default();
    for round in 0..5 {
        predictor.predict_poll_deadline_ns(
            &SETTINGS,
            1 + round * 100_000,
            round,
            AwaitedSide::Guest,
        );
        predictor.learn_from_idle(&SETTINGS, found(1 + round * 100_000 + 50_000), round + 1);
    }
    let until_ns = predictor.predict_poll_deadline_ns(&SETTINGS, 1_000_000, 5, AwaitedSide::Guest);
    assert_eq!(until_ns, 1_060_000);
    let other = PollSettings {
        max_ns: 1_000_000,
        ..SETTINGS
    };
    assert_eq!(
        predictor.predict_poll_deadline_ns(&other, 2_000_000, 5, AwaitedSide::Guest),
        2_000_000
    );
}

//! Tests of polling, with scripted sources on a fake clock.

mod simulation;

use iothread::event_loop::PollSettings;
use iothread::event_loop::poll_budget::HORIZON_NS;
use iothread::event_loop::poll_predictor::DEFAULT_POLL_MAX_NS;

use simulation::{LOOK_NS, Script, Simulation, WAKE_NS, gaps, guest};

const SECOND: u64 = 1_000_000_000;

/// A window is at most so much longer than the gap that it is for.
const PART_NS: u64 = DEFAULT_POLL_MAX_NS / 16;

fn learnt(scripts: Vec<Script>) -> Simulation {
    Simulation::new(PollSettings::default(), scripts)
}

#[test]
fn a_guest_at_depth_1_on_a_quick_disk_is_polled_for_from_its_fourth_request_on() {
    for (think_ns, disk_ns) in [(3_000, 50_000), (40_000, 60_000), (10_000, 100_000)] {
        let mut simulation = learnt(vec![guest(think_ns, disk_ns)]);
        // Three requests, each with two events.
        simulation.serve(6);
        let seen = simulation.serve(2_000);
        assert_eq!(seen.hits, 2_000, "thinks {think_ns}, disk {disk_ns}");
        assert!(seen.late_ns <= 2_000 * 2 * LOOK_NS, "{seen:?}");
        let elapsed_ns = 1_000 * (think_ns + disk_ns);
        assert!(seen.polled_ns <= elapsed_ns + 2_000 * 2 * LOOK_NS);
    }
}

#[test]
fn rare_requests_are_never_polled_for_but_their_disk_is() {
    let mut simulation = learnt(vec![guest(SECOND, 60_000)]);
    simulation.serve(6);
    let seen = simulation.serve(2_000);
    assert_eq!(seen.hits, 1_000, "each completion, and no request");
    assert!(seen.polled_ns <= 1_000 * (60_000 + PART_NS), "{seen:?}");
}

#[test]
fn events_later_than_the_longest_window_are_never_polled_for() {
    for gap_ns in [220_000, 500_000, SECOND] {
        let mut simulation = learnt(vec![gaps(move |_| gap_ns)]);
        let seen = simulation.serve(1_000);
        // Only what each iteration reads of the clock.
        assert!(seen.polled_ns <= 1_000 * 4 * LOOK_NS, "{gap_ns}: {seen:?}");
    }
}

#[test]
fn bursts_are_polled_for_and_the_pauses_between_them_are_not() {
    let burst = 20;
    let mut simulation = learnt(vec![gaps(move |event| {
        if event % burst == 0 {
            SECOND / 20
        } else {
            10_000
        }
    })]);
    simulation.serve(3 * burst);
    let seen = simulation.serve(100 * burst);
    assert_eq!(seen.hits, 100 * (burst - 1), "all but the first of each");
    // The events themselves, and at the end of a burst one window that is in vain.
    let most_ns = 100 * ((burst - 1) * 10_000 + 10_000 + PART_NS) + seen.events * 4 * LOOK_NS;
    assert!(seen.polled_ns <= most_ns, "{seen:?}");
}

#[test]
fn a_change_is_noticed_within_a_few_events() {
    let period = 1_000;
    let mut simulation = learnt(vec![gaps(move |event| {
        if event / period % 2 == 0 {
            60_000
        } else {
            SECOND
        }
    })]);
    for _ in 0..3 {
        let quick = simulation.serve(period);
        assert!(quick.hits >= period - 12, "{quick:?}");
        let slow = simulation.serve(period);
        assert!(
            slow.polled_ns <= 25 * (60_000 + PART_NS) + period * 4 * LOOK_NS,
            "{slow:?}"
        );
    }
}

#[test]
fn a_quick_source_is_polled_for_beside_many_that_sleep() {
    let mut scripts = vec![guest(5_000, 60_000)];
    scripts.extend((0..20).map(|index| gaps(move |_| SECOND + index * 7_919)));
    let mut simulation = learnt(scripts);
    simulation.serve(100);
    let seen = simulation.serve(50_000);
    assert!(seen.hits >= seen.events - 50, "{seen:?}");
    assert!(seen.late_ns <= seen.events * 2 * LOOK_NS + 50 * WAKE_NS);
}

#[test]
fn polling_stays_within_its_share_of_a_cpu() {
    for percent in [0, 5, 30, 60] {
        let settings = PollSettings {
            cpu_max_percent: percent,
            ..PollSettings::default()
        };
        // As a monitor does: without a limit before.
        let guest = guest(5_000, 60_000);
        let mut simulation = Simulation::new(PollSettings::default(), vec![guest]);
        simulation.set_polling(settings);
        let mut seen = simulation.serve(1);
        while simulation.now_ns() < 2 * SECOND {
            let more = simulation.serve(1);
            seen.events += 1;
            seen.polled_ns += more.polled_ns;
            let percent = u64::from(percent);
            let allowed_ns = (simulation.now_ns() + HORIZON_NS) * percent / 100;
            // The clock is read when nothing is polled for as well.
            let reading_ns = seen.events * 4 * LOOK_NS;
            assert!(
                seen.polled_ns <= allowed_ns + reading_ns,
                "{percent} %: {seen:?}"
            );
        }
        let least_ns = 2 * SECOND * u64::from(percent) / 100 * 95 / 100;
        assert!(
            seen.polled_ns >= least_ns,
            "{percent} %: it would pay: {seen:?}"
        );
    }
}

#[test]
fn nothing_is_polled_for_when_polling_is_off() {
    let settings = PollSettings {
        max_ns: 0,
        ..PollSettings::default()
    };
    let mut simulation = Simulation::new(settings, vec![guest(5_000, 60_000)]);
    let seen = simulation.serve(1_000);
    assert_eq!((seen.hits, seen.polled_ns), (0, 0), "not even the clock");
}

#[test]
fn a_guest_on_the_iothreads_cpu_is_hardly_polled_for_until_it_moves() {
    let mut simulation = learnt(vec![gaps(|_| 10_000)]);
    simulation.serve(100);
    for _ in 0..3 {
        simulation.share_cpu(true);
        simulation.serve(1_500);
        let begin_ns = simulation.now_ns();
        let shared = simulation.serve(10_000);
        let elapsed_ns = simulation.now_ns() - begin_ns;
        assert!(shared.polled_ns <= elapsed_ns * 3 / 100, "{shared:?}");

        simulation.share_cpu(false);
        simulation.serve(1_200);
        let own = simulation.serve(1_000);
        assert_eq!(own.hits, 1_000, "{own:?}");
    }
}

//! Slice extensions: how many expire, and who asks for them.

use haltkick_vmm::{Graces, Run, Shape, ShapeFlags};
use support::{Settings, simulated};

use super::{done, us};

/// Test-and-set by 8 vCPUs on 4 pCPUs, sections of 20 us, and slices that may be 5 us longer.
fn sections_of_20_us() -> Run {
    simulated("skylake-8s", 4, 2)
        .lock("tas")
        .pv(false)
        .hold(us(20))
        .think(us(20))
        .slice(us(200))
        .grace(us(5))
        .window(us(60_000))
}

fn graces(run: &Run) -> Graces {
    done(run).graces.expect("slices may be extended")
}

#[test]
fn an_extension_expires_unless_the_rest_of_the_section_is_shorter() {
    let Graces { granted, expired, .. } = graces(&sections_of_20_us());
    // A slice ends anywhere in a section: three quarters have more than 5 of their 20 us left.
    let share = expired as f64 / granted as f64;
    assert!(granted > 100 && (0.6..0.9).contains(&share), "{expired} of {granted}");
}

#[test]
fn sections_that_ask_for_no_extension_get_none() {
    let mixed = |only_short_ask| {
        let mix = Shape {
            long_hold_ns: 20_000,
            long_one_in: 2,
            flags: ShapeFlags::NONE.with_if(only_short_ask, ShapeFlags::ONLY_SHORT_ASK),
            ..Shape::default()
        };
        graces(&sections_of_20_us().workload("mixed").hold(us(1)).shape(mix).window(us(240_000)))
    };
    let (all, short) = (mixed(false), mixed(true));
    // Long ones are twenty of twenty-one parts of the time in sections.
    assert!(all.granted > 100 && short.granted * 5 < all.granted, "{} and {}", all.granted, short.granted);
    // One in twenty of some forty; a quarter is far above.
    assert!(short.expired * 4 <= short.granted, "{} of {}", short.expired, short.granted);
}

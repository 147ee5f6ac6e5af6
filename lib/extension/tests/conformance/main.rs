//! The conformance suite (T19): every case against every implementation, and against a broken one that must fail it.
//!
//! [`cases`] is the table. An implementation is whatever takes a call and answers it; `implementations` has those that
//! there are, and `broken` those that there must never be.

mod broken;
mod call;
mod cases;
mod composed;
mod implementations;
#[allow(dead_code, reason = "the suite of the extension host uses the rest")]
#[path = "../host/support.rs"]
mod support;

use broken::Broken;
use call::Implementation;
use cases::{Bench, CASES};
use composed::{Composed, Part};
use implementations::{Kept, Reopened};
use support::{World, locally};

/// Makes an implementation for a world.
pub type Makes<'m> = dyn Fn(&World) -> Box<dyn Implementation> + 'm;

/// T19, T05, T06, T07, T08, T13, T14, T16, T17, T18, G02, G04
#[tokio::test]
async fn every_implementation_keeps_every_case_and_the_broken_one_of_each_case_does_not() {
    locally(async {
        let mut failures = Vec::new();
        for case in CASES {
            let kept = |world: &_| Box::new(Kept::new(world)) as Box<dyn Implementation>;
            let reopened = |world: &_| Box::new(Reopened::new(world)) as Box<dyn Implementation>;
            let fault = case.control;
            let control =
                |world: &_| Box::new(Broken::over(Box::new(Kept::new(world)), fault)) as Box<dyn Implementation>;
            let sound: [(&str, &Makes<'_>); 2] = [("kept open", &kept), ("reopened between steps", &reopened)];
            for (name, implementation) in sound {
                if let Err(why) = (case.run)(&mut Bench::new(implementation)).await {
                    failures.push(format!("{}: {name}: {why}", case.name));
                }
            }
            if (case.run)(&mut Bench::new(&control)).await.is_ok() {
                failures.push(format!("{}: the control passes: {:?}", case.name, case.control));
            }
            // Its one fault is all that is wrong with it: one that keeps no case at all would tell nothing.
            let mut keeps = false;
            for other in CASES.iter().filter(|other| other.control != case.control).rev() {
                if (other.run)(&mut Bench::new(&control)).await.is_ok() {
                    keeps = true;
                    break;
                }
            }
            if !keeps {
                failures.push(format!("{:?} is broken in every way", case.control));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
        println!("conformance: {} cases x 2 implementations, {} controls", CASES.len(), CASES.len());
    })
    .await;
}

/// T19, T05, T06, T07, T08, T14, T16, T17, E03, G04: a toolbelt composed of the real parts keeps every case, and without one
/// part it fails the cases about that part and no others.
#[tokio::test]
async fn a_toolbelt_that_lacks_one_part_fails_the_cases_about_that_part_alone() {
    locally(async {
        let mut failures = Vec::new();
        for without in std::iter::once(None).chain(Part::ALL.map(Some)) {
            let composed = |world: &_| Box::new(Composed::new(world, without)) as Box<dyn Implementation>;
            for case in CASES {
                let about = without.is_some_and(|part| part.cases().iter().any(|name| case.name.starts_with(name)));
                match ((case.run)(&mut Bench::new(&composed)).await, about) {
                    (Err(_), true) | (Ok(()), false) => {}
                    (Err(_), false) if without.is_some_and(Part::shows_everywhere) => {}
                    (Err(why), false) => failures.push(format!("{}: without {without:?}: {why}", case.name)),
                    (Ok(()), true) => failures.push(format!("{}: kept without {without:?}", case.name)),
                }
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
        println!("conformance: {} cases x {} toolbelts that lack a part", CASES.len(), Part::ALL.len());
    })
    .await;
}

//! The conformance suite through the programs (T19): the same table of cases as in `lib/extension/tests/conformance`, against
//! run sockets of the spawner, its workers, and `host.sock`.

#[path = "../../../lib/extension/tests/conformance/broken.rs"]
mod broken;
#[path = "../../../lib/extension/tests/conformance/call.rs"]
mod call;
#[path = "../../../lib/extension/tests/conformance/cases.rs"]
mod cases;
mod served;
#[allow(dead_code, reason = "the suite of the extension host uses the rest")]
#[path = "../../../lib/extension/tests/host/support.rs"]
mod support;

use broken::Broken;
use call::Implementation;
use cases::{Bench, CASES};

use served::{Between, Served};
use support::{World, locally};

/// Makes an implementation for a world.
pub type Makes<'m> = dyn Fn(&World) -> Box<dyn Implementation> + 'm;

async fn every_case_is_kept(between: Between) {
    locally(async {
        let mut failures = Vec::new();
        for case in CASES {
            let served = |world: &_| Box::new(Served::new(world, between)) as Box<dyn Implementation>;
            if let Err(why) = (case.run)(&mut Bench::new(&served)).await {
                failures.push(format!("{}: {why}", case.name));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
        println!("conformance: {} cases through the sockets, {between:?} between calls", CASES.len());
    })
    .await;
}

/// T19, T05, T06, T07, T08, T13, T14, T16, T17, T18, E03, G02, G04
#[tokio::test]
async fn the_endpoint_keeps_every_case_over_its_sockets() {
    every_case_is_kept(Between::Nothing).await;
}

/// T19, T05, T06, T07, T08, T13, T14, T16, T17, T18, E03, G02, G04
#[tokio::test]
async fn the_endpoint_keeps_every_case_when_worker_and_host_are_started_anew_for_each_call() {
    every_case_is_kept(Between::StartedAnew).await;
}

/// T19: a case that a broken toolbelt passes through the sockets would prove nothing there.
#[tokio::test]
async fn behind_the_same_sockets_no_broken_toolbelt_keeps_the_case_that_it_is_the_control_of() {
    locally(async {
        let mut failures = Vec::new();
        for case in CASES {
            let broken = |world: &_| {
                let sound = Box::new(Served::new(world, Between::Nothing));
                Box::new(Broken::over(sound, case.control)) as Box<dyn Implementation>
            };
            if (case.run)(&mut Bench::new(&broken)).await.is_ok() {
                failures.push(format!("{}: the control passes: {:?}", case.name, case.control));
            }
        }
        assert!(failures.is_empty(), "{failures:#?}");
    })
    .await;
}

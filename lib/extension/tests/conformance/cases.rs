//! The table of cases. Each says what has to hold of any toolbelt, and by which fault it must be told apart.

use std::pin::Pin;
use std::rc::Rc;

use conduit_api::toolbelt::CallRequest;
use conduit_api::{ApiError, ExecutionId, WorkId};
use conduit_extension::{Failure, GateAnswer, Invoked, OperationError, WaitPlan};
use conduit_toolbelt::registry::Registration;
use serde_json::{Value, json};

use crate::broken::Fault::{self, *};
use crate::broken::n;
use crate::call::{Answered, Call, Implementation};
use crate::support::{Scripted, Speaker, World, gate, lab};

pub type Verdict<'b> = Pin<Box<dyn Future<Output = Result<(), String>> + 'b>>;

pub struct Case {
    pub name: &'static str,
    pub control: Fault,
    pub run: for<'b> fn(&'b mut Bench) -> Verdict<'b>,
}

/// What a case works on: `lab`, the gate `door`, and `squat`, which claims an operation of `lab`'s.
pub struct Bench {
    pub world: World,
    pub lab: Rc<Scripted>,
    pub door: Rc<Scripted>,
    toolbelt: Box<dyn Implementation>,
}

impl Bench {
    pub fn new(implementation: &crate::Makes<'_>) -> Self {
        let (lab, door) = (Scripted::new(lab()), Scripted::new(gate("door")));
        let squat = Scripted::new(Registration {
            operations: lab_operations(),
            ..Registration::new("squat", conduit_api::Version::new(1, 0, 0), "A squatter")
        });
        squat.does(|_| async { Ok(Invoked::Output(json!("the squatter's"))) });
        lab.does(|call| async move { Ok(Invoked::Output(call.input.get("n").cloned().unwrap_or_default())) });
        let world = World::with(&[squat, Rc::clone(&lab), Rc::clone(&door)]);
        let toolbelt = implementation(&world);
        Self { world, lab, door, toolbelt }
    }

    async fn call(&mut self, speaker: &Speaker, operation: &str, id: &str, input: Value) -> Answered {
        self.arrive(call(speaker, operation, id, input)).await
    }

    async fn arrive(&mut self, call: Call) -> Answered {
        self.toolbelt.call(call).await
    }
}

fn lab_operations() -> Vec<conduit_toolbelt::registry::OperationSpec> {
    lab().operations
}

fn call(speaker: &Speaker, operation: &str, id: &str, input: Value) -> Call {
    let request: CallRequest =
        serde_json::from_value(json!({"operation": operation, "request_id": id, "input": input})).unwrap();
    Call { token: speaker.token.clone(), socket: speaker.claimed.execution.clone(), request }
}

fn carried_out(what: &str, answer: Answered, output: &Value) -> Result<(), String> {
    match answer {
        Ok(response) if response.output == *output => Ok(()),
        other => Err(format!("{what}: {output} was expected, and it is {other:?}")),
    }
}

fn refused(what: &str, answer: Answered, code: &str) -> Result<(), String> {
    match answer {
        Err(error) if error.code_text() == code => Ok(()),
        other => Err(format!("{what}: {code} was expected, and it is {other:?}")),
    }
}

fn holds(what: &str, holds: bool) -> Result<(), String> {
    if holds { Ok(()) } else { Err(what.to_owned()) }
}

macro_rules! cases {
    ($($name:literal, $control:ident, |$bench:ident| $body:block)*) => {
        pub const CASES: &[Case] = &[$(Case {
            name: $name,
            control: $control,
            run: |$bench| Box::pin(async move { $body; Ok(()) }),
        }),*];
    };
}

cases! {
    "T05: a superseded token is refused", SkipsTheFence, |bench| {
        let speaker = bench.world.speaker();
        carried_out("while it holds", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        bench.world.supersede(&speaker);
        refused("superseded", bench.call(&speaker, "lab.do", "b", n(1)).await, "forbidden")?;
    }
    "T05: an expired lease is refused on a builtin as well", SkipsTheFence, |bench| {
        let speaker = bench.world.speaker();
        holds("while it holds", bench.call(&speaker, "read_context", "a", json!({})).await.is_ok())?;
        bench.world.sql("UPDATE execution SET lease_boot_us = 0");
        refused("expired", bench.call(&speaker, "read_context", "b", json!({})).await, "forbidden")?;
    }
    "T06: after a declaration authority is released", SkipsTheFence, |bench| {
        let speaker = bench.world.speaker();
        carried_out("before", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        let outcome = bench.call(&speaker, "declare_outcome", "o", json!({"status": "succeeded"})).await;
        holds("declared", outcome.is_ok())?;
        refused("after", bench.call(&speaker, "lab.do", "b", n(1)).await, "authority_released")?;
        refused("a replay", bench.call(&speaker, "lab.do", "a", n(1)).await, "authority_released")?;
    }
    "T06: a superseded and a forged token are told the same", TellsWhy, |bench| {
        let speaker = bench.world.speaker();
        bench.world.supersede(&speaker);
        for operation in ["lab.do", "lab.look", "read_context"] {
            let superseded = call(&speaker, operation, "a", json!({}));
            let forged = Call { token: "forged".into(), ..superseded.clone() };
            holds("superseded", bench.arrive(superseded).await == Err(ApiError::forbidden()))?;
            holds("forged", bench.arrive(forged).await == Err(ApiError::forbidden()))?;
        }
    }
    "T05: an assertion of another scope, Work or execution is refused", ForgetsNarrowing, |bench| {
        let speaker = bench.world.speaker();
        for operation in ["lab.do", "lab.look", "read_context"] {
            for at in 0..3 {
                let mut narrowed = call(&speaker, operation, &format!("r{at}"), json!({}));
                let request = &mut narrowed.request;
                match at {
                    0 => request.scope_id = Some("other".parse().unwrap()),
                    1 => request.work_id = Some(WorkId::from_parts(5, 5)),
                    _ => request.execution_id = Some(ExecutionId::from_parts(5, 5)),
                }
                refused(operation, bench.arrive(narrowed).await, "forbidden")?;
            }
        }
    }
    "E03: a token is refused on the socket of another execution", ForgetsTheSocket, |bench| {
        let (speaker, other) = (bench.world.speaker(), bench.world.speaker());
        carried_out("on its own", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        let stolen = Call { socket: other.claimed.execution.clone(), ..call(&speaker, "lab.do", "b", n(1)) };
        refused("on another's", bench.arrive(stolen).await, "forbidden")?;
    }
    "T05: an operation outside the token's allowlist is refused", IgnoresTheAllowlist, |bench| {
        let speaker = bench.world.speaker();
        bench.world.sql("UPDATE token SET grants = '{\"operations\":[\"emit\"],\"events\":[],\"delegates\":[]}'");
        for operation in ["lab.do", "lab.look", "read_context", "nothing.here"] {
            refused(operation, bench.call(&speaker, operation, "a", json!({})).await, "forbidden")?;
        }
    }
    "T07: a denial in the scope revokes at once", IgnoresDenials, |bench| {
        let speaker = bench.world.speaker();
        carried_out("before", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        bench.world.publish(|config| {
            let scope = &mut config["scopes"]["demo"];
            scope["operations"].as_array_mut().unwrap().push(json!("!lab.do"));
            scope["bindings"]["worker"]["operations"] = json!(["emit"]);
        });
        refused("after", bench.call(&speaker, "lab.do", "b", n(1)).await, "forbidden")?;
        carried_out("another", bench.call(&speaker, "lab.once", "b", n(2)).await, &json!(2))?;
    }
    "T18: a disabled extension's operation is refused and the others go on", KeepsDisabledExtensions, |bench| {
        let speaker = bench.world.speaker();
        carried_out("before", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        bench.world.publish(|config| config["extensions"]["lab"] = json!({"enabled": false}));
        refused("after", bench.call(&speaker, "lab.do", "b", n(1)).await, "forbidden")?;
        holds("a builtin", bench.call(&speaker, "read_context", "c", json!({})).await.is_ok())?;
    }
    "T14: the same request is carried out once", ForgetsRequests, |bench| {
        let speaker = bench.world.speaker();
        for operation in ["lab.do", "lab.once"] {
            carried_out("first", bench.call(&speaker, operation, "a", n(1)).await, &json!(1))?;
            let again = bench.call(&speaker, operation, "a", n(1)).await;
            holds("it says that it is a replay", again.as_ref().is_ok_and(|response| response.replayed))?;
            carried_out("again", again, &json!(1))?;
        }
        holds("the handler ran once for each", bench.lab.invoked.borrow().len() == 2)?;
        let seen = json!({"type": "lab.seen"});
        let first = bench.call(&speaker, "emit", "e", seen.clone()).await.map(|response| response.output);
        let again = bench.call(&speaker, "emit", "e", seen).await.map(|response| response.output);
        holds("an Event is accepted once", first.is_ok() && first == again)?;
    }
    "T14: a changed request under the same ID is a conflict", ForgetsWhatWasAsked, |bench| {
        let speaker = bench.world.speaker();
        carried_out("first", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        refused("changed", bench.call(&speaker, "lab.do", "a", n(2)).await, "request_conflict")?;
    }
    "T14: a request ID belongs to one execution", ReplaysAcrossExecutions, |bench| {
        let (speaker, other) = (bench.world.speaker(), bench.world.speaker());
        carried_out("first", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        carried_out("another's", bench.call(&other, "lab.do", "a", n(2)).await, &json!(2))?;
    }
    "T14: a failure of the host is never the end of a request", FinalizesFailures, |bench| {
        let speaker = bench.world.speaker();
        bench.lab.does(|_| async { Err(Failure::Failed("it crashed".into())) });
        refused("crashed", bench.call(&speaker, "lab.do", "a", n(1)).await, "extension_unavailable")?;
        bench.lab.does(|_| async { Ok(Invoked::Output(json!("at last"))) });
        carried_out("again", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!("at last"))?;
    }
    "T13: an extension's own refusal reaches the caller verbatim", RewritesErrors, |bench| {
        let speaker = bench.world.speaker();
        bench.lab.does(|_| async { Err(OperationError::new("out_of_gas", "fill it up").into()) });
        let answer = bench.call(&speaker, "lab.do", "a", n(1)).await;
        holds("message", answer.as_ref().is_err_and(|error| error.message == "fill it up" && error.code.status() == 422))?;
        refused("code", answer, "out_of_gas")?;
    }
    "M07: an input that breaks the schema is refused before the handler", SkipsTheSchema, |bench| {
        let speaker = bench.world.speaker();
        refused("no number", bench.call(&speaker, "lab.do", "a", json!({"n": "x"})).await, "invalid_request")?;
        holds("the handler did not run", bench.lab.invoked.borrow().is_empty())?;
    }
    "T16: a registration that claims another's operation registers nothing", LetsSquattersIn, |bench| {
        let speaker = bench.world.speaker();
        carried_out("the owner's", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
        holds("the owner was asked", bench.lab.invoked.borrow().len() == 1)?;
    }
    "G04: a gate that fails refuses", GatesFailOpen, |bench| {
        let speaker = bench.world.speaker();
        bench.door.judges(|_| async { Err(Failure::Failed("it crashed".into())) });
        refused("closed", bench.call(&speaker, "lab.do", "a", n(1)).await, "gate_failed")?;
        holds("the handler did not run", bench.lab.invoked.borrow().is_empty())?;
        bench.door.judges(|_| async { Ok(GateAnswer::LetThrough) });
        carried_out("open", bench.call(&speaker, "lab.do", "a", n(1)).await, &json!(1))?;
    }
    "G02: builtins pass no gate", GatesBuiltins, |bench| {
        let speaker = bench.world.speaker();
        bench.door.judges(|_| async { Ok(GateAnswer::Refuse(OperationError::new("no", "never"))) });
        holds("a builtin", bench.call(&speaker, "read_context", "a", json!({})).await.is_ok())?;
        holds("the gate was not asked", bench.door.gated.borrow().is_empty())?;
    }
    "T08: an Event outside the families is refused, emitted or translated", EmitsWhatever, |bench| {
        let speaker = bench.world.speaker();
        refused("emitted", bench.call(&speaker, "emit", "a", json!({"type": "other.seen"})).await, "event_not_allowed")?;
        let event = serde_json::from_value::<conduit_api::toolbelt::EmitInput>(json!({"type": "other.seen"})).unwrap();
        bench.lab.does(move |_| {
            let event = event.clone();
            async { Ok(Invoked::Emission(event)) }
        });
        refused("translated", bench.call(&speaker, "lab.emit", "a", n(1)).await, "event_not_allowed")?;
    }
    "T17: a translated Wait releases authority like one of the caller's own", KeepsAuthorityAfterAWait, |bench| {
        let speaker = bench.world.speaker();
        holds("before", bench.call(&speaker, "read_context", "a", json!({})).await.is_ok())?;
        let wait = serde_json::from_value(json!({"mode": "any", "predicates": [{"type": "lab.ready"}]})).unwrap();
        let plan = WaitPlan { wait, output: json!(7) };
        bench.lab.does(move |_| {
            let plan = plan.clone();
            async { Ok(Invoked::Wait(plan)) }
        });
        carried_out("declared", bench.call(&speaker, "lab.wait", "a", n(1)).await, &json!(7))?;
        refused("after", bench.call(&speaker, "read_context", "b", json!({})).await, "authority_released")?;
    }
}

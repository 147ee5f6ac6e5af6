//! What goes over a package's standard input and output: JSON-RPC 2.0, one message on a line (docs/extension-protocol.md).
//!
//! The host asks, the package answers. A line that is no answer to a question of the host's is a fault of the package.

use conduit_api::toolbelt::{EmitInput, WaitInput};
use conduit_api::{Code, json};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::host::refusal_of;
use crate::{Failure, GateAnswer, Invoked, OperationError, Plan, SegmentEnd, SettingFault, WaitPlan};

/// The versions of the protocol that this host speaks, the newest first.
pub const VERSIONS: [u32; 1] = [1];

/// Methods and notifications.
pub mod method {
    pub const INITIALIZE: &str = "initialize";
    pub const INVOKE: &str = "operation.invoke";
    pub const GATE: &str = "operation.gate";
    pub const START_GATE: &str = "gate.start";
    pub const PLAN: &str = "executor.plan";
    pub const INTERPRET: &str = "executor.interpret";
    pub const ACTION: &str = "action.invoke";
    pub const VALIDATE: &str = "validate";
    pub const SHUTDOWN: &str = "shutdown";
    pub const CANCEL: &str = "$/cancel";
}

/// Most faults that one answer to `validate` lists, and the longest place of one, in bytes.
const FAULTS_MAX: usize = 64;
const POINTER_BYTES_MAX: usize = 512;

/// The error codes of answers that mean something to the host; every other one is a failure.
const REFUSED: i64 = -32001;
const UNAVAILABLE: i64 = -32002;

/// A question, or with no `id` a notice.
#[derive(Debug, Serialize)]
pub struct Request<'r, P> {
    pub jsonrpc: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<u64>,
    pub method: &'r str,
    pub params: P,
}

/// An answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Response {
    jsonrpc: String,
    id: u64,
    result: Option<Value>,
    error: Option<ResponseError>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ResponseError {
    code: i64,
    message: String,
    data: Option<OperationError>,
}

/// What a package says about itself: it has to be what its manifest says.
#[derive(Debug, Deserialize, PartialEq, Eq)]
#[serde(deny_unknown_fields)]
pub struct Initialized {
    pub protocol_version: u32,
    pub name: String,
    pub version: String,
    /// In any order.
    pub operations: Vec<String>,
    #[serde(default)]
    pub operation_gate: bool,
    #[serde(default)]
    pub start_gate: bool,
    #[serde(default)]
    pub actions: Vec<String>,
    #[serde(default)]
    pub validate: bool,
    #[serde(default)]
    pub executors: Vec<String>,
}

/// Reads one line as an answer: its ID, and what it came to. Error: what is wrong with it.
pub fn answer(line: &[u8], bytes_max: usize) -> Result<(u64, Result<Value, Failure>), String> {
    // The strict reading refuses `null` everywhere: `shutdown` is answered by `{}`.
    let response: Response =
        json::read(line, bytes_max).map_err(|refused| format!("a line is no answer: {refused}"))?;
    if response.jsonrpc != "2.0" {
        return Err("a line is no answer: `jsonrpc` is not \"2.0\"".into());
    }
    let answered = match (response.result, response.error) {
        (Some(result), None) => Ok(result),
        (None, Some(error)) => Err(match (error.code, error.data) {
            (REFUSED, Some(refusal)) => refused(refusal).map_or_else(|failure| failure, Failure::Refused),
            (REFUSED, None) => Failure::Failed("its refusal has no `data` with code and message".into()),
            (UNAVAILABLE, _) => Failure::Unavailable(shortened(&error.message)),
            (code, _) => Failure::Failed(format!("it answered with error {code}: {}", shortened(&error.message))),
        }),
        _ => return Err("a line is no answer: it has either `result` or `error`".into()),
    };
    Ok((response.id, answered))
}

/// A refusal that can be passed on, its message on one line; one with an odd code or too long a message is a failure.
fn refused(refusal: OperationError) -> Result<OperationError, Failure> {
    let refusal = OperationError { message: on_one_line(&refusal.message), ..refusal };
    refusal_of(refusal.clone()).map_err(nonsense)?;
    Ok(refusal)
}

/// The start of a text of somebody else's, on one line.
pub fn shortened(text: &str) -> String {
    const CHARS_MAX: usize = 200;
    on_one_line(text).chars().take(CHARS_MAX).collect()
}

/// A text of somebody else's, without what would move the cursor of whoever reads it.
pub fn on_one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// What `operation.invoke` is answered by.
pub fn invoked(value: Value) -> Result<Invoked, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Answer {
        output: Option<Value>,
        wait: Option<WaitInput>,
        emission: Option<EmitInput>,
    }
    let answer: Answer = json::from_value(value).map_err(nonsense)?;
    match answer {
        Answer { output, wait: Some(wait), emission: None } => {
            Ok(Invoked::Wait(WaitPlan { wait, output: output.unwrap_or_default() }))
        }
        Answer { output: None, wait: None, emission: Some(event) } => Ok(Invoked::Emission(event)),
        Answer { output: Some(output), wait: None, emission: None } => Ok(Invoked::Output(output)),
        _ => Err(nonsense("an answer is an `output`, a `wait` with an `output`, or an `emission`")),
    }
}

/// What `operation.gate` and `gate.start` are answered by (G03).
pub fn gated(value: Value) -> Result<GateAnswer, Failure> {
    #[derive(Deserialize)]
    #[serde(tag = "answer", rename_all = "snake_case", deny_unknown_fields)]
    enum Answer {
        LetThrough {},
        Park {
            wait: WaitInput,
            #[serde(default)]
            output: Value,
        },
        Refuse {
            code: String,
            message: String,
        },
    }
    Ok(match json::from_value(value).map_err(nonsense)? {
        Answer::LetThrough {} => GateAnswer::LetThrough,
        Answer::Park { wait, output } => GateAnswer::Park(WaitPlan { wait, output }),
        Answer::Refuse { code, message } => GateAnswer::Refuse(refused(OperationError { code, message })?),
    })
}

/// What `action.invoke` is answered by.
pub fn acted(value: Value) -> Result<Value, Failure> {
    let mut fields: Map<String, Value> = json::from_value(value).map_err(nonsense)?;
    match (fields.remove("output"), fields.is_empty()) {
        (Some(output), true) => Ok(output),
        _ => Err(nonsense("an action is answered by an `output`")),
    }
}

/// What `validate` is answered by.
pub fn validated(value: Value) -> Result<Vec<SettingFault>, Failure> {
    #[derive(Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Answer {
        faults: Vec<SettingFault>,
    }
    let Answer { faults } = json::from_value(value).map_err(nonsense)?;
    if faults.len() > FAULTS_MAX {
        return Err(nonsense(format!("it lists more than {FAULTS_MAX} faults")));
    }
    let odd = |pointer: &str| (!pointer.is_empty() && !pointer.starts_with('/')) || pointer.len() > POINTER_BYTES_MAX;
    if faults.iter().any(|fault| odd(&fault.pointer) || fault.message.trim().is_empty()) {
        return Err(nonsense("a fault has a JSON pointer into the settings and a message"));
    }
    let told = |fault: SettingFault| SettingFault { message: shortened(&fault.message), ..fault };
    Ok(faults.into_iter().map(told).collect())
}

/// What `executor.plan` is answered by: what the operation can take, and nothing that is the host's to choose.
pub fn planned(value: Value) -> Result<Plan, Failure> {
    json::from_value(value).map_err(nonsense)
}

/// What `executor.interpret` is answered by. A failure in the package's words is a failure of the process; cancelled is what
/// the host stopped, which no package says.
pub fn interpreted(value: Value) -> Result<SegmentEnd, Failure> {
    #[derive(Deserialize)]
    #[serde(tag = "end", rename_all = "snake_case", deny_unknown_fields)]
    enum Answer {
        Succeeded {},
        Failed { code: String, message: String, retryable: bool },
        Lost {},
    }
    Ok(match json::from_value(value).map_err(nonsense)? {
        Answer::Succeeded {} => SegmentEnd::Succeeded,
        Answer::Failed { code, message, retryable } => {
            let message = refused(OperationError { code, message })?.to_string();
            SegmentEnd::Failed { code: Code::ProcessFailed, message, retryable }
        }
        Answer::Lost {} => SegmentEnd::Lost,
    })
}

fn nonsense(why: impl std::fmt::Display) -> Failure {
    Failure::Failed(format!("its answer is none: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(line: &Value) -> Result<(u64, Result<Value, Failure>), String> {
        answer(line.to_string().as_bytes(), 1000)
    }

    /// X01
    #[test]
    fn an_answer_is_a_result_or_an_error_and_nothing_else_is_one() {
        let answered = |rest: Value| {
            let mut line = json!({"jsonrpc": "2.0", "id": 7});
            line.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
            read(&line)
        };
        assert_eq!(answered(json!({"result": {"a": 1}})), Ok((7, Ok(json!({"a": 1})))));
        let refusal = OperationError::new("too_cold", "It is too cold");
        let refused = json!({"error": {"code": -32001, "message": "m", "data": {"code": "too_cold", "message": "It is too cold"}}});
        assert_eq!(answered(refused), Ok((7, Err(Failure::Refused(refusal)))));
        let away = answered(json!({"error": {"code": -32002, "message": "later"}})).unwrap();
        assert_eq!(away.1, Err(Failure::Unavailable("later".into())));
        let broken = answered(json!({"error": {"code": -32603, "message": "oh\nno"}})).unwrap();
        assert_eq!(broken.1, Err(Failure::Failed("it answered with error -32603: oh no".into())));
        for bad in [json!({}), json!({"result": 1, "error": {"code": 1, "message": ""}}), json!({"x": 1, "result": 1})]
        {
            assert!(answered(bad).is_err());
        }
        for bad in [json!([]), json!({"id": 1, "result": 1}), json!({"jsonrpc": "1.0", "id": 1, "result": 1})] {
            assert!(read(&bad).is_err(), "{bad}");
        }
        assert!(answer(b"hello", 1000).is_err());
        assert!(answer(&[b' '; 1001], 1000).is_err());
    }

    /// X01
    #[test]
    fn a_refusal_that_cannot_be_passed_on_is_a_failure_and_one_that_can_stands_on_one_line() {
        let answered = |code: &str, message: &str| {
            let data = json!({"code": code, "message": message});
            let line = json!({"jsonrpc": "2.0", "id": 1, "error": {"code": -32001, "message": "m", "data": data}});
            answer(line.to_string().as_bytes(), 1 << 20).unwrap().1
        };
        let told = OperationError::new("too_cold", "It is [31m cold  today");
        assert_eq!(answered("too_cold", "It is\u{1b}[31m cold\r\ntoday"), Err(Failure::Refused(told)));
        assert!(matches!(answered(&"a".repeat(64), &"m".repeat(4096)), Err(Failure::Refused(_))));
        let (long, wordy) = ("a".repeat(65), "m".repeat(4097));
        for (code, message) in [
            ("", "m"),
            ("Too cold", "m"),
            ("too\ncold", "m"),
            ("\u{e4}", "m"),
            (long.as_str(), "m"),
            ("cold", wordy.as_str()),
        ] {
            assert!(matches!(answered(code, message), Err(Failure::Failed(_))), "{code:?}");
            let refused = json!({"answer": "refuse", "code": code, "message": message});
            assert!(matches!(gated(refused), Err(Failure::Failed(_))), "{code:?}");
        }
    }

    /// X01, G03, T17
    #[test]
    fn answers_that_mean_nothing_are_failures() {
        assert!(matches!(invoked(json!({"output": 1})), Ok(Invoked::Output(_))));
        let wait = json!({"predicates": [{"type": "a.b"}], "summary": "waits"});
        for bad in [json!(1), json!({}), json!({"output": 1, "emission": {}}), json!({"surprise": 1})] {
            assert!(matches!(invoked(bad.clone()), Err(Failure::Failed(_))), "{bad}");
        }
        assert_eq!(gated(json!({"answer": "let_through"})), Ok(GateAnswer::LetThrough));
        assert!(matches!(gated(json!({"answer": "refuse", "code": "no", "message": "No"})), Ok(GateAnswer::Refuse(_))));
        for bad in [json!(true), json!({}), json!({"answer": "maybe"}), json!({"answer": "park"}), wait] {
            assert!(matches!(gated(bad.clone()), Err(Failure::Failed(_))), "{bad}");
        }
        let plan = planned(json!({"executable": "/bin/true", "args": ["-x"], "env": {"A": "b"}})).unwrap();
        assert_eq!((plan.args.as_slice(), plan.cwd), (["-x".to_owned()].as_slice(), None));
        for bad in [
            json!({}),
            json!({"executable": 1}),
            json!({"executable": "/bin/true", "principal": "operator"}),
            json!({"executable": "/bin/true", "timeout_ms": 9}),
            json!({"executable": "/bin/true", "args": [1]}),
        ] {
            assert!(matches!(planned(bad.clone()), Err(Failure::Failed(_))), "{bad}");
        }
        assert_eq!(interpreted(json!({"end": "succeeded"})), Ok(SegmentEnd::Succeeded));
        let failed = json!({"end": "failed", "code": "no_luck", "message": "It\nwas not", "retryable": false});
        let message = "no_luck: It was not".to_owned();
        assert_eq!(
            interpreted(failed),
            Ok(SegmentEnd::Failed { code: Code::ProcessFailed, message, retryable: false })
        );
        for bad in [
            json!({}),
            json!({"end": "maybe"}),
            json!({"end": "cancelled"}),
            json!({"end": "succeeded", "code": "x"}),
            json!({"end": "failed"}),
            json!({"end": "failed", "code": "No luck", "message": "m", "retryable": true}),
        ] {
            assert!(matches!(interpreted(bad.clone()), Err(Failure::Failed(_))), "{bad}");
        }
        assert_eq!(acted(json!({"output": [1]})), Ok(json!([1])));
        assert!(acted(json!({"output": 1, "more": 2})).is_err());
    }
}

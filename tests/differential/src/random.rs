//! Random histories: one number chooses everything in one.

use std::collections::BTreeMap;

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use rand::{RngExt, SeedableRng};

use crate::history::{
    BINDINGS, BUILTINS, Bearer, Binding, Body, Call, End, Extension, Generation, History, Kind, Operation, Request,
    SCOPES, Said, Scope, Step, Tamper, Toolset,
};
use crate::model::grants::Known;
use crate::model::registrations;

/// Longest history, without the steps that open it.
const STEPS_MAX: usize = 16;
const SECOND_US: i64 = 1_000_000;

/// The registrations that `seed` names: in a random order, and some claim what is not theirs.
pub fn offered(seed: u64) -> Vec<Extension> {
    Random { dice: StdRng::seed_from_u64(seed) }.offered()
}

/// The history that `seed` names, of a release with these registrations.
pub fn history(offered: Vec<Extension>, seed: u64) -> History {
    let mut random = Random { dice: StdRng::seed_from_u64(seed) };
    let known = Known::of(&registrations::accepted(&offered));
    let mut steps = vec![Step::Publish(random.generation(&known, true))];
    for _ in 0..random.dice.random_range(3..=6) / 3 {
        steps.extend([
            Step::Create { scope: random.dice.random_range(0..2), binding: random.dice.random_range(0..2) },
            Step::Claim,
            Step::Launch { execution: usize::MAX, lives_us: random.lives_us() },
        ]);
    }
    let names = names(&known, &offered);
    for _ in 0..random.dice.random_range(8..=STEPS_MAX) {
        steps.extend(random.steps(&known, &names));
    }
    History { offered, steps }
}

/// The names that calls use: mostly operations of the release, and what was offered in vain.
fn names(known: &Known, offered: &[Extension]) -> (Vec<String>, Vec<String>) {
    let theirs = offered.iter().flat_map(|extension| &extension.operations).map(|operation| operation.name.clone());
    let vain = theirs.filter(|name| !known.operations.contains_key(name)).chain(["nothing.here".to_owned()]);
    (known.operations.keys().cloned().collect(), vain.collect())
}

struct Random {
    dice: StdRng,
}

impl Random {
    fn one_in(&mut self, n: u32) -> bool {
        self.dice.random_ratio(1, n)
    }

    fn any(&mut self) -> usize {
        self.dice.random_range(0..1000)
    }

    fn offered(&mut self) -> Vec<Extension> {
        let mut names = vec!["lab", "shop"];
        if self.one_in(3) {
            names.push("desk");
        }
        if self.one_in(6) {
            names.push(*["core", "emit", "lab", "shop"].choose(&mut self.dice).unwrap_or(&"core"));
        }
        let mut offered: Vec<Extension> = names.into_iter().map(|name| self.extension(name)).collect();
        offered.shuffle(&mut self.dice);
        offered
    }

    fn extension(&mut self, name: &str) -> Extension {
        let palette = [
            ("do", Kind::Handler, true),
            ("once", Kind::Handler, false),
            ("look", Kind::Read, true),
            ("expect", Kind::Wait, true),
            ("tell", Kind::Emission, true),
        ];
        let mut operations = Vec::new();
        for (suffix, kind, idempotent) in palette {
            if !self.one_in(4) {
                operations.push(Operation { name: format!("{name}.{suffix}"), kind, idempotent });
            }
        }
        if self.one_in(12) {
            // Another's name, a builtin's, one without a namespace, or one that it has already.
            let own = format!("{name}.do");
            let stolen = ["lab.do", "shop.once", "emit", "do", own.as_str()].choose(&mut self.dice).map_or("do", |s| s);
            operations.push(Operation { name: stolen.to_owned(), kind: Kind::Handler, idempotent: true });
        }
        let mut toolsets = Vec::new();
        for role in ["reader", "writer"] {
            let mut members: Vec<String> = operations.iter().map(|operation| operation.name.clone()).collect();
            members.extend(["emit", "read_context"].map(str::to_owned));
            members.retain(|_| self.dice.random_ratio(1, 2));
            members.sort();
            members.dedup();
            if self.one_in(40) {
                members.push("desk.elsewhere".into());
            }
            if !members.is_empty() {
                toolsets.push(Toolset { name: format!("{name}.{role}"), operations: members });
            }
        }
        Extension { name: name.to_owned(), always: self.one_in(4), operations, toolsets }
    }

    fn lives_us(&mut self) -> i64 {
        *[30 * SECOND_US, 600 * SECOND_US, 2_000 * SECOND_US].choose(&mut self.dice).unwrap_or(&SECOND_US)
    }

    fn generation(&mut self, known: &Known, sound: bool) -> Generation {
        let mut extensions = BTreeMap::new();
        for name in known.extensions.keys() {
            if !self.one_in(8) {
                let scopes = self.one_in(6).then(|| vec![self.dice.random_range(0..2)]);
                extensions.insert(name.clone(), Said { enabled: !self.one_in(8), scopes });
            }
        }
        if !sound && self.one_in(25) {
            extensions.insert("stranger".into(), Said { enabled: true, scopes: None });
        }
        Generation { extensions, scopes: SCOPES.iter().map(|_| self.scope(known, sound)).collect() }
    }

    fn scope(&mut self, known: &Known, sound: bool) -> Scope {
        let operations = self.list(known, 10, sound);
        let possible = known.possible(&operations);
        let events = !self.one_in(8);
        let bindings = BINDINGS.iter().map(|_| {
            let mut entries = self.list(known, 6, sound);
            // What the scope does not grant may not be asked for by name; now and then it is.
            let careless = !sound && self.one_in(12);
            entries.retain(|entry| entry.starts_with(['!', '@']) || possible.contains(entry) || careless);
            Binding {
                operations: entries,
                events: events && !self.one_in(8),
                delegates: (0..BINDINGS.len()).filter(|_| self.dice.random_ratio(2, 3)).collect(),
            }
        });
        let bindings = bindings.collect();
        Scope { enabled: sound || !self.one_in(8), operations, events, bindings }
    }

    /// Most names of the release, some of its toolsets, a few denials.
    fn list(&mut self, known: &Known, most: u32, sound: bool) -> Vec<String> {
        let mut entries = Vec::new();
        for name in BUILTINS.iter().copied().chain(known.operations.keys().map(String::as_str)) {
            if !self.one_in(most) {
                entries.push(name.to_owned());
            }
        }
        for toolset in known.toolsets.keys() {
            if self.dice.random_ratio(1, 2) {
                entries.push(format!("@{toolset}"));
            }
        }
        let names: Vec<String> = entries.clone();
        for name in names {
            if self.one_in(32) {
                entries.push(format!("!{name}"));
            }
        }
        if !sound && self.one_in(40) {
            entries.push("!lab.gone".into());
        }
        entries.shuffle(&mut self.dice);
        entries
    }

    fn steps(&mut self, known: &Known, names: &(Vec<String>, Vec<String>)) -> Vec<Step> {
        match self.dice.random_range(0..100) {
            0..66 => vec![Step::Call(Box::new(self.call(known, names)))],
            66..70 => {
                // The same request once more: as it was, changed, or by another token.
                let call = self.call(known, names);
                let mut again = Call { between: None, ..call.clone() };
                match self.dice.random_range(0..4) {
                    0 => again.body = self.body(),
                    1 => again.bearer = self.bearer(),
                    2 => {
                        let left = Step::Call(Box::new(Call { end: End::Leave, ..call.clone() }));
                        let again = Step::Call(Box::new(again));
                        let Request::Named(request) = call.request else {
                            return vec![left, Step::RestartHost, again];
                        };
                        let (execution, operation) = (usize::MAX, call.operation);
                        let resolve = Step::Resolve { execution, operation, request, done: self.one_in(2) };
                        return vec![left, Step::RestartHost, again.clone(), resolve, again];
                    }
                    _ => {}
                }
                vec![Step::Call(Box::new(call)), Step::Call(Box::new(again))]
            }
            70..75 => vec![Step::Publish(self.generation(known, false))],
            75..80 => vec![Step::Settle { running: self.any(), end: self.end(false) }],
            80..84 => {
                let (scope, binding) = (self.dice.random_range(0..2), self.dice.random_range(0..2));
                vec![
                    Step::Create { scope, binding },
                    Step::Claim,
                    Step::Launch { execution: usize::MAX, lives_us: self.lives_us() },
                ]
            }
            84..86 => vec![Step::Claim, Step::Launch { execution: usize::MAX, lives_us: self.lives_us() }],
            // A token before the boundary, and one that outlived its epoch.
            86 if self.one_in(3) => {
                let recovered = Step::Recover { execution: usize::MAX, lives_us: Some(self.lives_us()) };
                let call = Step::Call(Box::new(self.call(known, names)));
                vec![Step::Create { scope: 0, binding: 0 }, Step::Claim, recovered, call]
            }
            86 => {
                let token = self.any();
                let call = Call { bearer: Bearer::Token(token), ..self.call(known, names) };
                let recovered = Step::Recover { execution: self.any(), lives_us: None };
                vec![recovered, Step::Tamper(Tamper::Unrevoke { token }), Step::Call(Box::new(call))]
            }
            87 => vec![Step::Tamper(self.tamper()), Step::Call(Box::new(self.call(known, names)))],
            88..90 => vec![Step::RestartHost],
            90..91 => vec![Step::Wake { work: self.any() }],
            91..92 if self.one_in(3) => vec![Step::Reboot],
            _ => {
                let turn = self.turn(known);
                let ends = matches!(turn, Step::Complete { .. } | Step::Cancel { .. } | Step::Abandon { .. });
                if ends && self.one_in(2) {
                    let launched = Step::Launch { execution: usize::MAX, lives_us: self.lives_us() };
                    return vec![turn, Step::Create { scope: 1, binding: 0 }, Step::Claim, launched];
                }
                vec![turn]
            }
        }
    }

    /// What takes or gives authority, or lets time pass.
    fn turn(&mut self, known: &Known) -> Step {
        match self.dice.random_range(0..9) {
            0 | 1 => {
                let lives_us = (!self.one_in(4)).then(|| self.lives_us());
                Step::Recover { execution: self.any(), lives_us }
            }
            2 => Step::Complete { execution: self.any() },
            3 => Step::Cancel { execution: self.any() },
            4 => Step::Abandon { work: self.any() },
            5 => Step::Publish(self.generation(known, false)),
            _ => {
                let us = [SECOND_US, 29_999_999, 30 * SECOND_US, 600 * SECOND_US, 899_999_999, 1];
                Step::Pass { us: *us.choose(&mut self.dice).unwrap_or(&1) }
            }
        }
    }

    fn tamper(&mut self) -> Tamper {
        // Mostly what the newest token leans on.
        let at = if self.one_in(3) { self.any() } else { usize::MAX };
        match self.dice.random_range(0..4) {
            0 => Tamper::MoveWork { work: at, scope: self.dice.random_range(0..2) },
            1 => Tamper::PauseWork { work: at },
            2 => Tamper::StealLease { execution: at },
            _ => Tamper::Unrevoke { token: self.any() },
        }
    }

    fn call(&mut self, known: &Known, names: &(Vec<String>, Vec<String>)) -> Call {
        let stray = |random: &mut Self| random.one_in(40).then(|| random.any());
        let operation = match self.dice.random_range(0..20) {
            0 | 1 => "create_work".to_owned(),
            2..6 => "emit".to_owned(),
            6..8 => "read_context".to_owned(),
            8 if self.one_in(3) => "wait".to_owned(),
            8 if self.one_in(2) => "declare_outcome".to_owned(),
            9 if self.one_in(3) => names.1.choose(&mut self.dice).cloned().unwrap_or_default(),
            _ => names.0.choose(&mut self.dice).cloned().unwrap_or_else(|| "emit".to_owned()),
        };
        let between = self.one_in(14).then(|| Box::new(self.turn(known)));
        Call {
            bearer: self.bearer(),
            socket: stray(self),
            scope: self.one_in(20).then(|| self.dice.random_range(0..2)),
            work: stray(self),
            execution: stray(self),
            operation,
            request: match self.dice.random_range(0..24) {
                0..4 => Request::None,
                4 => Request::Malformed,
                n => Request::Named(n % 4),
            },
            body: self.body(),
            end: self.end(true),
            between,
        }
    }

    fn bearer(&mut self) -> Bearer {
        match self.dice.random_range(0..60) {
            0 => Bearer::Unknown,
            1 => Bearer::Operator,
            2..14 => Bearer::Token(self.any()),
            _ => Bearer::Newest,
        }
    }

    fn body(&mut self) -> Body {
        match self.dice.random_range(0..20) {
            0 => Body::Malformed,
            1 => Body::Foreign,
            2 | 3 => Body::Delivered(self.dice.random_range(0..2)),
            4 => Body::DeliveredAsRequest,
            n => Body::Plain(n % 2),
        }
    }

    fn end(&mut self, may_leave: bool) -> End {
        match self.dice.random_range(0..10) {
            0 => End::Refuse,
            1 => End::Fail,
            2 | 3 if may_leave => End::Leave,
            _ => End::Finish,
        }
    }
}

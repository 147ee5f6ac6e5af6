//! `manifest.json`: who a package is, how it is started, what it adds and what it needs.

use std::path::{Component, Path};

use conduit_api::{ApiError, Code, Version, json};
use conduit_kernel::Resources;
use conduit_toolbelt::registry::{ActionSpec, ExecutorSpec, OperationSpec, Playbook, Registration, Toolset};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::protocol;

/// Name of the file, at the top of the package.
pub const FILE: &str = "manifest.json";
/// Bytes of a manifest.
pub const MANIFEST_BYTES_MAX: usize = 1 << 20;
const ARGS_MAX: usize = 64;

/// A manifest, read strictly: an unknown field is refused, and so is a permission that this host does not enforce.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub name: String,
    pub version: Version,
    /// One line for people.
    pub summary: String,
    pub program: Program,
    /// Versions of the extension protocol that the program speaks.
    pub protocol_versions: Vec<u32>,
    #[serde(default)]
    pub provides: Provides,
    #[serde(default)]
    pub needs: Vec<Permission>,
    #[serde(default)]
    pub limits: Limits,
}

/// What each process of the package may use. They hold for each process by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Limits {
    /// Memory that is its own to write, in MiB.
    pub memory_mib: u64,
    /// Open files.
    pub files: u64,
    /// The largest file that it writes, in MiB.
    pub file_mib: u64,
}

impl Limits {
    /// The least and the most that a manifest may ask for.
    pub const MEMORY_MIB: (u64, u64) = (16, 64 << 10);
    pub const FILES: (u64, u64) = (16, 64 << 10);
    pub const FILE_MIB: (u64, u64) = (0, 64 << 10);

    /// As the kernel takes them.
    pub fn resources(self) -> Resources {
        Resources {
            memory_bytes_max: Some(self.memory_mib << 20),
            files_max: Some(self.files),
            file_bytes_max: Some(self.file_mib << 20),
            no_core: true,
            no_new_privileges: true,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self { memory_mib: 1024, files: 1024, file_mib: 1024 }
    }
}

/// What is started. It is run in the package's directory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// An executable file of the package.
    pub path: String,
    #[serde(default)]
    pub args: Vec<String>,
}

/// What the package adds to a toolbelt: the parts of a [`Registration`].
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Provides {
    #[serde(default)]
    pub operations: Vec<OperationSpec>,
    #[serde(default)]
    pub event_families: Vec<String>,
    #[serde(default)]
    pub wait_families: Vec<String>,
    #[serde(default)]
    pub toolsets: Vec<Toolset>,
    /// Whether it serves `operation.gate`; needs the permission of that name (G01).
    #[serde(default)]
    pub operation_gate: bool,
    /// Whether it serves `gate.start`; needs `start.gate` (G06).
    #[serde(default)]
    pub start_gate: bool,
    #[serde(default)]
    pub playbooks: Vec<Playbook>,
    #[serde(default)]
    pub actions: Vec<ActionSpec>,
    /// JSON Schema of `extensions.<name>.config`; without one that stays empty.
    #[serde(default)]
    pub settings: Option<Value>,
    /// Whether it serves `validate`, for what the schema cannot say.
    #[serde(default)]
    pub validate: bool,
    /// What bindings can name as their executor; needs `executor.run` (X01).
    #[serde(default)]
    pub executors: Vec<ExecutorSpec>,
}

/// What an operator allows a package beyond its own operations. What the host does not enforce is no permission.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Permission {
    /// Judging other registrations' operations: it sees their inputs.
    #[serde(rename = "operation.gate")]
    OperationGate,
    /// Judging Work before its first attempt.
    #[serde(rename = "start.gate")]
    StartGate,
    /// Naming programs that the host runs as its own user.
    #[serde(rename = "executor.run")]
    ExecutorRun,
}

impl Permission {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::OperationGate => "operation.gate",
            Self::StartGate => "start.gate",
            Self::ExecutorRun => "executor.run",
        }
    }
}

impl Manifest {
    /// Reads and checks a manifest by itself. Error: `package_refused`.
    pub fn read(bytes: &[u8]) -> Result<Self, ApiError> {
        let manifest: Self =
            json::read(bytes, MANIFEST_BYTES_MAX).map_err(|refused| refuse(format!("{FILE}: {refused}")))?;
        manifest.check()?;
        Ok(manifest)
    }

    /// What it registers. Never `always`: an operator has to enable a package.
    pub fn registration(&self) -> Registration {
        let provides = self.provides.clone();
        Registration {
            operations: provides.operations,
            event_families: provides.event_families,
            wait_families: provides.wait_families,
            toolsets: provides.toolsets,
            gate: provides.operation_gate,
            start_gate: provides.start_gate,
            playbooks: provides.playbooks,
            actions: provides.actions,
            settings: provides.settings,
            validate: provides.validate,
            executors: provides.executors,
            ..Registration::new(self.name.clone(), self.version, self.summary.clone())
        }
    }

    fn check(&self) -> Result<(), ApiError> {
        if !conduit_api::id::is_name(&self.name) {
            return Err(refuse("its name is a lower-case letter, then at most 63 letters, digits, - or _"));
        }
        let program = Path::new(&self.program.path);
        let inside = program.components().all(|part| matches!(part, Component::Normal(_)));
        if self.program.path.is_empty() || !inside {
            return Err(refuse("`program.path` names a file of the package, relative to its directory"));
        }
        if self.program.args.len() > ARGS_MAX || self.program.args.iter().any(|arg| arg.contains('\0')) {
            return Err(refuse(format!("`program.args` has at most {ARGS_MAX} entries, without NUL")));
        }
        for (name, asked, (min, max)) in [
            ("memory_mib", self.limits.memory_mib, Limits::MEMORY_MIB),
            ("files", self.limits.files, Limits::FILES),
            ("file_mib", self.limits.file_mib, Limits::FILE_MIB),
        ] {
            if !(min..=max).contains(&asked) {
                return Err(refuse(format!("`limits.{name}` is a number from {min} to {max}")));
            }
        }
        if !self.protocol_versions.iter().any(|version| protocol::VERSIONS.contains(version)) {
            let spoken = protocol::VERSIONS.map(|version| version.to_string()).join(", ");
            return Err(refuse(format!(
                "it speaks no version of the extension protocol that this host speaks ({spoken})"
            )));
        }
        for (provided, permission) in [
            (self.provides.operation_gate, Permission::OperationGate),
            (self.provides.start_gate, Permission::StartGate),
            (!self.provides.executors.is_empty(), Permission::ExecutorRun),
        ] {
            let name = permission.as_str();
            let needed = self.needs.iter().filter(|needed| **needed == permission).count();
            match (provided, needed) {
                (true, 0) => return Err(refuse(format!("it provides what takes `{name}`, and does not need that"))),
                (false, 1..) => return Err(refuse(format!("it needs `{name}`, and provides nothing that takes it"))),
                (true, 2..) => return Err(refuse(format!("it needs `{name}` twice"))),
                (true, 1) | (false, 0) => {}
            }
        }
        Ok(())
    }
}

pub(super) fn refuse(why: impl std::fmt::Display) -> ApiError {
    ApiError::new(Code::PackageRefused, format!("the package is refused: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn sound() -> Value {
        json!({
            "name": "weather", "version": "1.0.0", "summary": "Weather", "program": {"path": "main"},
            "protocol_versions": [1],
        })
    }

    fn with(pointer: &str, value: Value) -> Result<Manifest, ApiError> {
        let mut manifest = sound();
        manifest[pointer] = value;
        Manifest::read(manifest.to_string().as_bytes())
    }

    /// X01
    #[test]
    fn a_sound_manifest_is_read_and_never_active_by_itself() {
        let registration = with("summary", json!("Weather")).unwrap().registration();
        assert_eq!((registration.name.as_str(), registration.always, registration.gate), ("weather", false, false));
    }

    /// X01
    #[test]
    fn what_a_host_does_not_know_or_cannot_keep_is_refused() {
        for (field, value) in [
            ("name", json!("Weather")),
            ("name", json!("a.b")),
            ("surprise", json!(1)),
            ("executors", json!([])),
            ("needs", json!(["network"])),
            ("needs", json!(["operation.gate"])),
            ("program", json!({"path": "/bin/sh"})),
            ("program", json!({"path": "../main"})),
            ("program", json!({"path": ""})),
            ("protocol_versions", json!([2])),
            ("protocol_versions", json!([])),
            ("provides", json!({"operation_gate": true})),
            ("provides", json!({"start_gate": true})),
            ("provides", json!({"always": true})),
            ("limits", json!({"memory_mib": 15})),
            ("limits", json!({"memory_mib": 65537})),
            ("limits", json!({"files": 15})),
            ("limits", json!({"file_mib": 65537})),
            ("limits", json!({"processes": 1})),
        ] {
            let refused = with(field, value.clone()).unwrap_err();
            assert_eq!(refused.code, Code::PackageRefused, "{field} {value}");
        }
        assert!(Manifest::read(b"{\"name\": \"a\", \"name\": \"a\"}").is_err());
    }

    /// X01
    #[test]
    fn executors_need_their_permission_and_a_permission_its_executors() {
        let executor = json!({"name": "weather", "summary": "Looks at the sky", "config": {"type": "object"}});
        let mut manifest = sound();
        manifest["provides"] = json!({"executors": [executor]});
        assert!(
            Manifest::read(manifest.to_string().as_bytes()).is_err(),
            "it does not say that it needs to run programs"
        );
        manifest["needs"] = json!(["executor.run"]);
        let registration = Manifest::read(manifest.to_string().as_bytes()).unwrap().registration();
        assert_eq!(registration.executors[0].name, "weather");
        manifest["provides"]["executors"][0]["surprise"] = json!(1);
        assert!(Manifest::read(manifest.to_string().as_bytes()).is_err());
        manifest["provides"] = json!({"executors": []});
        assert!(Manifest::read(manifest.to_string().as_bytes()).is_err(), "it has nothing to run");
    }

    /// G01
    #[test]
    fn a_gate_needs_its_permission_and_a_permission_its_gate() {
        let mut manifest = sound();
        manifest["provides"] = json!({"operation_gate": true});
        manifest["needs"] = json!(["operation.gate"]);
        assert!(Manifest::read(manifest.to_string().as_bytes()).unwrap().registration().gate);
        manifest["needs"] = json!(["operation.gate", "operation.gate"]);
        assert!(Manifest::read(manifest.to_string().as_bytes()).is_err());
    }
}

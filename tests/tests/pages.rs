//! Pages and units say what is there: files that are named exist, and systemd is told what the programs expect.

use std::path::{Path, PathBuf};

use conduit_api::places::Places;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The README and every page of `docs` and `packaging`.
fn pages() -> Vec<PathBuf> {
    let mut found = vec![root().join("README.md")];
    for folder in ["docs", "packaging"] {
        let entries = std::fs::read_dir(root().join(folder)).unwrap().map(|entry| entry.unwrap().path());
        found.extend(entries.filter(|path| path.extension().is_some_and(|extension| extension == "md")));
    }
    found
}

/// What stands between two back quotes of a line, or behind `](` up to the parenthesis.
fn named(line: &str) -> Vec<(bool, &str)> {
    let quoted = line.split('`').skip(1).step_by(2).map(|text| (false, text));
    let linked = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| (true, target));
    quoted.chain(linked).collect()
}

/// Whether a quoted text is a path from the top of the repository.
fn is_path_of_the_repository(text: &str) -> bool {
    let top = ["lib/", "bins/", "tests/", "docs/", "units/", "packaging/"];
    top.iter().any(|folder| text.starts_with(folder)) && !text.contains(['<', '*', '{', ' '])
}

#[test]
fn every_file_that_a_page_names_is_there() {
    let mut missing = Vec::new();
    for page in pages() {
        for line in read(&page).lines().filter(|line| !line.starts_with("    ")) {
            for (is_link, text) in named(line) {
                let target = match is_link {
                    true if text.contains("://") || text.starts_with('#') => continue,
                    true => page.parent().unwrap().join(text.split('#').next().unwrap()),
                    false if is_path_of_the_repository(text) => root().join(text),
                    false => continue,
                };
                if !target.exists() {
                    missing.push(format!("{}: {text}", page.strip_prefix(root()).unwrap().display()));
                }
            }
        }
    }
    assert!(missing.is_empty(), "these are named and not there: {missing:#?}");
}

fn unit(name: &str) -> String {
    read(&root().join("units").join(name))
}

/// The value of a unit's line `key=`.
fn setting<'u>(unit: &'u str, key: &str) -> Option<&'u str> {
    unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
}

const SERVICES: [&str; 3] = ["open-conduitd", "open-conduit-endpointd", "open-conduit-management"];

/// U02
#[test]
fn a_socket_unit_has_the_name_and_the_path_that_its_program_looks_for() {
    let places = Places { state: "/var/lib/open-conduit".into(), runtime: "/run/open-conduit".into() };
    let expected = [
        ("open-conduitd", "doorbell", "ListenDatagram", places.doorbell_socket()),
        ("open-conduit-endpointd", "endpointd", "ListenStream", places.endpointd_socket()),
        ("open-conduit-management", "management", "ListenStream", places.management_socket()),
    ];
    for (program, name, kind, path) in expected {
        let socket = unit(&format!("{program}.socket"));
        assert_eq!(setting(&socket, "FileDescriptorName"), Some(name), "{program}");
        assert_eq!(setting(&socket, kind), path.to_str(), "{program}");
        assert_eq!(setting(&socket, "SocketMode"), Some("0600"), "{program}");
        let command =
            format!("/usr/lib/open-conduit/{program} --state /var/lib/open-conduit --runtime /run/open-conduit");
        let service = unit(&format!("{program}.service"));
        assert_eq!(setting(&service, "ExecStart"), Some(command.as_str()));
        assert_eq!(
            setting(&service, "RestartPreventExitStatus"),
            Some("78"),
            "EX_CONFIG: starting again does not help"
        );
    }
}

/// U02
#[test]
fn executions_and_run_sockets_outlive_a_restart_of_their_service() {
    assert_eq!(setting(&unit("open-conduitd.service"), "KillMode"), Some("process"));
    assert_eq!(setting(&unit("open-conduitd.service"), "OOMPolicy"), Some("continue"));
    let kept = setting(&unit("open-conduit-endpointd.service"), "FileDescriptorStoreMax").map(str::to_owned);
    assert_eq!(kept.as_deref(), Some("10000"));
    for service in SERVICES {
        let unit = unit(&format!("{service}.service"));
        assert_eq!(setting(&unit, "RuntimeDirectory"), None, "{service}: it would go with the service");
    }
}

/// U02
#[test]
fn each_hardening_line_is_set_or_its_absence_explained() {
    let lines = [
        "NoNewPrivileges",
        "CapabilityBoundingSet",
        "AmbientCapabilities",
        "ProtectSystem",
        "ProtectHome",
        "PrivateTmp",
        "PrivateDevices",
        "PrivateNetwork",
        "IPAddressDeny",
        "ProtectKernelTunables",
        "ProtectKernelModules",
        "ProtectKernelLogs",
        "ProtectControlGroups",
        "ProtectClock",
        "ProtectHostname",
        "ProtectProc",
        "ProcSubset",
        "RestrictAddressFamilies",
        "RestrictNamespaces",
        "RestrictRealtime",
        "RestrictSUIDSGID",
        "LockPersonality",
        "MemoryDenyWriteExecute",
        "RemoveIPC",
        "SystemCallArchitectures",
        "SystemCallFilter",
        "DynamicUser",
        "UMask",
        "LimitCORE",
        "WatchdogSec",
    ];
    for service in SERVICES {
        let unit = unit(&format!("{service}.service"));
        let (_, left_out) = unit.split_once("# Left out, each for a reason:\n").unwrap();
        for line in lines {
            let explained = left_out.contains(&format!("{line}="));
            assert!(setting(&unit, line).is_some() || explained, "{service}: {line}= is neither set nor explained");
        }
    }
}

/// T05: an option that mounts a `/proc` of the service's own may show it another name of the boot than the others see.
#[test]
fn no_service_gets_a_proc_of_its_own() {
    for service in SERVICES {
        let unit = unit(&format!("{service}.service"));
        for line in ["ProtectProc", "ProcSubset", "ProtectKernelTunables", "ProtectControlGroups"] {
            assert_eq!(setting(&unit, line), None, "{service}: {line}");
        }
    }
}

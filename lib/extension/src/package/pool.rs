//! The packages that are in use, each as its row says at this moment.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::{Bounds, InstalledPackage, Processes};
use crate::Extension;

/// The installed packages of one daemon.
#[derive(Debug)]
pub struct Packages {
    processes: Rc<Processes>,
    bounds: Bounds,
    used: RefCell<BTreeMap<String, InstalledPackage>>,
}

impl Packages {
    pub fn new(processes: Processes, bounds: Bounds) -> Self {
        Self { processes: Rc::new(processes), bounds, used: RefCell::default() }
    }

    /// The package `name`, as it is installed now; one that was replaced or removed is ended. Runs inside a `LocalSet`.
    pub fn get(&self, name: &str) -> Option<Rc<dyn Extension>> {
        let installed = match self.processes.installed(name) {
            Ok(installed) => installed,
            Err(error) => {
                tracing::error!(package = name, %error, "a package cannot be looked up");
                return None;
            }
        };
        let mut used = self.used.borrow_mut();
        let current =
            used.get(name).filter(|known| installed.as_ref().is_some_and(|row| row.digest == known.row().digest));
        if let Some(current) = current {
            return Some(Rc::new(current.clone()));
        }
        if let Some(former) = used.remove(name) {
            tokio::task::spawn_local(async move { former.close().await });
        }
        let package = InstalledPackage::new(installed?, Rc::clone(&self.processes), self.bounds);
        used.insert(name.to_owned(), package.clone());
        Some(Rc::new(package))
    }

    /// Ends what an earlier daemon started.
    pub async fn recover(&self) {
        self.processes.recover().await;
    }

    /// Ends every process, all at the same time.
    pub async fn close(&self) {
        let used = std::mem::take(&mut *self.used.borrow_mut());
        let closing: Vec<_> =
            used.into_values().map(|package| tokio::task::spawn_local(async move { package.close().await })).collect();
        for closed in closing {
            if let Err(error) = closed.await {
                tracing::error!(%error, "a package was not ended in order");
            }
        }
    }
}

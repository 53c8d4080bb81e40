//! Objects of all types by their id: an id belongs to one object, and an object that is in use cannot be removed.

use super::DaemonObjects;
use super::export::Export;
use super::objects::DEFAULT_IOTHREAD;
use crate::error::BoxError;

impl DaemonObjects {
    /// The type (`qom-type`) and id of each object.
    pub fn types_and_ids_of_objects(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let iothreads = self.iothreads.iter();
        let iothreads = iothreads.map(|iothread| ("iothread", iothread.options.id.as_str()));
        let secrets = self.secrets.iter();
        let secrets = secrets.map(|secret| ("secret", secret.options.id.as_str()));
        let groups = self.throttle_groups.iter();
        let groups = groups.map(|group| ("throttle-group", group.options.id.as_str()));
        let creds = self.tls_creds.iter();
        let creds = creds.map(|creds| ("tls-creds-x509", creds.options.id.as_str()));
        let lists = self.authz_lists.iter();
        let lists = lists.map(|list| ("authz-list", list.options.id.as_str()));
        let for_tls = creds.chain(lists);
        iothreads.chain(secrets).chain(groups).chain(for_tls)
    }

    /// Refuses the id of the iothread that was created for exports that name none, for an object of another type.
    pub(super) fn check_id_is_no_default_iothread(
        &self,
        id: &str,
        kind: &str,
    ) -> Result<(), BoxError> {
        match self.find_iothread(id) {
            None => Ok(()),
            Some(_) => Err(format!(
                "--object: iothread '{id}' was created for exports that name none; give the {kind} another id"
            )
            .into()),
        }
    }

    /// Removes an object that is not in use.
    pub fn remove_object(&mut self, id: &str) -> Result<(), BoxError> {
        if self.find_secret(id).is_some() {
            return self.remove_secret(id);
        }
        if let Some(removed) = self.remove_tls_object(id) {
            return removed;
        }
        match self.find_throttle_group(id) {
            Some(_) => self.remove_throttle_group(id),
            None => self.remove_iothread(id),
        }
    }

    /// Ends an iothread that no export runs on.
    fn remove_iothread(&mut self, id: &str) -> Result<(), BoxError> {
        let index = self.iothreads.iter().position(|i| i.options.id == id);
        let index = index.ok_or_else(|| format!("object '{id}' not found"))?;
        let runs_on = |export: &&Export| match export.options.iothreads.as_slice() {
            [] => id == DEFAULT_IOTHREAD,
            names => names.iter().any(|name| name == id),
        };
        if let Some(export) = self.exports.iter().find(runs_on) {
            return Err(format!(
                "object '{id}' is in use, can not be deleted: export '{}' runs on it",
                export.options.id
            )
            .into());
        }
        if let Some(job) = self.id_of_job_on_iothread(id) {
            return Err(format!(
                "object '{id}' is in use, can not be deleted: job '{job}' runs on it"
            )
            .into());
        }
        self.iothreads.remove(index);
        Ok(())
    }
}

//! Plans a backup of one disk, the job of `blockdev-backup`: checks the options, and makes what the job needs.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use block::dirty_bitmap::{BitmapAction, BitmapChange, BitmapError, BitmapMemory};
use block::{
    BlockCopy, COPY_CLUSTER_BYTES, CopyExtent, CopyFailure, CopyMoment, MAX_COPY_PIECE_BYTES, Node,
    backup_cluster_bytes,
};
use copier::{CopierControl, CopierSettings, CopierWork};
use iothread::{IothreadHandle, OnError};

use super::users::{NodeUser, check_no_export_draining, users_of_node};
use crate::error::BoxError;
use crate::state::DaemonObjects;
use crate::state::job::BitmapMode;
use crate::state::mirror_job::MirrorJob;
use crate::state::node::OpenNode;

/// The part of a disk that is copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BackupSync {
    /// The whole disk.
    Full,
    /// The same: a raw disk has nothing below that `top` would leave out.
    Top,
    /// What is dirty in a bitmap.
    Bitmap,
    /// The same, with a mode of the bitmap that it implies.
    Incremental,
    /// What guests are about to change.
    None,
}

impl BackupSync {
    fn name(self) -> &'static str {
        match self {
            BackupSync::Full => "full",
            BackupSync::Top => "top",
            BackupSync::Bitmap => "bitmap",
            BackupSync::Incremental => "incremental",
            BackupSync::None => "none",
        }
    }
}

/// Options of a backup.
pub(crate) struct BackupOptions {
    pub job_id: String,
    pub device: String,
    pub target: String,
    pub sync: BackupSync,
    pub bitmap: Option<String>,
    pub bitmap_mode: Option<BitmapMode>,
    pub speed: u64,
    pub on_source_error: OnError,
    pub on_target_error: OnError,
    pub auto_finalize: bool,
    pub auto_dismiss: bool,
    pub max_workers: i64,
    pub max_chunk: i64,
    pub use_copy_range: bool,
}

/// A job that can begin: a backup, or a mirror.
pub(crate) struct JobPlan {
    pub id: String,
    pub number: u64,
    pub source: Arc<Node>,
    pub target: Arc<Node>,
    pub copy: Arc<BlockCopy>,
    pub control: Arc<CopierControl>,
    pub settings: CopierSettings,
    pub iothread: Arc<IothreadHandle>,
    pub users: Vec<NodeUser>,
    pub bitmap: Option<PlannedBitmap>,
    /// For a mirror.
    pub mirror: Option<MirrorJob>,
    pub auto_finalize: bool,
    pub auto_dismiss: bool,
}

/// The bitmap of a backup.
#[derive(Clone)]
pub(crate) struct PlannedBitmap {
    pub name: String,
    pub mode: BitmapMode,
    /// Only what is dirty is copied.
    pub limits: bool,
}

impl JobPlan {
    /// Checks the options, and plans a backup as of this moment. `new_bitmaps` are added before by the same transaction, whose backups
    /// have `memory`; `on_failed` gets the number of the job if a guest's write could not be copied before.
    pub fn new(
        objects: &mut DaemonObjects,
        options: BackupOptions,
        moment: &Arc<CopyMoment>,
        new_bitmaps: &[(Arc<Node>, String)],
        memory: &mut BitmapMemory,
        on_failed: impl Fn(u64, CopyFailure) + Send + Sync + 'static,
    ) -> Result<Self, BoxError> {
        let source = usable_node(objects, &options.device)?.node.clone();
        let target = usable_node(objects, &options.target)?.node.clone();
        check_job_id(objects, &options.job_id)?;
        let bitmap = planned_bitmap(&source, &options, new_bitmaps)?;
        check_disks(objects, &source, &target)?;
        if options.sync == BackupSync::None {
            objects.check_not_written_by_clients(&target)?;
        }
        let (max_workers, max_chunk) = checked_limits(&options)?;
        let number = objects.job_count;
        objects.job_count += 1;
        let extent = match &bitmap {
            _ if options.sync == BackupSync::None => CopyExtent::Changes,
            Some(bitmap) if bitmap.limits => CopyExtent::Dirty,
            _ => CopyExtent::All,
        };
        let on_failed = move |failure| on_failed(number, failure);
        let bitmaps = if extent == CopyExtent::Dirty { 2 } else { 1 };
        let size = source.size();
        let block_bytes = source.whole_block_bytes().max(target.whole_block_bytes());
        let cluster_bytes = backup_cluster_bytes(size, block_bytes);
        for _ in 0..bitmaps {
            memory.count(size, cluster_bytes)?;
        }
        let copy = BlockCopy::new(size, cluster_bytes, moment.clone(), extent, on_failed)?;
        let control = CopierControl::default();
        control.speed.store(options.speed, Ordering::Relaxed);
        Ok(JobPlan {
            id: options.job_id,
            number,
            copy,
            control: Arc::new(control),
            settings: CopierSettings {
                on_source_error: options.on_source_error,
                on_target_error: options.on_target_error,
                max_workers,
                max_chunk,
                clones: options.use_copy_range,
                work: match options.sync {
                    BackupSync::None => CopierWork::OnlyChanges,
                    _ => CopierWork::All,
                },
            },
            iothread: iothread_of_job(objects, &source)?,
            users: users_of_node(objects, &source),
            source,
            target,
            bitmap,
            mirror: None,
            auto_finalize: options.auto_finalize,
            auto_dismiss: options.auto_dismiss,
        })
    }

    /// The change of the bitmap at the moment of the backup.
    pub fn bitmap_action(&self) -> Option<BitmapAction> {
        let bitmap = self.bitmap.as_ref()?;
        Some(BitmapAction {
            node: self.source.bitmaps().clone(),
            bitmap: bitmap.name.clone(),
            change: BitmapChange::BeginSuccessor,
        })
    }

    /// Gives routes of the source that are made from now on the filter of the job.
    pub fn set_filter(&self) {
        let (source, copy, target) = (&self.source, &self.copy, &self.target);
        match &self.mirror {
            None => source.set_copy_before_write(copy, target),
            Some(mirror) => source.set_mirror(copy, target, mirror.initial_mode()),
        }
    }
}

/// A node of this name that requests can use.
pub(super) fn usable_node<'a>(
    objects: &'a DaemonObjects,
    name: &str,
) -> Result<&'a OpenNode, BoxError> {
    objects.check_node_not_opening(name)?;
    let found = objects.find_node(name);
    let found =
        found.ok_or_else(|| format!("Cannot find device='{name}' nor node-name='{name}'"))?;
    found.check_not_reserved()?;
    match found.options.settings.active {
        true => Ok(found),
        false => Err(format!(
            "Node '{name}' is inactive: activate it with blockdev-set-active first"
        )
        .into()),
    }
}

/// QEMU's rule for ids: a letter, then letters, digits, '-', '.' and '_'.
pub(super) fn check_job_id(objects: &DaemonObjects, id: &str) -> Result<(), BoxError> {
    let is_well_formed = id.starts_with(|first: char| first.is_ascii_alphabetic())
        && id
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_'));
    if !is_well_formed {
        return Err(format!("Invalid job ID '{id}'").into());
    }
    match objects.has_job(id) {
        true => Err(format!("Job ID '{id}' already in use").into()),
        false => Ok(()),
    }
}

/// Checks the options on bitmaps, with the errors of QEMU.
fn planned_bitmap(
    source: &Node,
    options: &BackupOptions,
    new_bitmaps: &[(Arc<Node>, String)],
) -> Result<Option<PlannedBitmap>, BoxError> {
    let sync = options.sync;
    let limits = matches!(sync, BackupSync::Bitmap | BackupSync::Incremental);
    let Some(name) = &options.bitmap else {
        return match (limits, options.bitmap_mode) {
            (true, _) => Err(format!(
                "must provide a valid bitmap name for '{}' sync mode",
                sync.name()
            )
            .into()),
            (false, Some(_)) => Err("Cannot specify bitmap sync mode without a bitmap".into()),
            (false, None) => Ok(None),
        };
    };
    let mode = match (sync, options.bitmap_mode) {
        (BackupSync::Incremental, None | Some(BitmapMode::OnSuccess)) => {
            Some(BitmapMode::OnSuccess)
        }
        (BackupSync::Incremental, Some(_)) => {
            return Err(
                "Bitmap sync mode must be 'on-success' when using sync mode 'incremental'".into(),
            );
        }
        (_, mode) => mode,
    };
    let statuses = source.bitmaps().statuses();
    let existing = statuses.iter().find(|bitmap| bitmap.name == *name);
    let is_new = |(node, new): &(Arc<Node>, String)| std::ptr::eq(&**node, source) && new == name;
    if existing.is_none() && !new_bitmaps.iter().any(is_new) {
        return Err(format!("Bitmap '{name}' could not be found").into());
    }
    let mode = mode.ok_or("Bitmap sync mode must be given when providing a bitmap")?;
    if let Some(bitmap) = existing {
        if bitmap.inconsistent {
            return Err(BitmapError::Inconsistent(name.clone()).into());
        }
        if bitmap.busy {
            return Err(BitmapError::Busy(name.clone()).into());
        }
    }
    match (sync, mode) {
        (BackupSync::None, _) => {
            Err("sync mode 'none' does not produce meaningful bitmap outputs".into())
        }
        (BackupSync::Full | BackupSync::Top, BitmapMode::Never) => Err(format!(
            "Bitmap sync mode 'never' has no meaningful effect when combined with sync mode '{}'",
            sync.name()
        )
        .into()),
        _ => Ok(Some(PlannedBitmap {
            name: name.clone(),
            mode,
            limits,
        })),
    }
}

/// Checks that one disk can be copied to the other.
pub(super) fn check_disks(
    objects: &DaemonObjects,
    source: &Node,
    target: &Node,
) -> Result<(), BoxError> {
    if source.is_on_same_path_as(target) {
        return Err("Source and target cannot be the same".into());
    }
    for (one, two) in [(source, target), (target, source)] {
        let exported = objects.node_of_own_export(one);
        if exported.is_some_and(|node| node.is_on_same_path_as(two)) {
            return Err(format!(
                "Source and target cannot be the same: node '{}' is an export of this daemon, which shows node '{}'",
                one.name(),
                two.name()
            )
            .into());
        }
    }
    objects.check_free_for_job(source)?;
    objects.check_free_for_job(target)?;
    check_no_export_draining(objects, source)?;
    if target.read_only() {
        return Err(format!("Block node '{}' is read-only", target.name()).into());
    }
    // As large would do, but another size may be a mistake.
    if source.size() > target.size() {
        return Err(different_sizes(source, target));
    }
    Ok(())
}

/// The error for a target that has not the size of a copy's source.
pub(super) fn different_sizes(source: &Node, target: &Node) -> BoxError {
    format!(
        "Source and target image have different sizes: target '{}' has {} bytes, and a copy of '{}' needs {}",
        target.name(),
        target.size(),
        source.name(),
        source.size(),
    )
    .into()
}

/// Checks `max-workers` and `max-chunk`, with the errors of QEMU.
fn checked_limits(options: &BackupOptions) -> Result<(usize, u64), BoxError> {
    let workers = i32::try_from(options.max_workers).ok();
    let workers = workers.and_then(|workers| usize::try_from(workers).ok());
    let workers = workers.filter(|workers| *workers > 0);
    let workers = workers.ok_or("max-workers must be between 1 and 2147483647")?;
    let chunk = match u64::try_from(options.max_chunk) {
        Ok(0) => MAX_COPY_PIECE_BYTES,
        Ok(chunk) if chunk >= COPY_CLUSTER_BYTES => chunk.min(MAX_COPY_PIECE_BYTES),
        Ok(chunk) => {
            return Err(format!(
                "Required max-chunk ({chunk}) is less than backup cluster size ({COPY_CLUSTER_BYTES})"
            )
            .into());
        }
        Err(_) => {
            return Err("max-chunk must be between 0 (which means default) and 2147483647".into());
        }
    };
    Ok((workers, chunk / COPY_CLUSTER_BYTES * COPY_CLUSTER_BYTES))
}

/// The iothread of the first queue of an export of the disk, or the one of exports that name none.
pub(super) fn iothread_of_job(
    objects: &mut DaemonObjects,
    source: &Node,
) -> Result<Arc<IothreadHandle>, BoxError> {
    let mut exports = objects.exports.iter();
    let export = exports.find(|export| {
        let mut disks = export.disks.iter();
        disks.any(|disk| disk.node.get().leads_through(source))
    });
    let first = export.and_then(|export| export.stats.queues.first());
    let names: Vec<String> = first.iter().map(|queue| queue.iothread.clone()).collect();
    let found = objects.find_iothreads_or_create_default(&names)?;
    let first = found.into_iter().next();
    first.ok_or_else(|| "no iothread for a job".into())
}

//! The measuring part of an experiment: blocks of cells, each recorded before the next begins.

use std::collections::BTreeMap;
use std::time::Duration;

use haltkick_vmm::{Ring, RunConfig, RunError};

use crate::directory::Directory;
use crate::exit::{Failure, Result};
use crate::host::Host;
use crate::plan::{Cell, Plan};
use crate::progress::{Position, Progress};
use crate::record::{Record, Role};
use crate::run::{self, Engine};
use crate::single::to_json;

/// What the first runs found out and all later ones are given.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    /// Iterations of the work loop per 2^20 ns.
    pub(crate) work_rate: u64,
    ring: Ring,
    ring_reason: String,
}

/// Boots whose measured work rates the calibration takes the middle of.
const CALIBRATION_BOOTS: usize = 3;

impl Calibration {
    /// Boots the guest a few times without a lock and with one vCPU per pCPU.
    pub(crate) fn measure(engine: Engine<'_>, plan: &Plan) -> std::result::Result<Self, RunError> {
        let cell = plan.points.iter().flat_map(|point| point.ideals.iter().chain(&point.arms)).next();
        let cell = cell.ok_or_else(|| RunError::Usage("the plan has no cells".into()))?;
        let config = RunConfig {
            vcpus: cell.config.cpus.len() as u32,
            work_rate: None,
            warmup: Duration::from_millis(1),
            window: Duration::from_millis(5),
            ..cell.config.clone()
        };
        let mut boots = (0..CALIBRATION_BOOTS).map(|_| engine(&config)).collect::<std::result::Result<Vec<_>, _>>()?;
        boots.sort_by_key(|outcome| outcome.work_rate);
        let middle = boots.swap_remove(CALIBRATION_BOOTS / 2);
        Ok(Self { work_rate: middle.work_rate, ring: middle.ring, ring_reason: middle.ring_reason })
    }

    fn apply(&self, config: &RunConfig, seed: u64) -> RunConfig {
        RunConfig {
            work_rate: config.work_rate.or(Some(self.work_rate)),
            ring: if config.ring == Ring::Auto { self.ring } else { config.ring },
            seed,
            ..config.clone()
        }
    }
}

/// A running experiment.
pub(crate) struct Session<'a> {
    pub(crate) plan: &'a Plan,
    pub(crate) engine: Engine<'a>,
    pub(crate) host: Host,
    pub(crate) calibration: Calibration,
    pub(crate) directory: Directory,
    pub(crate) records: Vec<Record>,
    pub(crate) progress: Progress,
}

impl Session<'_> {
    /// Runs the cells of blocks `0..blocks` that have no record yet.
    pub(crate) fn run_blocks(&mut self, blocks: u32) -> Result<()> {
        let plan = self.plan;
        let cells_per_block = plan.cells_per_block();
        for block in 0..blocks {
            let order = plan.block(block);
            let mut ideals = BTreeMap::new();
            for (i, cell) in order.iter().enumerate() {
                let order_index = u64::from(block) * cells_per_block as u64 + i as u64;
                let position = Position {
                    done: order_index as usize,
                    cells: cells_per_block * blocks as usize,
                    block,
                    blocks,
                    cell_id: &cell.id,
                };
                let left = self.time_left(&order[i..], blocks - block - 1);
                self.progress.draw(&position, left);
                self.run_cell(cell, block, order_index, &mut ideals)?;
                if i + 1 == order.len() {
                    self.progress.block_done(&position, self.time_left(&[], blocks - block - 1));
                }
            }
        }
        self.progress.finish();
        Ok(())
    }

    fn run_cell(
        &mut self,
        cell: &Cell,
        block: u32,
        order_index: u64,
        ideals: &mut BTreeMap<String, f64>,
    ) -> Result<()> {
        let place = cell.place(&self.plan.outline.experiment, block, order_index);
        let config = self.calibration.apply(&cell.config, self.plan.seed.wrapping_add(u64::from(block)));
        let ideal = cell.ideal.as_ref().map(|id| (id, ideals.get(id).copied()));
        let record = run::run_cell(self.engine, &config, &self.host, Some(place), |outcome| match ideal {
            Some((_, Some(lock_free))) => Ok(lock_free),
            Some((id, None)) => Err(format!("cell {id} was not run in this block")),
            None if cell.role == Role::Ideal => Ok(run::per_second(outcome)),
            None => Err("the image has no lock-free lock".into()),
        });
        let mut record = record.map_err(|error| {
            self.progress.finish();
            let failure = Failure::from(error);
            Failure { message: format!("cell {} in block {block}: {failure}", cell.id), ..failure }
        })?;
        if cell.config.ring == Ring::Auto {
            record.config.ring_reason.clone_from(&self.calibration.ring_reason);
        }
        if cell.role == Role::Ideal {
            ideals.insert(cell.id.clone(), record.totals.acquisitions_per_second);
        }
        self.directory.append(&to_json(&record)?)?;
        self.records.push(record);
        self.progress.cell_done(config.warmup + config.window);
        Ok(())
    }

    /// Time for the rest of this block and as many whole ones.
    fn time_left(&self, rest: &[&Cell], blocks: u32) -> Duration {
        let length = |cell: &Cell| cell.config.warmup + cell.config.window;
        let points = &self.plan.points;
        let block: Duration = points.iter().flat_map(|point| point.ideals.iter().chain(&point.arms)).map(length).sum();
        let rest_measured: Duration = rest.iter().map(|cell| length(cell)).sum();
        let cells = rest.len() + self.plan.cells_per_block() * blocks as usize;
        self.progress.estimate(cells, rest_measured + block * blocks)
    }
}
